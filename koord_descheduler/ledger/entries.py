"""Entries of the ledger: evictions, measured relief, pauses of workloads, the document."""

import math
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from koord.cluster.facts import ClusterPod, ReportedUsage
from koord.cluster.kinds import UsageReport
from koord.cluster.placement import Workloads, controller_of
from koord.util.errors import InvalidObject

BARE = "Pod"  # kind of the workload that a pod without a controller is by itself


class WorkloadRef(Struct, frozen=True):
    """The workload that a pod belongs to."""

    kind: str
    namespace: str
    name: str
    uid: str = ""  # "" of a bare pod: one that is created anew under its name is the same workload

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class Baseline(Struct, frozen=True):
    """Usage of a node by one NodeMetric, as far as it is compared with a later one."""

    time: float  # of the report, Unix seconds
    node: ReportedUsage
    system: ReportedUsage | None = None  # None: the report does not have it
    neighbours: ReportedUsage | None = (
        None  # sum of the pods that are compared with; None: as above
    )
    pod: ReportedUsage | None = None  # of the evicted pod; None: the report does not have it


class Outcome(StrEnum):
    """The state of an entry."""

    PENDING = "pending"  # the pod is there, or reports still contain it
    RELIEVED = "relieved"  # at least half of the predicted relief was measured
    NOT_RELIEVED = "not-relieved"  # less
    RETURNED = "returned"  # a new pod of the workload runs on the same node
    UNKNOWN = "unknown"  # the pod never left, no reports arrived, or too little was predicted
    NOT_FOR_LOAD = "not-for-load"  # nothing was predicted


FAILURES = frozenset({Outcome.NOT_RELIEVED, Outcome.RETURNED})


class Entry(Struct, frozen=True, kw_only=True):
    """One eviction. Times are Unix seconds."""

    pod: str  # namespace/name
    uid: str  # of the pod
    node: str
    workload: WorkloadRef
    at: float
    plugin: str = ""
    reason: str = ""
    predicted: ReportedUsage | None = None  # relief; None: load was not why it was evicted
    newest: float | None = None  # creation of the workload's newest pod at that time
    before: Baseline | None = None  # the last report while the pod was there; None: there was none
    left: float | None = None  # when the pod was seen to be gone
    outcome: Outcome = Outcome.PENDING
    measured: ReportedUsage | None = None  # relief
    settled: float | None = None  # when the outcome was known


class Pause(Struct, frozen=True, kw_only=True):
    """A workload's failures, and for how long it is left alone. Times are Unix seconds."""

    workload: WorkloadRef
    strikes: int  # failures, less successes since
    began: float  # when the last failure was seen
    until: float


def workload_of(pod: ClusterPod, workloads: Workloads) -> WorkloadRef:
    """The workload of a pod: the outermost controller that is known; a bare pod by itself."""
    known = workloads.of(pod)
    if known is not None:
        return WorkloadRef(known.kind, known.namespace, known.name, known.uid)
    owner = controller_of(pod.owners)
    if owner is not None:
        return WorkloadRef(owner.kind, pod.namespace, owner.name, owner.uid)
    return WorkloadRef(BARE, pod.namespace, pod.name)


SHARE = 0.5  # of the predicted relief that has to be measured
MIN_RELIEF = 0.01  # of what the node has; less may be noise


def baseline(report: UsageReport, pod: str, is_neighbour: Callable[[str], bool]) -> Baseline | None:
    """Return the part of a report that is compared; None: the report lacks the node's usage.

    pod: the evicted one, as namespace/name. is_neighbour gets the other pods in the same form.
    """
    if report.update_time is None or not _is_sane(report.usage):
        return None
    own, cores, memory = None, 0.0, 0.0
    for metric in report.pods:
        key = f"{metric.namespace}/{metric.name}"
        if not _is_sane(metric.usage):
            continue
        if key == pod:
            own = metric.usage
        elif is_neighbour(key):
            cores += metric.usage.cores
            memory += metric.usage.memory_bytes
    assert report.usage is not None  # noqa: S101 - it is sane
    return Baseline(
        time=report.update_time,
        node=report.usage,
        system=_system(report),
        neighbours=ReportedUsage(cores, memory) if report.pods else None,
        pod=own,
    )


def measured_relief(before: Baseline, after: Baseline) -> ReportedUsage:
    """Return the usage that the node lost, in cores and bytes; negative: its usage grew."""
    had_system = before.system is not None and after.system is not None
    had_neighbours = before.neighbours is not None and after.neighbours is not None
    one = _footprint(before, system=had_system, neighbours=had_neighbours)
    other = _footprint(after, system=had_system, neighbours=had_neighbours)
    return ReportedUsage(one.cores - other.cores, one.memory_bytes - other.memory_bytes)


def is_relieved(
    predicted: ReportedUsage, measured: ReportedUsage, room: ReportedUsage
) -> bool | None:
    """Whether at least half of what was predicted was measured, of each resource that counts.

    room: the node's allocatable. A resource counts when at least 1 % of that was predicted; None:
    none does.
    """
    counted = [
        found >= wanted * SHARE
        for wanted, found, most in (
            (predicted.cores, measured.cores, room.cores),
            (predicted.memory_bytes, measured.memory_bytes, room.memory_bytes),
        )
        if wanted > 0 and wanted >= most * MIN_RELIEF
    ]
    return all(counted) if counted else None


def _system(report: UsageReport) -> ReportedUsage | None:
    """Return the usage outside of pods; None: the report does not have it."""
    system, host = report.system_usage, report.host_usage
    if system is None or not _is_sane(system):
        return None
    if host is None or not _is_sane(host):
        return system
    return ReportedUsage(system.cores + host.cores, system.memory_bytes + host.memory_bytes)


def _footprint(found: Baseline, *, system: bool, neighbours: bool) -> ReportedUsage:
    cores, memory = found.node.cores, found.node.memory_bytes
    for part, counts in ((found.system, system), (found.neighbours, neighbours)):
        if part is not None and counts:
            cores -= part.cores
            memory -= part.memory_bytes
    return ReportedUsage(cores, memory)


def _is_sane(usage: ReportedUsage | None) -> bool:
    """Whether a usage can be one."""
    return usage is not None and all(
        math.isfinite(value) and value >= 0 for value in (usage.cores, usage.memory_bytes)
    )


FIRST_PAUSE = 600.0  # seconds
MAX_PAUSE = 86_400.0  # seconds
FORGOTTEN_AFTER = 86_400.0  # seconds after the end of a pause, without another failure
_MAX_STRIKES = 8  # more would not make the pause longer


def after_failure(
    pause: Pause | None, workload: WorkloadRef, evicted_at: float, now: float
) -> Pause:
    """The pause after an eviction that failed: 10 minutes, twice as long each time, to 24 hours.

    Evictions from before the pause began, which were under way already, do not lengthen it.
    """
    if pause is not None and evicted_at <= pause.began:
        return pause
    strikes = min(1 if pause is None else pause.strikes + 1, _MAX_STRIKES)
    until = now + min(FIRST_PAUSE * 2 ** (strikes - 1), MAX_PAUSE)
    if pause is not None:  # successes since may have taken back what it counted
        until = max(until, pause.until)
    return Pause(workload=workload, strikes=strikes, began=now, until=until)


def after_success(pause: Pause, evicted_at: float) -> Pause | None:
    """The pause after an eviction that relieved: one failure less counts. None: it is over.

    Evictions from before the pause began do not shorten it.
    """
    if evicted_at <= pause.began:
        return pause
    if pause.strikes <= 1:
        return None
    return Pause(
        workload=pause.workload,
        strikes=pause.strikes - 1,
        began=pause.began,
        until=pause.until,
    )


def is_forgotten(pause: Pause, now: float) -> bool:
    """Whether its failures are too long ago to count any more."""
    return now >= pause.until + FORGOTTEN_AFTER


VERSION = 1
MAX_BYTES = 640 << 10  # a ConfigMap holds 1 MiB
MAX_ENTRIES = 2000
MAX_PAUSES = 2000
_WHERE = "ledger"


class LedgerDocument(Struct, frozen=True):
    """The content of a ledger: entries, the oldest first, and pauses."""

    entries: Annotated[tuple[Entry, ...], Meta(max_length=MAX_ENTRIES)] = ()
    pauses: Annotated[tuple[Pause, ...], Meta(max_length=MAX_PAUSES)] = ()
    version: int = VERSION


class _Version(Struct):
    version: int


class _Written(Struct):
    version: int
    pauses: list[Raw]
    entries: list[Raw]


_DECODER = msgspec.json.Decoder(LedgerDocument)
_VERSION = msgspec.json.Decoder(_Version)
_encode = msgspec.json.Encoder().encode


def to_text(document: LedgerDocument) -> str:
    """Return the JSON text. Of what does not fit, the oldest is left out, settled entries first."""
    pauses = sorted(document.pauses, key=lambda one: one.until, reverse=True)[:MAX_PAUSES]
    room = MAX_BYTES - 100
    texts = _fitting(map(_encode, pauses), room // 2)
    room -= sum(len(text) + 1 for text in texts)
    ranked = sorted(
        document.entries, key=lambda one: (one.outcome is Outcome.PENDING, one.at), reverse=True
    )[:MAX_ENTRIES]
    fitting = _fitting(map(_encode, ranked), room)
    kept = sorted(zip(ranked, fitting, strict=False), key=lambda one: (one[0].at, one[0].uid))
    written = _Written(VERSION, [Raw(text) for text in texts], [Raw(text) for _, text in kept])
    return _encode(written).decode()


def from_text(text: str) -> LedgerDocument:
    """Return the document of a text.

    Raises:
        InvalidObject: it is malformed, or of another version.
    """
    try:
        version = _VERSION.decode(text).version
        if version != VERSION:
            raise InvalidObject(f"{_WHERE}: version", wanted=str(VERSION), found=version)
        return _DECODER.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as err:
        raise InvalidObject(_WHERE, wanted="what this program has written", found=str(err)) from err


def merge_entries(one: Iterable[Entry], other: Iterable[Entry]) -> list[Entry]:
    """The entries of two ledgers, each pod once, the oldest first; a settled one counts."""
    merged: dict[str, Entry] = {}
    for entry in (*one, *other):
        known = merged.get(entry.uid)
        if known is None or _rank(entry) > _rank(known):
            merged[entry.uid] = entry
    return sorted(merged.values(), key=lambda entry: (entry.at, entry.uid))


def merge_pauses(
    one: Mapping[WorkloadRef, Pause], other: Mapping[WorkloadRef, Pause]
) -> dict[WorkloadRef, Pause]:
    """The pauses of two ledgers, of each workload the longest."""
    merged = dict(one)
    for workload, pause in other.items():
        known = merged.get(workload)
        if known is None or _weight(pause) > _weight(known):
            merged[workload] = pause
    return merged


def _fitting(texts: Iterable[bytes], room: int) -> list[bytes]:
    """The first texts that fit into so many bytes, with a comma each."""
    fitting = []
    for text in texts:
        room -= len(text) + 1
        if room < 0:
            break
        fitting.append(text)
    return fitting


def _rank(entry: Entry) -> tuple[float, bool, float, bytes]:
    """Order of two entries of one pod: the later eviction, settled, the later news."""
    news = entry.settled or entry.left or (entry.before.time if entry.before else 0.0)
    return entry.at, entry.outcome is not Outcome.PENDING, news, _encode(entry)


def _weight(pause: Pause) -> tuple[float, int, float]:
    return pause.until, pause.strikes, pause.began
