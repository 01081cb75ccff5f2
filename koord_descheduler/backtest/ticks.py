"""Ticks of a record, many to a block: the changes of a moment, its reports and its evictions.

What comes again and again (labels and specs of pods, layouts of reports) is in a block only once in
the whole record, and has a number from then on; whoever reads must begin at the beginning.
"""

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from koord.cluster import decoding
from koord.cluster.decoder import Kind
from koord.cluster.decoding import UsageReport
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
    Workload,
)
from koord.cluster.storage import kinds as storage
from koord.cluster.storage.facts import (
    Claim,
    CsiDriver,
    CsiNode,
    StorageCapacity,
    StorageClass,
    Volume,
    VolumeAttachment,
)
from koord.util.errors import InvalidObject
from koord_descheduler.backtest.columns import (
    Layout,
    Row,
    layout_of,
    pack,
    to_report,
    to_row,
    unpack,
)

MOST_NUMBERED = 1_000_000  # labels, specs and layouts; then numbers begin anew

_WHERE = "block of a record"
_NO_LABELS, _NO_SPEC = LabelSet("", {}), PodSpec()
_KINDS: tuple[tuple[Kind[Any], type], ...] = (
    (decoding.NODE, ClusterNode),
    (decoding.POD, ClusterPod),
    (storage.CLAIM, Claim),
    (storage.VOLUME, Volume),
    (storage.STORAGE_CLASS, StorageClass),
    (storage.CSI_NODE, CsiNode),
    (storage.CSI_DRIVER, CsiDriver),
    (storage.STORAGE_CAPACITY, StorageCapacity),
    (storage.VOLUME_ATTACHMENT, VolumeAttachment),
    (decoding.NAMESPACE, ClusterNamespace),
    (decoding.SERVICE, ClusterService),
    (decoding.BUDGET, DisruptionBudget),
    (decoding.PRIORITY_CLASS, PriorityClass),
    (decoding.NODE_METRIC, UsageReport),
    *((kind, Workload) for kind in decoding.WORKLOADS),
)
_KIND_OF = {kind.name: kind for kind, _ in _KINDS}


@dataclass(frozen=True, slots=True)
class Change:
    """An object that was added or changed, or, where item is None, removed."""

    kind: Kind[Any]
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
    """What happened since the tick before."""

    at: float  # Unix seconds
    changes: list[Change] = field(default_factory=list)
    reports: list[UsageReport] = field(default_factory=list)
    evictions: list[Eviction] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether anything happened."""
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
        anew = len(self._labels) + len(self._specs) + self._numbered > MOST_NUMBERED
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
    """What a block is about, whatever is before it. Raises InvalidObject."""
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
