"""The format of a record: ticks of changes, reports and evictions, in blocks with checksums."""

import hashlib
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from koord.cluster import kinds, storage
from koord.cluster.decoder import ObjectKind
from koord.cluster.facts import (
    NO_IMAGES,
    ClusterNamespace,
    ClusterNode,
    ClusterPod,
    ClusterService,
    DisruptionBudget,
    LabelSet,
    PodSpec,
    PriorityClass,
    ReportedAggregate,
    ReportedPodUsage,
    ReportedUsage,
    Workload,
)
from koord.cluster.kinds import UsageReport
from koord.cluster.storage import (
    Claim,
    CsiDriver,
    CsiNode,
    StorageCapacity,
    StorageClass,
    Volume,
    VolumeAttachment,
)
from koord.util.errors import InvalidObject, KoordError

Row = NDArray[np.int64]

NONE = -(1 << 62)  # what a report does not say
_MAX_INTEGER = 1 << 61  # of an amount; a larger one is absurd, and counts as this
_REPORT_HEAD = 7  # time; cpu and memory of node, system and host applications
_FIGURES = ("avg", "p50", "p90", "p95", "p99")
_OF_WINDOW = 2 * len(_FIGURES)


class Layout(Struct, frozen=True, array_like=True):
    """The node, windows and pods that the figures of a row belong to."""

    node: str
    windows: tuple[float, ...]  # seconds, of the aggregated usages
    pods: tuple[tuple[str, str, str, str], ...]  # namespace, name, priority, qos

    @property
    def width(self) -> int:
        """Figures in a row."""
        return _REPORT_HEAD + _OF_WINDOW * len(self.windows) + 2 * len(self.pods)


def layout_of(report: UsageReport) -> Layout:
    """The layout of a report."""
    return Layout(
        report.node,
        tuple(one.duration for one in report.aggregated),
        tuple((one.namespace, one.name, one.priority, one.qos) for one in report.pods),
    )


def to_row(report: UsageReport) -> Row:
    """The figures of a report."""
    time = report.update_time
    figures = [NONE if time is None else _bounded(time * 1e6)]
    _add(figures, report.usage)
    _add(figures, report.system_usage)
    _add(figures, report.host_usage)
    for window in report.aggregated:
        for name in _FIGURES:
            _add(figures, getattr(window, name))
    figures += [_bounded(one.usage.cores * 1000) for one in report.pods]
    figures += [_bounded(one.usage.memory_bytes) for one in report.pods]
    return np.array(figures, np.int64)


def to_report(layout: Layout, row: Row) -> UsageReport:
    """The report of a row."""
    figures: list[int] = row.tolist()
    pods, windows = len(layout.pods), len(layout.windows)
    first_pod = _REPORT_HEAD + _OF_WINDOW * windows
    cores, memory = figures[first_pod : first_pod + pods], figures[first_pod + pods :]
    return UsageReport(
        node=layout.node,
        update_time=None if figures[0] == NONE else figures[0] / 1e6,
        usage=_usage(figures, 1),
        system_usage=_usage(figures, 3),
        host_usage=_usage(figures, 5),
        aggregated=tuple(
            ReportedAggregate(
                duration,
                *(
                    _usage(figures, _REPORT_HEAD + _OF_WINDOW * at + 2 * one)
                    for one in range(len(_FIGURES))
                ),
            )
            for at, duration in enumerate(layout.windows)
        ),
        pods=tuple(
            ReportedPodUsage(
                name=name,
                namespace=namespace,
                usage=ReportedUsage(milli / 1000, float(amount)),
                priority=priority,
                qos=qos,
            )
            for (namespace, name, priority, qos), milli, amount in zip(
                layout.pods, cores, memory, strict=True
            )
        ),
    )


def pack(values: Row) -> bytes:
    """Integers as bytes that compress well: small ones of either sign are mostly zeros."""
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint8)
    return zigzag.reshape(-1, 8).T.tobytes()


def unpack(data: bytes) -> Row:
    """The integers of pack.

    Raises:
        InvalidObject: it is none of its results.
    """
    if len(data) % 8:
        raise InvalidObject("column of a record", wanted="whole integers", found=len(data))
    planes = np.frombuffer(data, np.uint8).reshape(8, -1)
    zigzag = np.ascontiguousarray(planes.T).view(np.uint64).ravel()
    return (zigzag >> np.uint64(1)).view(np.int64) ^ -(zigzag & np.uint64(1)).view(np.int64)


def _add(figures: list[int], usage: ReportedUsage | None) -> None:
    if usage is None:
        figures += (NONE, NONE)
    else:
        figures += (_bounded(usage.cores * 1000), _bounded(usage.memory_bytes))


def _bounded(value: float) -> int:
    return max(-_MAX_INTEGER, min(_MAX_INTEGER, round(value)))


def _usage(figures: list[int], at: int) -> ReportedUsage | None:
    if figures[at] == NONE:
        return None
    return ReportedUsage(figures[at] / 1000, float(figures[at + 1]))


MAX_NUMBERED = 1_000_000  # labels, specs and layouts; then numbers begin anew

_WHERE = "block of a record"
_NO_LABELS, _NO_SPEC = LabelSet("", {}), PodSpec()
_KINDS: tuple[tuple[ObjectKind[Any], type], ...] = (
    (kinds.NODE, ClusterNode),
    (kinds.POD, ClusterPod),
    (storage.CLAIM, Claim),
    (storage.VOLUME, Volume),
    (storage.STORAGE_CLASS, StorageClass),
    (storage.CSI_NODE, CsiNode),
    (storage.CSI_DRIVER, CsiDriver),
    (storage.STORAGE_CAPACITY, StorageCapacity),
    (storage.VOLUME_ATTACHMENT, VolumeAttachment),
    (kinds.NAMESPACE, ClusterNamespace),
    (kinds.SERVICE, ClusterService),
    (kinds.BUDGET, DisruptionBudget),
    (kinds.PRIORITY_CLASS, PriorityClass),
    (kinds.NODE_METRIC, UsageReport),
    *((kind, Workload) for kind in kinds.WORKLOADS),
)
_KIND_OF = {kind.name: kind for kind, _ in _KINDS}


@dataclass(frozen=True, slots=True)
class Change:
    """An object that was added or changed, or, where item is None, removed."""

    kind: ObjectKind[Any]
    key: str
    item: Any


class Eviction(Struct, frozen=True, kw_only=True):
    """An eviction that the recorded descheduler began."""

    at: float  # Unix seconds
    pod: str  # namespace/name
    uid: str
    node: str
    plugin: str = ""
    reason: str = ""


@dataclass(slots=True)
class Tick:
    """The changes, reports and evictions since the previous tick."""

    at: float  # Unix seconds
    changes: list[Change] = field(default_factory=list)
    reports: list[UsageReport] = field(default_factory=list)
    evictions: list[Eviction] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether the tick has any content."""
        return bool(self.changes or self.reports or self.evictions)


@dataclass(frozen=True, slots=True)
class BlockSummary:
    """Times of a block's ticks, and its evictions."""

    times: list[float]
    evictions: list[Eviction]


class Header(Struct, frozen=True, kw_only=True):
    """The first block of a record."""

    began: float  # Unix seconds
    config: str = ""  # the configuration of the descheduler at work, as its file has it
    recorder: str = ""  # name and version of what has recorded


class _Change(Struct, array_like=True):
    kind: str
    key: str
    facts: bytes = b""  # b"": removed
    labels: int = -1  # of pods: the numbers
    spec: int = -1


class _Tick(Struct, array_like=True):
    at: float
    changes: list[_Change]
    evictions: list[Eviction]
    reports: int  # of the block's that belong to it


class _Block(Struct, array_like=True):
    anew: bool  # numbers begin anew
    labels: list[LabelSet]
    specs: list[PodSpec]
    layouts: list[Layout]
    ticks: list[_Tick]
    row_layouts: bytes
    rows: bytes


def _plain(value: object) -> object:
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise NotImplementedError(type(value))


_encode: Callable[[object], bytes] = msgspec.msgpack.Encoder(enc_hook=_plain).encode
_HEADER = msgspec.msgpack.Decoder(Header)
_BLOCK = msgspec.msgpack.Decoder(_Block)
_DECODERS: Mapping[str, msgspec.msgpack.Decoder[Any]] = {
    kind.name: msgspec.msgpack.Decoder(facts) for kind, facts in _KINDS
}
_DECODE_ERRORS = (msgspec.DecodeError, RecursionError, UnicodeError, OverflowError, struct.error)


def header_block(header: Header) -> bytes:
    """The first block."""
    return _encode(header)


def read_header(data: bytes) -> Header:
    """The header of the first block. Raises InvalidObject."""
    try:
        return _HEADER.decode(data)
    except _DECODE_ERRORS as err:
        raise InvalidObject("first block of a record", wanted="a header", found=str(err)) from err


class TickEncoder:
    """Makes blocks of ticks; each block builds on all before it."""

    def __init__(self) -> None:
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._labels: dict[bytes, int] = {}  # numbers by digest
        self._specs: dict[bytes, int] = {}
        self._layouts: dict[str, tuple[int, Layout, Row]] = {}  # by node: the last one and its row
        self._numbered = 0  # layouts

    def block(self, ticks: Iterable[Tick]) -> bytes:
        """The block of these ticks."""
        anew = len(self._labels) + len(self._specs) + self._numbered > MAX_NUMBERED
        if anew:
            self._begin_anew()
        block = _Block(anew, [], [], [], [], b"", b"")
        numbers: list[int] = []
        rows: list[Row] = []
        for tick in ticks:
            changes = [self._change(one, block) for one in tick.changes]
            block.ticks.append(_Tick(tick.at, changes, tick.evictions, len(tick.reports)))
            for report in tick.reports:
                number, row = self._row(report, block)
                numbers.append(number)
                rows.append(row)
        block.row_layouts = pack(np.array(numbers, np.int64))
        block.rows = pack(np.concatenate(rows)) if rows else b""
        return _encode(block)

    def _change(self, change: Change, block: _Block) -> _Change:
        name, item = change.kind.name, change.item
        if item is None:
            return _Change(name, change.key)
        if isinstance(item, ClusterNode):  # no plugin of the descheduler looks at images
            item = replace(item, images=NO_IMAGES)
        if not isinstance(item, ClusterPod):
            return _Change(name, change.key, _encode(item))
        labels = _number(self._labels, item.label_set, block.labels)
        spec = _number(self._specs, item.spec, block.specs)
        facts = _encode(replace(item, label_set=_NO_LABELS, spec=_NO_SPEC))
        return _Change(name, change.key, facts, labels, spec)

    def _row(self, report: UsageReport, block: _Block) -> tuple[int, Row]:
        layout, row = layout_of(report), to_row(report)
        known = self._layouts.get(report.node)
        if known is not None and known[1] == layout:
            number, _, last = known
            self._layouts[report.node] = number, layout, row
            return number, row - last
        block.layouts.append(layout)
        number, self._numbered = self._numbered, self._numbered + 1
        self._layouts[report.node] = number, layout, row
        return number, row


class TickDecoder:
    """Makes ticks of blocks; give it all of them, in their order."""

    def __init__(self) -> None:
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._labels: list[LabelSet] = []
        self._specs: list[PodSpec] = []
        self._layouts: list[Layout] = []
        self._last: dict[int, Row] = {}  # by number of the layout

    def ticks(self, data: bytes) -> Iterator[Tick]:
        """Yield the ticks of a block.

        Raises:
            InvalidObject: it is malformed, or does not build on the blocks before.
        """
        try:
            block = _BLOCK.decode(data)
            if block.anew:
                self._begin_anew()
            self._labels += block.labels
            self._specs += block.specs
            self._layouts += block.layouts
            reports = self._reports(block)
            for tick in block.ticks:
                yield Tick(
                    tick.at,
                    [self._change(one) for one in tick.changes],
                    [next(reports) for _ in range(tick.reports)],
                    tick.evictions,
                )
        except (*_DECODE_ERRORS, IndexError, KeyError, ValueError, RuntimeError) as err:
            raise InvalidObject(_WHERE, wanted="what record writes", found=repr(err)) from err

    def _change(self, found: _Change) -> Change:
        kind = _KIND_OF[found.kind]
        if not found.facts:
            return Change(kind, found.key, None)
        item = _DECODERS[found.kind].decode(found.facts)
        if isinstance(item, ClusterPod):
            labels, spec = self._labels[found.labels], self._specs[found.spec]
            item = replace(item, label_set=labels, spec=spec)
        return Change(kind, found.key, item)

    def _reports(self, block: _Block) -> Iterator[UsageReport]:
        numbers: list[int] = unpack(block.row_layouts).tolist()
        rows, at = unpack(block.rows), 0
        for number in numbers:
            layout = self._layouts[number]
            row = rows[at : at + layout.width]
            at += layout.width
            last = self._last.get(number)
            if last is not None:
                row = row + last
            self._last[number] = row
            yield to_report(layout, row)


def summary_of(data: bytes) -> BlockSummary:
    """Return the times and evictions of a block; earlier blocks are not needed.

    Raises:
        InvalidObject: the block is malformed.
    """
    try:
        ticks = _BLOCK.decode(data).ticks
    except _DECODE_ERRORS as err:
        raise InvalidObject(_WHERE, wanted="what record writes", found=str(err)) from err
    return BlockSummary(
        [tick.at for tick in ticks], [one for tick in ticks for one in tick.evictions]
    )


def _number(numbers: dict[bytes, int], item: LabelSet | PodSpec, new: list[Any]) -> int:
    """The number of what pods share; what has none yet gets one, and is new in this block."""
    digest = hashlib.blake2b(_encode(item), digest_size=16).digest()
    number = numbers.get(digest)
    if number is None:
        number = numbers[digest] = len(numbers)
        new.append(item)
    return number


MAGIC = b"koord-record\x00\x00\x00\x01"  # the last byte is the version
MAX_BLOCK_BYTES = 256 << 20  # bytes, decompressed
_BLOCK_HEAD = struct.Struct("<II")
_LEVEL = 6


class RecordFull(KoordError):
    """The file has reached its size; what was appended before is whole."""


class RecordWriter:
    """Appends blocks. Blocks: each append is a write of some hundred kB at most."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        """Create the file.

        Raises:
            OSError: it is there already, or cannot be created.
        """
        self.size = len(MAGIC)
        self._path = path
        self._most = most_bytes
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o640)
        _write_all(self._fd, MAGIC)

    def append(self, data: bytes) -> None:
        """Append a block.

        Raises:
            RecordFull: it does not fit.
            OSError: it was not written, or not all of it; a reader ends before it.
        """
        packed = zlib.compress(data, _LEVEL)
        block = _BLOCK_HEAD.pack(len(packed), zlib.crc32(packed)) + packed
        if self.size + len(block) > self._most:
            raise RecordFull(
                f"{self._path}: wanted at most {self._most} bytes, found {self.size} and "
                f"{len(block)} more; raise --max-size, or record in several files"
            )
        _write_all(self._fd, block)
        self.size += len(block)

    def close(self) -> None:
        """Make it durable and close it."""
        os.fsync(self._fd)
        os.close(self._fd)


class RecordReader:
    """Reads blocks in their order."""

    def __init__(self, path: Path) -> None:
        self.damage = ""  # why reading has ended before the end of the file; "": it has not
        self._path = path

    def blocks(self) -> Iterator[bytes]:
        """Yield each block; ends before the first one that is damaged or cut off, see damage.

        Raises:
            OSError: the file cannot be read.
            InvalidObject: it is no record, or one of another version.
        """
        self.damage = ""
        with self._path.open("rb") as file:
            found = file.read(len(MAGIC))
            if found[:-1] != MAGIC[:-1]:
                wanted = "a file of koord-descheduler record"
                raise InvalidObject(str(self._path), wanted=wanted, found=found[:12])
            if found != MAGIC:
                wanted = f"version {MAGIC[-1]}"
                raise InvalidObject(str(self._path), wanted=wanted, found=found[-1])
            while head := file.read(_BLOCK_HEAD.size):
                at = file.tell() - len(head)
                if len(head) < _BLOCK_HEAD.size:
                    self._end(at, "cut off")
                    return
                length, checksum = _BLOCK_HEAD.unpack(head)
                packed = file.read(min(length, MAX_BLOCK_BYTES))
                if len(packed) < length:
                    self._end(at, "cut off")
                    return
                data = _unpacked(packed) if zlib.crc32(packed) == checksum else None
                if data is None:
                    self._end(at, "damaged")
                    return
                yield data

    def _end(self, at: int, why: str) -> None:
        self.damage = f"{self._path}: the block at byte {at} is {why}; what is before it counts"


def _unpacked(packed: bytes) -> bytes | None:
    """The data of a block; None: it is none, or too large."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(packed, MAX_BLOCK_BYTES)
    except zlib.error:
        return None
    return data if stream.eof else None


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
