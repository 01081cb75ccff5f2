"""Schemata of a resctrl control group: ways of each cache, bandwidth; and valid names of groups."""

import re
from collections.abc import Mapping
from functools import partial

from koordlet.host.resource import Text

DEFAULT_GROUP = "/"  # the group of all tasks that are in no other one
MON_GROUPS = "mon_groups"
_RESERVED_NAMES = frozenset({"info", "mon_data", MON_GROUPS})
_MAX_NAME_LENGTH = 255  # bytes of a name in the kernel's file systems


def is_group_name(name: str) -> bool:
    """Whether a name is that of one directory right below the root of resctrl."""
    plain = name.isascii() and name.isprintable() and "/" not in name
    return (
        plain
        and 0 < len(name) <= _MAX_NAME_LENGTH
        and name[0] != "."
        and name not in _RESERVED_NAMES
    )


def is_membership(text: str) -> bool:
    """Whether a text says where a task can be: "/", "BE" or "BE/mon_groups/m1"."""
    if text == DEFAULT_GROUP:
        return True
    group, slash, monitor = text.partition(f"/{MON_GROUPS}/")
    return (is_group_name(group) or (not group and bool(slash))) and (
        not slash or is_group_name(monitor)
    )


L3, MB = "L3", "MB"
MAX_CACHES = 256
_BASES = {L3: 16, MB: 10}
_MASK = re.compile(r"[0-9a-fA-F]{1,16}", re.ASCII)
_ENTRIES = {  # the kernel fills up with spaces
    L3: re.compile(r"[0-9]{1,5}= *[0-9a-fA-F]{1,16}", re.ASCII),
    MB: re.compile(r"[0-9]{1,5}= *[0-9]{1,16}", re.ASCII),
}


def parse_line(resource: str, data: bytes) -> str:
    """Return the value of a resource. Raises ValueError: there is no line of it, or it is bad."""
    for line in data.decode("ascii", "replace").splitlines():
        name, colon, rest = line.partition(":")
        if colon and name.strip() == resource:
            return render(resource, entries(resource, rest))
    raise ValueError(f"wanted a line {resource}:, found none")


def parse_mask(data: bytes) -> int:
    """Return the number of a mask in hexadecimal. Raises ValueError."""
    text = data.decode("ascii", "replace").strip()
    if not _MASK.fullmatch(text):
        raise ValueError(f"wanted a mask in hexadecimal, found {text!r:.40}")
    return int(text, 16)


def entries(resource: str, text: str) -> dict[int, int]:
    """Return the numbers of a line by cache id. Raises ValueError."""
    found: dict[int, int] = {}
    for entry in text.strip().split(";"):
        if not entry:
            continue
        if not _ENTRIES[resource].fullmatch(entry.strip()):
            raise ValueError(f"wanted <cache id>=<number>, found {entry!r:.40}")
        cache, _, number = entry.partition("=")
        found[int(cache)] = int(number, _BASES[resource])
    if not 0 < len(found) <= MAX_CACHES:
        raise ValueError(f"wanted 1 to {MAX_CACHES} caches, found {len(found)}")
    return found


def render(resource: str, numbers: Mapping[int, int]) -> str:
    """Return the text of numbers by cache id."""
    form = "x" if _BASES[resource] == 16 else "d"
    return ";".join(f"{cache}={number:{form}}" for cache, number in sorted(numbers.items()))


def schemata_text(resource: str) -> Text[str]:
    """How the line of a resource is read and written; the other lines stay as they are."""
    return Text(
        of=partial(_canonical, resource),
        shown=partial(parse_line, resource),
        value=partial(_canonical, resource),
        content=lambda text, now: f"{resource}:{text}",
    )


def is_positive(resource: str, text: str) -> bool:
    """Accept a part of each cache, of which none is empty."""
    try:
        return all(number > 0 for number in entries(resource, text).values())
    except ValueError:
        return False


def _canonical(resource: str, text: str) -> str:
    if isinstance(text, str):
        return render(resource, entries(resource, text))
    raise ValueError(f"wanted a text as 0=3c;1=3c, found {text!r:.60}")
