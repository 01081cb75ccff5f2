"""Reads the mounts of a process."""

import re
from typing import NamedTuple

from koordlet.host.proc.procfiles import shown

_ESCAPE = re.compile(rb"\\([0-7]{3})")


class Mount(NamedTuple):
    """One line of mountinfo."""

    target: str  # mount point
    source: str  # device or whatever the file system calls its source
    number: str  # "major:minor" of the file system
    root: str  # directory of the file system that is seen at target
    kind: str  # file system type
    options: str  # of the file system, comma separated


def parse_mountinfo(data: bytes) -> list[Mount]:
    """Return the mounts of /proc/<pid>/mountinfo in their order: later ones hide earlier ones.

    Raises:
        ValueError: a line does not have the fields of a mount.

    Source: kernel docs, filesystems/proc, section 3.5.
    """
    return [_mount(line) for line in data.splitlines()]


def _mount(line: bytes) -> Mount:
    before, dash, after = line.partition(b" - ")
    place, file_system = before.split(), after.split()
    if not dash or len(place) < 6 or len(file_system) < 2:
        raise ValueError(f"wanted a mount, found {shown(line)}")
    _, _, number, root, target, *_ = place
    # A source may be empty: then the kernel prints two blanks, and split() sees one field less.
    kind, *source, options = file_system
    return Mount(
        target=_text(target),
        source=_text(source[0]) if source else "",
        number=_text(number),
        root=_text(root),
        kind=_text(kind),
        options=_text(options),
    )


def _text(field: bytes) -> str:
    """Undo the octal escapes of blanks and backslashes."""
    plain = _ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), field)
    return plain.decode(errors="surrogateescape")
