"""Which pods may be on their way at a time: of a cluster, a node, a namespace, a workload.

Source: Koordinator, pkg/descheduler/controllers/migration/arbitrator/filter.go.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from koord_descheduler.plugin import ClusterPod, ClusterState, controller_of
from koord_descheduler_plugins.migration.amounts import has_enough_replicas, most_of
from koord_descheduler_plugins.migration.jobtable import JobTable, has_begun

Amount = int | str | None

_KNOWN_CONTROLLERS = frozenset({"ReplicationController", "ReplicaSet", "Deployment", "CloneSet"})
"""Controllers of which none can be there without being known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuotaLimits:
    """Most pods at a time. None: no limit; see most_of for what counts per workload."""

    globally: int | None = None
    per_node: int | None = None
    per_namespace: int | None = None
    per_workload: Amount = None
    unavailable: Amount = None
    check_migrating: bool = True  # of a workload
    check_unavailable: bool = True  # of a workload
    check_replicas: bool = True  # a workload must have replicas left


class Quotas:
    """Counts jobs against limits. Belongs to the event loop."""

    def __init__(self, limits: QuotaLimits, jobs: JobTable, cluster: ClusterState) -> None:
        self.limits = limits
        self._jobs = jobs
        self._cluster = cluster

    def replicas(self, pod: ClusterPod) -> int | None:
        """Replicas of a pod's workload; None: no controller owns it.

        A controller of a kind that is not followed has as many as it has pods that have not ended.
        A ReplicaSet whose Deployment is gone has none, as its pods go with it.
        """
        controller = controller_of(pod.owners)
        if controller is None:
            return None
        workload = self._cluster.workloads.of(pod)
        if workload is not None:
            owner = workload.controller
            return 0 if owner is not None and owner.kind == "Deployment" else workload.replicas
        if controller.kind in _KNOWN_CONTROLLERS:
            return 0
        return sum(not one.finished for one in self._cluster.workloads.siblings(pod))

    def few_replicas(self, pod: ClusterPod) -> str:
        """Why the workload of a pod cannot do without it, as the end of a sentence; "": it can."""
        limits, replicas = self.limits, self.replicas(pod)
        if replicas is None or not limits.check_replicas:
            return ""
        if has_enough_replicas(replicas, limits.per_workload, limits.unavailable):
            return ""
        return f"its workload has {replicas} replicas, of which none could stay"

    def exceeded(self, pod: ClusterPod, *, arbitrating: bool) -> str:
        """Which quota does not let a pod leave now, as the end of a sentence; "": none.

        arbitrating: only jobs that have begun count, else also those that wait. The pod itself
        never counts.
        """
        if not self._jobs.active and not self.limits.check_unavailable:
            return ""
        return (
            self._globally(pod, arbitrating)
            or self._on_node(pod, arbitrating)
            or self._in_namespace(pod, arbitrating)
            or self._of_workload(pod, arbitrating)
        )

    def _globally(self, pod: ClusterPod, begun: bool) -> str:
        most = self.limits.globally
        if not most or most < 0:
            return ""
        count = self._jobs.count(begun=begun) - self._own(pod, begun)
        return (
            f"{count} pods are migrating, maxMigratingGlobally is {most}" if count >= most else ""
        )

    def _on_node(self, pod: ClusterPod, begun: bool) -> str:
        most = self.limits.per_node
        if not most or most < 0 or not pod.node or self._jobs.count(begun=begun) < most:
            return ""
        count = sum(
            self._jobs.has(other, begun=begun)
            for other in self._cluster.pods_of_node(pod.node)
            if other.uid != pod.uid
        )
        text = f"{count} pods of node {pod.node} are migrating, maxMigratingPerNode is {most}"
        return text if count >= most else ""

    def _in_namespace(self, pod: ClusterPod, begun: bool) -> str:
        most = self.limits.per_namespace
        if not most or most < 0:
            return ""
        own = self._own(pod, begun, in_namespace=True)
        count = self._jobs.count(begun=begun, namespace=pod.namespace) - own
        text = f"{count} pods of namespace {pod.namespace} are migrating"
        return f"{text}, maxMigratingPerNamespace is {most}" if count >= most else ""

    def _of_workload(self, pod: ClusterPod, begun: bool) -> str:
        limits = self.limits
        if not limits.check_migrating and not limits.check_unavailable:
            return ""
        replicas = self.replicas(pod)
        if replicas is None:
            return ""
        jobs = self._jobs.count(begun=begun, namespace=pod.namespace)
        missing = [one for one in self._cluster.workloads.unavailable(pod) if one.uid != pod.uid]
        most_migrating = most_of(replicas, limits.per_workload)
        most_missing = most_of(replicas, limits.unavailable)
        if jobs < most_migrating and jobs + len(missing) < most_missing:
            return ""  # whichever pods the jobs are for
        migrating = {one.key for one in self._migrating(pod, begun)}
        if limits.check_migrating and migrating and len(migrating) >= most_migrating:
            return (
                f"{len(migrating)} pods of its workload are migrating, at most {most_migrating} may"
            )
        count = len(migrating | {one.key for one in missing})
        if not limits.check_unavailable or count < most_missing:
            return ""
        text = f"{count} pods of its workload are migrating or not ready"
        return f"{text}, at most {most_missing} may be"

    def _migrating(self, pod: ClusterPod, begun: bool) -> Iterator[ClusterPod]:
        """The other pods of the same controller that are on their way and still there."""
        controller = controller_of(pod.owners)
        jobs = self._jobs.of_namespace(pod.namespace)
        if controller is None or not jobs:
            return
        siblings = self._cluster.workloads.siblings(pod)
        if len(siblings) <= len(jobs):
            for one in siblings:
                if one.uid != pod.uid and self._jobs.has(one, begun=begun):
                    yield one
            return
        for job in jobs:
            other = self._cluster.pod(job.pod.key)
            if other is None or other.uid == pod.uid or not (has_begun(job) or not begun):
                continue
            owner = controller_of(other.owners)
            if owner is not None and owner.uid == controller.uid:
                yield other

    def _own(self, pod: ClusterPod, begun: bool, *, in_namespace: bool = False) -> int:
        """How many jobs that are counted are the pod's own."""
        return sum(
            (has_begun(job) or not begun)
            and (not in_namespace or job.pod.namespace == pod.namespace)
            for job in self._jobs.of_pod(pod.uid, pod.key)
        )
