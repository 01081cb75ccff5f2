"""Reads a record file as far as it can be read."""

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from koord.util.errors import InvalidObject, KoordError
from koordlet.replay.lines import VERSION, Line, read_line, without

LONGEST_LINE = 16 << 20  # bytes; the pods of a node are one line
MOST_BYTES = 8 << 30  # uncompressed

_GZIP = zlib.MAX_WBITS | 16  # with the header of a gzip file
_CHUNK, _PIECE = 64 << 10, 1 << 20  # bytes read, and unpacked, at once


class NoRecord(KoordError):
    """The file is no record, or cannot be read at all."""


@dataclass(slots=True)
class RecordFile:
    """An open record: its header, and the lines after it, once."""

    path: Path
    facts: dict[str, Any] = field(default_factory=dict)
    in_force: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = False  # its last line was there, and so were all others
    problem: str = ""  # what is missing, or cannot be read
    share: float = 0.0  # of the file that was read, from 0 to 1
    _lines: Iterator[bytes] = field(default_factory=lambda: iter(()))

    @classmethod
    def open(cls, path: Path) -> "RecordFile":
        """Open a file and read its header.

        Raises:
            NoRecord: there is none, or it is of another version.
        """
        record = cls(path)
        record._lines = record._read()
        first = next(record._lines, b"")
        try:
            record.facts, record.in_force = _header(first, str(path))
        except (InvalidObject, ValueError, TypeError) as err:
            wanted = f"a record of version {VERSION}, made by `koordletctl record`"
            found = record.problem or str(err)
            raise NoRecord(f"{path}: wanted {wanted}, found {found}") from err
        return record

    def lines(self) -> Iterator[tuple[Line, list[Any]]]:
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
            if kind is Line.END:
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
                    if len(rest) > LONGEST_LINE:
                        self.problem = f"a line of more than {LONGEST_LINE} bytes"
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
        if size > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES} bytes")
    if not inflater.eof:
        raise ValueError("the file is cut off")


def _header(text: bytes, where: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The facts of the header and the values that were in force. Raises ValueError and its kin."""
    kind, content = read_line(text, where)
    if kind is not Line.HEADER:
        raise ValueError(f"a line {kind!r} at the beginning")
    version, facts, in_force = content
    if version != VERSION:
        raise ValueError(f"version {version}")
    return dict(facts), list(in_force)
