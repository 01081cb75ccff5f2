"""Names of control groups of resctrl, as they may come from pods, journals and the kernel. Pure."""

DEFAULT = "/"  # the group of all tasks that are in no other one
MON_GROUPS = "mon_groups"
_TAKEN = frozenset({"info", "mon_data", MON_GROUPS})
_LONGEST = 255  # bytes of a name in the kernel's file systems


def is_group_name(name: str) -> bool:
    """Whether a name is that of one directory right below the root of resctrl."""
    plain = name.isascii() and name.isprintable() and "/" not in name
    return plain and 0 < len(name) <= _LONGEST and name[0] != "." and name not in _TAKEN


def is_membership(text: str) -> bool:
    """Whether a text says where a task can be: "/", "BE" or "BE/mon_groups/m1"."""
    if text == DEFAULT:
        return True
    group, slash, monitor = text.partition(f"/{MON_GROUPS}/")
    return (is_group_name(group) or (not group and bool(slash))) and (
        not slash or is_group_name(monitor)
    )
