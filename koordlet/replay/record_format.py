"""The format of a record: one JSON array per line, and dataclasses as JSON."""

import dataclasses
import heapq
import json
import math
import os
import types
import typing
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import cache, partial
from itertools import repeat
from pathlib import Path
from typing import Any, BinaryIO

from koord.util.clock import Stamp
from koord.util.documents import decode_line
from koord.util.errors import InvalidObject, KoordError
from koordlet.metriccache.kinds import KINDS, AnyKind, Sample

VERSION = 1
_DIGITS = 6  # decimals of a sample: a millionth of a core, and whole bytes


class LineKind(StrEnum):
    """The kinds of lines."""

    HEADER = "koordlet-record"  # version, facts about node and daemon
    KEYS = "keys"  # kind, its series from here on
    TICK = "tick"  # wall, boot and monotonic seconds; values by kind
    STATE = "state"  # name, value
    READ = "read"  # monotonic seconds, resource, cgroup, value: a plugin looked at the kernel
    GROUPS = "groups"  # cgroup, depth, those below: a plugin listed cgroups
    CHANGE = (
        "change"  # boot seconds; a kernel value that was changed, or in dry-run would have been
    )
    DECISION = "decision"  # an eviction that was decided on
    LOST = "lost"  # so many lines that the reader was too slow for
    END = "end"


def write_line(kind: LineKind, *content: Any) -> bytes:
    """Return a line."""
    return json.dumps([kind.value, *content], separators=(",", ":")).encode() + b"\n"


def read_line(text: bytes, where: str) -> tuple[LineKind, list[Any]]:
    """Return what a line is about, and the rest of it.

    Raises:
        InvalidObject: it is no such line.
    """
    try:
        kind, *content = decode_line(text, where)
        return LineKind(kind), content
    except (ValueError, TypeError) as err:
        raise InvalidObject(where, wanted="a line of a record", found=str(err)) from err


def without(text: bytes) -> Iterator[tuple[LineKind, list[Any]]]:
    """Yield what is to be taken in place of a line that cannot be read.

    It may have named series, so samples count again from where they are named next. A line that
    still shows that it is of another kind leaves nothing behind.
    """
    others = tuple(f'["{kind.value}",'.encode() for kind in LineKind if kind is not LineKind.KEYS)
    if not text.startswith(others):
        yield from ((LineKind.KEYS, [name, []]) for name in KINDS)


@dataclass(slots=True)
class SampleWriter:
    """Turns the samples of ticks into lines."""

    _columns: dict[str, dict[tuple[str, ...], int]] = field(default_factory=dict)

    def lines(self, at: Stamp, monotonic: float, samples: Sequence[Sample]) -> list[bytes]:
        """The lines of one tick: new series first."""
        lines: list[bytes] = []
        by_kind: dict[str, dict[tuple[str, ...], float]] = {}
        for kind, value, key in samples:
            by_kind.setdefault(kind.name, {})[key] = value
        values: dict[str, list[float | int | None]] = {}
        for name, found in by_kind.items():
            columns = self._columns.get(name)
            if columns is None or not found.keys() <= columns.keys() or _is_sparse(found, columns):
                columns = self._columns[name] = {key: n for n, key in enumerate(found)}
                lines.append(write_line(LineKind.KEYS, name, list(found)))
            row: list[float | int | None] = [None] * len(columns)
            for key, value in found.items():
                row[columns[key]] = _short(value)
            values[name] = row
        lines.append(write_line(LineKind.TICK, at.wall, at.boot, monotonic, values))
        return lines


@dataclass(slots=True)
class SampleReader:
    """Turns the lines of ticks into samples."""

    _keys: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)

    def learn(self, name: str, keys: Sequence[Sequence[str]]) -> None:
        """Take the series of a kind from a KEYS line; one that this build does not know is left."""
        kind = KINDS.get(name)
        if kind is not None:
            self._keys[name] = [tuple(map(str, key)) for key in keys]

    def samples(self, values: Mapping[str, Sequence[Any]]) -> list[Sample]:
        """The samples of a TICK line; its values are numbers and None.

        Values whose series have not been named, as that line is lost, are left out.
        """
        found: list[Sample] = []
        for name, row in values.items():
            keys = self._keys.get(name, ())
            if keys and len(keys) == len(row):
                parts: Iterable[_Parts] = zip(repeat(KINDS[name]), row, keys)
                if None in row:
                    parts = (part for part in parts if part[1] is not None)
                found += map(_made, parts)
        return found


_Parts = tuple[AnyKind, Any, tuple[str, ...]]
_made: Callable[[_Parts], Sample] = partial(tuple.__new__, Sample)
"""Sample from its parts, without a call in Python for each of thousands a second."""


def _is_sparse(found: Mapping[Any, Any], columns: Mapping[Any, Any]) -> bool:
    """Whether so many series have ended that naming the others again is shorter."""
    return len(found) * 2 < len(columns)


def _short(value: float) -> float | int:
    value = round(float(value), _DIGITS)
    return int(value) if value.is_integer() else value


def encode(value: Any) -> Any:
    """Return a value as JSON: dataclasses and mappings are objects, sets are sorted lists."""
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: encode(getattr(value, name)) for name in _fields(type(value))}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(encode, value))
    if isinstance(value, tuple | list):
        return list(map(encode, value))
    return value


def decode(wanted: Any, value: Any, where: str) -> Any:
    """Return what encode was given, a value of the wanted type. Unknown fields are left out,
    and those that it lacks have their defaults: it may be of another version.

    Raises:
        InvalidObject: it does not have that shape; where is its place in the file.
    """
    try:
        return _decode(wanted, value)
    except (TypeError, ValueError, KeyError, AttributeError) as err:
        raise InvalidObject(where, wanted=str(wanted), found=f"{err!r}") from err


def _decode(wanted: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        [wanted] = (each for each in arguments if each is not type(None))
        return _decode(wanted, value)
    if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
        fields = _fields(wanted)
        return wanted(
            **{name: _decode(fields[name], value[name]) for name in fields if name in value}
        )
    if origin is not None and issubclass(origin, Mapping):
        of_key, of_item = arguments
        return {_decode_key(of_key, key): _decode(of_item, item) for key, item in value.items()}
    if origin is tuple:
        return tuple(_decode(arguments[0], item) for item in value)
    if origin is frozenset:
        return frozenset(_decode(arguments[0], item) for item in value)
    return _scalar(wanted, value)


def _decode_key(wanted: Any, key: str) -> Any:
    return int(key) if wanted is int else _scalar(wanted, key)


def _scalar(wanted: Any, value: Any) -> Any:
    if wanted in (Any, object):
        return value
    if issubclass(wanted, Enum):
        return wanted(value)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, wanted):
        raise TypeError(f"wanted {wanted.__name__}, found {value!r:.60}")
    return value


@cache
def _fields(kind: type) -> dict[str, Any]:
    """The types of the fields that its constructor takes, by name."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


MAX_LINE = 16 << 20  # bytes; the pods of a node are one line
MAX_BYTES = 8 << 30  # uncompressed

_GZIP = zlib.MAX_WBITS | 16  # with the header of a gzip file
_CHUNK, _PIECE = 64 << 10, 1 << 20  # bytes read, and unpacked, at once


class InvalidRecord(KoordError):
    """The file is no record, or cannot be read at all."""


@dataclass(slots=True)
class Recording:
    """An open record: its header, and the lines after it, once."""

    path: Path
    facts: dict[str, Any] = field(default_factory=dict)
    in_force: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = False  # its last line was there, and so were all others
    problem: str = ""  # what is missing, or cannot be read
    share: float = 0.0  # of the file that was read, from 0 to 1
    _lines: Iterator[bytes] = field(default_factory=lambda: iter(()))

    @classmethod
    def open(cls, path: Path) -> "Recording":
        """Open a file and read its header.

        Raises:
            InvalidRecord: there is none, or it is of another version.
        """
        record = cls(path)
        record._lines = record._read()
        first = next(record._lines, b"")
        try:
            record.facts, record.in_force = _header(first, str(path))
        except (InvalidObject, ValueError, TypeError) as err:
            wanted = f"a record of version {VERSION}, made by `koordletctl record`"
            found = record.problem or str(err)
            raise InvalidRecord(f"{path}: wanted {wanted}, found {found}") from err
        return record

    def lines(self) -> Iterator[tuple[LineKind, list[Any]]]:
        """The lines after the header. One that cannot be read costs only itself."""
        bad = 0
        for number, text in enumerate(self._lines, 2):
            try:
                kind, content = read_line(text, f"{self.path}, line {number}")
            except InvalidObject as err:
                bad += 1
                self.problem = self.problem or str(err)
                yield from without(text)
                continue
            if kind is LineKind.END:
                self.complete = not bad
                break
            yield kind, content
        else:
            self.problem = self.problem or "the file ends before the record does"
        if bad > 1:
            self.problem += f"; and {bad - 1} more lines"

    def _read(self) -> Iterator[bytes]:
        """Whole lines, up to what is damaged or missing."""
        rest = b""
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                for piece in _unpacked(file):
                    self.share = file.tell() / size if size else 1.0
                    *lines, rest = (rest + piece).split(b"\n")
                    yield from lines
                    if len(rest) > MAX_LINE:
                        self.problem = f"a line of more than {MAX_LINE} bytes"
                        return
        except (OSError, ValueError, zlib.error) as err:
            self.problem = str(err)


def _unpacked(file: BinaryIO) -> Iterator[bytes]:
    """Yield the contents of a gzip file in pieces; gzip itself withholds the last of a cut-off one.

    Raises:
        ValueError, zlib.error: it is damaged, cut off or too large.
    """
    inflater, size = zlib.decompressobj(_GZIP), 0
    while chunk := file.read(_CHUNK):
        while chunk:
            piece = inflater.decompress(chunk, _PIECE)
            size += len(piece)
            yield piece
            chunk = inflater.unconsumed_tail
        if size > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes")
    if not inflater.eof:
        raise ValueError("the file is cut off")


def _header(text: bytes, where: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The facts of the header and the values that were in force. Raises ValueError and its kin."""
    kind, content = read_line(text, where)
    if kind is not LineKind.HEADER:
        raise ValueError(f"a line {kind!r} at the beginning")
    version, facts, in_force = content
    if version != VERSION:
        raise ValueError(f"version {version}")
    return dict(facts), list(in_force)


LATEST = 3.0  # seconds that a line may be behind the times
_MOMENT = {LineKind.TICK: 2, LineKind.READ: 0}  # the index of a line's monotonic seconds

_Content = tuple[LineKind, list[Any]]


def in_order(lines: Iterable[_Content]) -> Iterator[_Content]:
    """Yield the lines by their monotonic time; those without one, or with none, stay in between.

    Lines of one moment, and those that are later still than LATEST, keep their order.
    """
    waiting: list[tuple[float, int, _Content]] = []
    newest = -math.inf
    for number, line in enumerate(lines):
        at = _moment(*line)
        newest = newest if at is None else max(newest, at)
        heapq.heappush(waiting, (newest if at is None else at, number, line))
        while waiting[0][0] < newest - LATEST:
            yield heapq.heappop(waiting)[2]
    while waiting:
        yield heapq.heappop(waiting)[2]


def _moment(kind: LineKind, content: list[Any]) -> float | None:
    """The time of a line; None: it has none, or it makes no sense."""
    place = _MOMENT.get(kind, math.inf)
    at = content[int(place)] if place < len(content) else None
    return float(at) if isinstance(at, int | float) and math.isfinite(at) else None
