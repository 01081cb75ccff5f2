"""Audit of each workload: attempts, results, and records of plugins.

Source: Koordinator, pkg/scheduler/frameworkext/workloadauditor.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from prometheus_client import CollectorRegistry
from prometheus_client import Counter as Metric

from koord.cluster.facts import ClusterPod
from koord.util.clock import Clock

MAX_WORKLOADS = 5000  # those about which something was recorded last


class AuditRecord(StrEnum):
    """A kind of record. The framework records the first five; plugins of jobs the others."""

    ATTEMPT = "attempt"
    SCHEDULED = "scheduled"
    SCHEDULE_FAILURE = "scheduleFailure"
    PREEMPT_NOMINATED = "preemptNominated"  # victims are removed for a pod
    PREEMPT_FAILURE = "preemptFailure"  # PostFilter could make none
    GATED = "gatedByQueueAdmission"
    ADMITTED = "admissionPassed"
    VICTIMS_DELETED = "victimAllDeleted"
    GANG_ATTEMPTED = "gangAllPodsAlreadyAttempted"
    GANG_SATISFIED = "gangMinMemberSatisfied"


@dataclass(slots=True)
class AuditedWorkload:
    """The records of one workload since it was first tried, or since it was forgotten."""

    first: float  # Unix seconds of the first record
    last: float = 0.0  # of the last one
    last_record: AuditRecord | None = None
    counts: Counter[AuditRecord] = field(default_factory=Counter)
    last_pod: str = ""  # namespace/name
    last_message: str = ""  # why the last failure was one


class WorkloadAuditor:
    """Records by workload: the controller of a pod, or the pod itself without one.

    Bounded: of more workloads the one about which nothing was recorded for longest is forgotten.
    Belongs to the event loop.
    """

    def __init__(
        self, registry: CollectorRegistry, clock: Clock, most: int = MAX_WORKLOADS
    ) -> None:
        self._clock = clock
        self._most = most
        self._workloads: OrderedDict[str, AuditedWorkload] = OrderedDict()
        records = Metric(
            "scheduler_workload_audit_records_total",
            "Number of records of the workload auditor, by what was recorded.",
            ["record"],
            registry=registry,
        )
        self._metrics = {one: records.labels(one.value) for one in AuditRecord}

    def record(self, pod: ClusterPod, record: AuditRecord, message: str = "") -> None:
        """Record something about the workload of a pod."""
        key, now = workload_of(pod), self._clock.wall()
        found = self._workloads.get(key)
        if found is None:
            found = self._workloads[key] = AuditedWorkload(first=now)
            if len(self._workloads) > self._most:
                self._workloads.popitem(last=False)
        self._workloads.move_to_end(key)
        found.counts[record] += 1
        found.last, found.last_record, found.last_pod = now, record, pod.key
        if message:
            found.last_message = message
        self._metrics[record].inc()

    def find(self, workload: str) -> AuditedWorkload | None:
        """Return the records of a workload, as workload_of names it; read-only. None: none."""
        return self._workloads.get(workload)

    @property
    def workloads(self) -> Mapping[str, AuditedWorkload]:
        """All of them, the one that was recorded last at the end; only for looking."""
        return self._workloads


def workload_of(pod: ClusterPod) -> str:
    """Kind/namespace/name of the controller of a pod, or of itself."""
    for owner in pod.owners:
        if owner.controller:
            return f"{owner.kind}/{pod.namespace}/{owner.name}"
    return f"Pod/{pod.key}"
