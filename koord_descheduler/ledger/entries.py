"""The document of the ledger: evictions with their outcomes, and pauses of workloads."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from koord.cluster.facts import ReportedUsage
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
