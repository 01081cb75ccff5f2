"""Names of network interfaces, as they may come from journals and the kernel. Pure."""

_LONGEST = 15  # IFNAMSIZ without the zero byte
_TAKEN = frozenset({".", "..", "all", "default"})  # the last two are directories of sysctls


def parse_interface(data: bytes) -> str:
    """Return the name of an interface, or "" for none. Raises ValueError: no interface has it."""
    name = data.decode("ascii", "replace").removesuffix("\n")
    if name and not is_interface_name(name):
        raise ValueError(f"wanted the name of an interface, found {name!r:.60}")
    return name


def is_interface_name(name: str) -> bool:
    """Whether an interface can have a name: what the kernel allows, of printable ASCII."""
    plain = name.isascii() and name.isprintable() and not set("/: ") & set(name)
    return plain and 0 < len(name) <= _LONGEST and name not in _TAKEN
