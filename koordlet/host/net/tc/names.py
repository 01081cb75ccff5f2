"""Names of network interfaces, as they may come from journals and the kernel. Pure."""

_LONGEST = 15  # IFNAMSIZ without the zero byte
_TAKEN = frozenset({".", "..", "all", "default"})  # the last two are directories of sysctls


def is_interface_name(name: str) -> bool:
    """Whether an interface can have a name: what the kernel allows, of printable ASCII."""
    plain = name.isascii() and name.isprintable() and not set("/: ") & set(name)
    return plain and 0 < len(name) <= _LONGEST and name not in _TAKEN
