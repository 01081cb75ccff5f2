"""A recorded cluster as it would have been with other evictions.

The simulated cluster is the recorded one but for pods that are elsewhere: each of them stands for a
pod of the record, whose measured usage it takes along. Two cases make one:

* An eviction that the record does not have: the pod leaves its node for the one that fits and has
  the lowest load. Its pod in the record goes on where it was.
* An eviction of the record that is not done here: the pod stays. It stands for its replacement in
  the record, from when that appears.

Usage moves at once, although a NodeMetric is a mean over five minutes: for so long after an
eviction the figures of the record still contain what has left.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from msgspec.structs import replace as replaced

from koord.cluster import kinds
from koord.cluster.facts import ClusterPod, ReportedAggregate, ReportedPodUsage, ReportedUsage
from koord.cluster.kinds import UsageReport
from koord.cluster.predicates import fits
from koord.cluster.state import ClusterState
from koord_descheduler.backtest.records import Change, Eviction, Tick
from koord_descheduler.ledger.entries import WorkloadRef, workload_of

REPLACED_WITHIN = 600.0  # seconds; a pod without replacement by then has none: the workload shrank
LEAVES_WITHIN = 1800.0  # seconds; what leaves later after an eviction does so for another reason
NOTHING = ReportedUsage(0.0, 0.0)


@dataclass(slots=True)
class MovedPod:
    """A pod that is not where the record has it."""

    pod: ClusterPod  # as it is here; node "": it fits nowhere
    workload: WorkloadRef
    metric: ReportedPodUsage  # the last one in the record
    recorded: str = ""  # key of the pod in the record that it stands for; "": none at the moment
    home: str = ""  # the node of that one
    alone_since: float = 0.0  # Unix seconds; since when it stands for none


class SimulatedCluster:
    """Follows a record, and what is evicted here. Times are Unix seconds."""

    def __init__(self, recorded: Mapping[str, Eviction], window: float) -> None:
        """recorded has the evictions of the record by uid of the pod.

        One that is done here at most window seconds from then is the same.
        """
        self.state = ClusterState()
        self.followed: set[str] = set()  # uids of pods whose eviction is the record's
        self._recorded = recorded
        self._window = window
        self._uids: dict[str, str] = {}  # of the pods in the record, by key
        self._elsewhere: dict[str, MovedPod] = {}  # by key of the pod as it is here
        self._standing_for: dict[str, MovedPod] = {}  # by key of the pod in the record
        self._leaving: dict[
            str, str
        ] = {}  # nodes of pods that shut down in the record only, by key
        self._load: dict[
            str, ReportedUsage
        ] = {}  # of nodes, with what has come and gone since the report
        self._moves = 0

    @property
    def elsewhere(self) -> int:
        """Pods that are not where the record has them."""
        return len(self._elsewhere)

    def unplaced(self) -> list[str]:
        """Pods that fit nowhere, by namespace/name."""
        return [key for key, one in self._elsewhere.items() if not one.pod.node]

    def take(self, tick: Tick) -> list[UsageReport]:
        """Take over a moment of the record; return its reports as they are here."""
        for change in tick.changes:
            if change.kind is kinds.POD:
                self._take_pod(change, tick.at)
            elif change.item is None:
                self.state.remove(change.kind, change.key)
                if change.kind is kinds.NODE:
                    self._load.pop(change.key, None)
            else:
                self.state.put(change.kind, change.item)
        self._settle(tick.at)
        return [self._take_report(report) for report in tick.reports]

    def evict(self, key: str, now: float) -> str:
        """Evict a pod here; return the node where it comes up, "" where that is not known now.

        That is so if the eviction is the record's, too, or the pod fits nowhere.
        """
        pod = self.state.pod(key)
        if pod is None:
            return ""
        known = self._elsewhere.get(key)
        recorded = self._recorded.get(pod.uid)
        if known is None and recorded is not None and abs(recorded.at - now) <= self._window:
            self.followed.add(pod.uid)
            return ""
        if known is None:
            known = self._elsewhere[key] = self._standing_for[key] = self._here(pod)
            known.recorded, known.home = key, pod.node
        self._moves += 1
        origin = pod.uid.partition("~")[0]
        fresh = replaced(pod, uid=f"{origin}~{self._moves}", created=now, started=now)
        self._place(known, fresh, pod.node)
        return known.pod.node

    def _take_pod(self, change: Change, now: float) -> None:
        pod: ClusterPod | None = change.item
        old = self._uids.get(change.key)
        if old is not None and (pod is None or pod.uid != old):
            self._leaves(change.key, old, now)
        if pod is None:
            return
        is_new = self._uids.get(change.key) is None
        self._uids[change.key] = pod.uid
        if pod.deleting and self._is_only_recorded(pod.uid, now):
            self._stays(change.key, now)
            self._leaving[change.key] = pod.node
            return
        one = self._standing_for.get(change.key)
        if one is None and is_new:
            one = self._adopted(pod)
        if one is None:
            self.state.put(kinds.POD, pod)
            return
        one.home = pod.node
        if one.pod.key == change.key and one.pod.uid.partition("~")[0] == pod.uid:
            mine = one.pod
            one.pod = replaced(
                pod, uid=mine.uid, node=mine.node, created=mine.created, started=mine.started
            )
            if one.pod.node:
                self.state.put(kinds.POD, one.pod)

    def _leaves(self, key: str, uid: str, now: float) -> None:
        """A pod of the record is gone."""
        del self._uids[key]
        if self._leaving.pop(key, None) is not None:
            return
        if self._is_only_recorded(uid, now):
            self._stays(key, now)
        elif (one := self._standing_for.pop(key, None)) is not None:
            self._forget(one)
        else:
            self.state.remove(kinds.POD, key)

    def _is_only_recorded(self, uid: str, now: float) -> bool:
        """Whether a pod leaves because the record evicts it, which did not happen here."""
        eviction = self._recorded.get(uid)
        if eviction is None or uid in self.followed:
            return False
        return now - eviction.at <= LEAVES_WITHIN

    def _stays(self, key: str, now: float) -> None:
        """A pod of the record leaves there only: here it waits for its replacement."""
        if key in self._leaving:
            return
        one = self._standing_for.pop(key, None)
        if one is None:
            pod = self.state.pod(key)
            if pod is None:
                return
            one = self._elsewhere[key] = self._here(pod)
        one.recorded, one.home, one.alone_since = "", "", now

    def _here(self, pod: ClusterPod) -> MovedPod:
        return MovedPod(pod, workload_of(pod, self.state.workloads), self._metric_of(pod))

    def _adopted(self, pod: ClusterPod) -> MovedPod | None:
        """The pod here that a new one in the record is the replacement of; None: of none."""
        alone = [one for one in self._elsewhere.values() if not one.recorded]
        if not alone:
            return None
        workload = workload_of(pod, self.state.workloads)
        for one in alone:
            if one.workload == workload:
                one.recorded = pod.key
                self._standing_for[pod.key] = one
                return one
        return None

    def _settle(self, now: float) -> None:
        """Forget pods without replacement, and place those that fitted nowhere."""
        for one in list(self._elsewhere.values()):
            if not one.recorded and now > one.alone_since + REPLACED_WITHIN:
                self._forget(one)
            elif not one.pod.node:
                self._place(one, one.pod, "")

    def _forget(self, one: MovedPod) -> None:
        self._elsewhere.pop(one.pod.key, None)
        self._standing_for.pop(one.recorded, None)
        if one.pod.node:
            self.state.remove(kinds.POD, one.pod.key)
            self._shift(one.pod.node, one.metric.usage, -1)

    def _place(self, one: MovedPod, pod: ClusterPod, leaves: str) -> None:
        """Move a pod to the node that fits and has the lowest load then; not to the one it leaves.

        A load is the larger one of the shares of cpu and memory.
        """
        self.state.remove(kinds.POD, pod.key)
        if leaves:
            self._shift(leaves, one.metric.usage, -1)
        target = self._target(pod, one.metric.usage, leaves)
        one.pod = replaced(pod, node=target)
        if target:
            self.state.put(kinds.POD, one.pod)
            self._shift(target, one.metric.usage, 1)

    def _target(self, pod: ClusterPod, usage: ReportedUsage, leaves: str) -> str:
        view = self.state.view()
        loads = []
        for row in np.flatnonzero(fits(replaced(pod, node=""), view).mask).tolist():
            node = view.node(row)
            load = self._load.get(node.name)
            if node.name == leaves or load is None or not node.ready:
                continue
            room = dict(node.allocatable)
            cpu = (load.cores + usage.cores) * 1000 / max(room.get("cpu", 0), 1)
            memory = (load.memory_bytes + usage.memory_bytes) / max(room.get("memory", 0), 1)
            loads.append((max(cpu, memory), node.name))
        return min(loads)[1] if loads else ""

    def _metric_of(self, pod: ClusterPod) -> ReportedPodUsage:
        """The usage of a pod by the last report of its node."""
        report = self.state.reports.get(pod.node)
        for metric in report.pods if report is not None else ():
            if (metric.namespace, metric.name) == (pod.namespace, pod.name):
                return metric
        return ReportedPodUsage(name=pod.name, namespace=pod.namespace, usage=NOTHING)

    def _shift(self, node: str, usage: ReportedUsage, sign: int) -> None:
        load = self._load.get(node)
        if load is not None:
            self._load[node] = _plus(load, usage, sign)

    def _take_report(self, report: UsageReport) -> UsageReport:
        """The report as it is here; it becomes the state's."""
        found = self._moved(report) if self._elsewhere else report
        self.state.put(kinds.NODE_METRIC, found)
        if found.usage is not None:
            self._load[found.node] = found.usage
        return found

    def _moved(self, report: UsageReport) -> UsageReport:
        """Return the report without the pods that left, and with those that arrived or stayed."""
        pods: list[ReportedPodUsage] = []
        cores = memory = 0.0
        is_changed = False
        for metric in report.pods:
            key = f"{metric.namespace}/{metric.name}"
            one = self._standing_for.get(key)
            if one is not None and one.home == report.node:
                one.metric = replaced(metric, name=one.pod.name, namespace=one.pod.namespace)
            elif self._leaving.get(key) != report.node:
                pods.append(metric)
                continue
            is_changed = True
            cores -= metric.usage.cores
            memory -= metric.usage.memory_bytes
        for one in self._elsewhere.values():
            if one.pod.node == report.node:
                is_changed = True
                pods.append(one.metric)
                cores += one.metric.usage.cores
                memory += one.metric.usage.memory_bytes
        if not is_changed:
            return report
        by = ReportedUsage(cores, memory)
        return replace(
            report,
            usage=_shifted(report.usage, by),
            aggregated=tuple(_window(one, by) for one in report.aggregated),
            pods=tuple(pods),
        )


def _window(window: ReportedAggregate, by: ReportedUsage) -> ReportedAggregate:
    """The same shift for each figure: that of a mean."""
    return ReportedAggregate(
        window.duration,
        *(
            _shifted(one, by)
            for one in (window.avg, window.p50, window.p90, window.p95, window.p99)
        ),
    )


def _shifted(usage: ReportedUsage | None, by: ReportedUsage) -> ReportedUsage | None:
    return None if usage is None else _plus(usage, by, 1)


def _plus(usage: ReportedUsage, by: ReportedUsage, sign: int) -> ReportedUsage:
    """Never below nothing."""
    return ReportedUsage(
        max(usage.cores + sign * by.cores, 0.0),
        max(usage.memory_bytes + sign * by.memory_bytes, 0.0),
    )
