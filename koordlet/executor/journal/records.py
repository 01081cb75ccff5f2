"""The journal's lines: fields, checksum, and version of the format.

A line is the CRC-32 of its text in eight hex digits, a space, and a JSON array. The header comes
first, and three times, as a damaged end of line takes two lines with it:

    ["koordlet journal", version, boot id]

Then in the order of events:

    ["set", number, resource, level, place, start time, inode, owners, original, confirmed,
     intended, earlier, definition]                 a value that is ours now, or all about it anew
    ["now", number, original, confirmed, intended]  what changes most
    ["drop", number]                                restored, or gone

The definition is there for a kernel file that a plugin declared (koordlet.host.kernelfile); a
koordlet that does not know of it does not know the resource either, and leaves the value.

A newer version may add kinds of lines, and fields at the end of lines. It counts the version up
only when an older koordlet would do harm with it.
"""

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MAGIC = "koordlet journal"
VERSION = 1
LONGEST = 64 << 10  # bytes of a line; a cgroup path has 4 kB at most


@dataclass(slots=True)
class Record:
    """One kernel value that is ours, as texts that would set it (koordlet.host.kerneltext).

    The value found is still ours when it is confirmed, which was read back, or intended, of which
    that is not known yet. Earlier ones, oldest first, are kept where children copy them.
    """

    resource: str
    level: str
    place: str
    start_time: int  # of a process, in ticks since boot; else 0
    inode: int  # of the cgroup's directory; else 0
    owners: tuple[str, ...]
    original: str
    confirmed: str
    intended: str
    earlier: tuple[str, ...] = ()
    definition: str = ""  # of a file that a plugin declared; "": a row of the table

    @property
    def ours(self) -> tuple[str, str]:
        return self.confirmed, self.intended


class Damaged(ValueError):
    """A line is not what was written."""


class NewerVersion(ValueError):
    """The file was written by a koordlet whose format this one does not know."""


def header(boot_id: str) -> bytes:
    """The first lines of a journal of this boot."""
    return 3 * _line([MAGIC, VERSION, boot_id])


def set_line(number: int, record: Record) -> bytes:
    """All of a record."""
    fields = [getattr(record, name) for name in Record.__slots__]
    return _line(["set", number, *(fields if record.definition else fields[:-1])])


def now_line(number: int, original: str, confirmed: str, intended: str) -> bytes:
    """The fields of a record that change while it is there."""
    return _line(["now", number, original, confirmed, intended])


def drop_line(number: int) -> bytes:
    """The end of a record."""
    return _line(["drop", number])


@dataclass(slots=True)
class Contents:
    """The contents of a journal. Lines that are damaged are passed over; the others hold."""

    boot_id: str
    records: dict[int, Record]
    damaged: int = 0  # lines


def read(data: bytes) -> Contents:
    """Return the contents of a journal.

    Raises:
        NewerVersion: this koordlet cannot know what it means.
    """
    contents = Contents("", {})
    for line in data.splitlines(keepends=True):
        try:
            _apply(contents, _fields(line))
        except Damaged:
            contents.damaged += 1
    return contents


def _line(fields: Sequence[object]) -> bytes:
    text = json.dumps(fields, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _fields(line: bytes) -> list[Any]:
    checksum, _, text = line.removesuffix(b"\n").partition(b" ")
    if not line.endswith(b"\n") or len(line) > LONGEST or checksum != b"%08x" % zlib.crc32(text):
        raise Damaged(line[:60])
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise Damaged(line[:60]) from err
    if not isinstance(found, list):
        raise Damaged(line[:60])
    return found


def _apply(contents: Contents, fields: list[Any]) -> None:
    """Take in one line. Raises Damaged, with nothing changed, or NewerVersion."""
    records = contents.records
    match fields:
        case [magic, int(version), str(boot_id), *_] if magic == MAGIC:
            if version > VERSION:
                raise NewerVersion(f"version {version} of the format; this koordlet has {VERSION}")
            contents.boot_id = boot_id
        case ["set", int(number), *rest]:
            records[number] = _record(rest)
        case ["now", int(number), str(original), str(confirmed), str(intended), *_]:
            if record := records.get(number):
                record.original, record.confirmed, record.intended = original, confirmed, intended
        case ["drop", int(number), *_]:
            records.pop(number, None)
        case [str(kind), *_] if kind in (MAGIC, "set", "now", "drop"):
            raise Damaged(fields[0])


_TYPES = (str, str, str, int, int, list, str, str, str, list)  # of a record's fields


def _record(values: list[Any]) -> Record:
    fit = len(values) >= len(_TYPES) and all(map(_fits, values, _TYPES))
    if not fit:
        raise Damaged("set")
    known: list[Any] = [tuple(v) if isinstance(v, list) else v for v in values[: len(_TYPES)]]
    definition = values[len(_TYPES)] if len(values) > len(_TYPES) else ""
    if not isinstance(definition, str):
        raise Damaged("set")
    return Record(*known, *[definition])


def _fits(value: object, wanted: type) -> bool:
    if isinstance(value, list):
        return wanted is list and all(isinstance(item, str) for item in value)
    return type(value) is wanted
