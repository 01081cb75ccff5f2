"""The format of a record: one JSON array per line, and dataclasses as JSON."""

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import cache, partial
from itertools import repeat
from typing import Any

from koord.util.clock import Stamp
from koord.util.documents import decode_line
from koord.util.errors import InvalidObject
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
