"""Facts of the ledger: one entry for each eviction, one pause for each workload that has one.

They are what the API keeps, as JSON; field names are the file format, see document.
"""

from enum import StrEnum

from msgspec import Struct

from koord.cluster.facts import ClusterPod
from koord.cluster.usage import Usage
from koord.cluster.workloads import Workloads, controller_of

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
    node: Usage
    system: Usage | None = None  # None: the report does not have it
    neighbours: Usage | None = None  # sum of the pods that are compared with; None: as above
    pod: Usage | None = None  # of the evicted pod; None: the report does not have it


class Outcome(StrEnum):
    """The state of an entry."""

    PENDING = "pending"  # the pod is there, or reports still contain it
    RELIEVED = "relieved"  # at least half of the predicted relief was measured
    NOT_RELIEVED = "not-relieved"  # less
    RETURNED = "returned"  # a new pod of the workload runs on the same node
    UNKNOWN = "unknown"  # the pod never left, no reports came, or too little was predicted
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
    predicted: Usage | None = None  # relief; None: load was not why it was evicted
    newest: float | None = None  # creation of the workload's newest pod at that time
    before: Baseline | None = None  # the last report while the pod was there; None: there was none
    left: float | None = None  # when the pod was seen to be gone
    outcome: Outcome = Outcome.PENDING
    measured: Usage | None = None  # relief
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
