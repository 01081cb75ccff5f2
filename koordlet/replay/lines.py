"""The lines of a record: one JSON array each, the kind of line first.

A file is these lines, compressed with gzip. It begins with HEADER and, when nothing was lost at the
end, closes with END. Samples are columns: KEYS names the series of a metric kind whenever they
change, and each TICK has one value per series in that order, null for none.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import repeat
from typing import Any

from koord.util.clock import Stamp
from koord.util.documents import decode_line
from koord.util.errors import InvalidObject
from koordlet.metriccache.kinds import KINDS, AnyKind
from koordlet.metriccache.sample import Sample

VERSION = 1
_DIGITS = 6  # decimals of a sample: a millionth of a core, and whole bytes


class Line(StrEnum):
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


def write_line(kind: Line, *content: Any) -> bytes:
    """Return a line."""
    return json.dumps([kind.value, *content], separators=(",", ":")).encode() + b"\n"


def read_line(text: bytes, where: str) -> tuple[Line, list[Any]]:
    """Return what a line is about, and the rest of it.

    Raises:
        InvalidObject: it is no such line.
    """
    try:
        kind, *content = decode_line(text, where)
        return Line(kind), content
    except (ValueError, TypeError) as err:
        raise InvalidObject(where, wanted="a line of a record", found=str(err)) from err


def without(text: bytes) -> Iterator[tuple[Line, list[Any]]]:
    """Yield what is to be taken in place of a line that cannot be read.

    It may have named series, so samples count again from where they are named next. A line that
    still shows that it is of another kind leaves nothing behind.
    """
    others = tuple(f'["{kind.value}",'.encode() for kind in Line if kind is not Line.KEYS)
    if not text.startswith(others):
        yield from ((Line.KEYS, [name, []]) for name in KINDS)


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
                lines.append(write_line(Line.KEYS, name, list(found)))
            row: list[float | int | None] = [None] * len(columns)
            for key, value in found.items():
                row[columns[key]] = _short(value)
            values[name] = row
        lines.append(write_line(Line.TICK, at.wall, at.boot, monotonic, values))
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
