"""Read a record file as far as it can be read, in the order of its times."""

import heapq
import math
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from koord.util.errors import InvalidObject, KoordError
from koordlet.replay.record_format import VERSION, LineKind, read_line, without

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
