"""LoadAwareScheduling: keeps pods off nodes that are busy, and prefers those that are idle."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import Any

import numpy as np

from koord.api.annotations import (
    AFTER_INITIALIZED,
    AFTER_SCHEDULED,
    SCALING_FACTORS,
    USAGE_THRESHOLDS,
)
from koord.api.reservation import RESERVE_POD
from koord.plugin.args import takes_args
from koord_scheduler.plugin import (
    NODE,
    NODE_METRIC,
    POD,
    Action,
    ClusterEvent,
    ClusterNode,
    ClusterPod,
    CycleState,
    EnqueueExtensions,
    EventResource,
    FilterPlugin,
    Handle,
    HintedEvent,
    NodeInfo,
    PreFilterPlugin,
    QueueingHint,
    ReservePlugin,
    ScorePlugin,
    Status,
    UsageReport,
    View,
    reads,
)
from koord_scheduler.plugin.koordinator import APIServiceProvider, Endpoint, PluginRequest
from koord_scheduler.plugin.vector import (
    Mask,
    Scores,
    VectorFilterPlugin,
    VectorScorePlugin,
    Verdicts,
)
from koord_scheduler_plugins.load_aware.estimates import (
    Assigned,
    Estimator,
    LoadAwareSchedulingArgs,
    Vector,
)
from koord_scheduler_plugins.load_aware.loads import NodeLoad, Reason, Rules
from koord_scheduler_plugins.load_aware.table import LoadTable

Json = dict[str, Any]


def node_document(load: NodeLoad | None, resources: Sequence[str]) -> Json:
    """Return the pods that are counted, the oldest first, and their sums; {}: not known.

    The sums are there only if the node has a NodeMetric.
    """
    if load is None or (not load.assigned and load.reported is None):
        return {}
    pods = sorted(load.assigned.values(), key=lambda one: (one.since, one.key))
    found: Json = {"pods": [_pod(one) for one in pods]}
    if load.reported is None:
        return found
    usages = [(one, *load.usage_of(one)) for one in pods]
    estimated = [one for one in usages if one[0].estimate is not None]
    lacking = [one for one, usage, _ in estimated if any(load.lack(one, usage) or ())]
    doubted = [
        one
        for one, usage, as_prod in estimated
        if one.is_prod and usage is not None and not as_prod
    ]
    prod = [one for one in lacking if one.is_prod]
    prod += [one for one in doubted if one not in prod]
    return {
        **found,
        "prodUsage": _amounts(load.prod_usage(), resources),
        "nodeDelta": _amounts(load.node_delta, resources),
        "prodDelta": _amounts(load.prod_delta(), resources),
        "nodeEstimated": _amounts(load.estimated(), resources),
        "nodeDeltaPods": _keys(lacking),
        "prodDeltaPods": _keys(prod),
        "nodeEstimatedPods": _keys([one for one, _, _ in estimated]),
    }


def _pod(one: Assigned) -> Json:
    pod = one.pod
    meta = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
    found: Json = {"pod": {"metadata": meta, "spec": {"nodeName": pod.node}}}
    if isfinite(one.since):
        at = datetime.fromtimestamp(one.since, UTC)
        found["timestamp"] = at.isoformat().replace("+00:00", "Z")
    return found


def _amounts(vector: Sequence[int], resources: Sequence[str]) -> Mapping[str, str]:
    return {
        name: f"{amount}m" if name == "cpu" else str(amount)
        for name, amount in zip(resources, vector, strict=True)
    }


def _keys(pods: Sequence[Assigned]) -> list[str]:
    return sorted(one.key for one in pods)


_NODES_AT_ONCE = 8  # counted at the start without a pause: 2 ms, with 30 pods each
_CHANGES_BEHIND = 64  # of pods and nodes: what a cycle has to catch up on takes 2 ms at most
_NODE_METRICS = "nodemetrics.v1alpha1.slo.koordinator.sh"


@takes_args(LoadAwareSchedulingArgs)
@reads(
    pod_annotations={
        SCALING_FACTORS: 4096,
        AFTER_SCHEDULED: 256,
        AFTER_INITIALIZED: 256,
        RESERVE_POD: 256,
    },
    node_annotations={USAGE_THRESHOLDS: 4096},
)
class LoadAwareScheduling(
    PreFilterPlugin,
    FilterPlugin,
    VectorFilterPlugin,
    ScorePlugin,
    VectorScorePlugin,
    ReservePlugin,
    EnqueueExtensions,
    APIServiceProvider,
):
    """Rejects and scores nodes by their load with the pod on them."""

    def __init__(self, args: LoadAwareSchedulingArgs, handle: Handle) -> None:
        services = handle.services
        self._resources = args.resources
        self._rules = Rules(args)
        self._estimator = Estimator(args)
        self.table = LoadTable(
            self._rules, self._estimator, services.cluster.reports, services.clock
        )
        weights = self._rules.weights
        self._weights = np.array(weights, np.float64)
        self._weight = float(sum(weights) + self._rules.dominant)
        self.keeps_up_after = _CHANGES_BEHIND
        self._started = False
        self._behind = 0  # changes since the table was last caught up
        self._asked: tuple[ClusterPod, tuple[Vector, bool]] | None = None
        services.changes.subscribe(NODE_METRIC, self._on_report)
        services.changes.subscribe(POD, self._on_pod)
        services.changes.subscribe(NODE, self._on_node)
        services.hooks.add("LoadAwareScheduling", self._catch_up)
        self._services = services

    def endpoints(self) -> Iterable[Endpoint]:
        return (Endpoint("GET", "/node/{node}", self._node_document),)

    def events_to_register(self) -> Iterable[HintedEvent]:
        node = Action.ADD | Action.UPDATE_NODE_ALLOCATABLE | Action.UPDATE_NODE_ANNOTATION
        return (
            HintedEvent(ClusterEvent(EventResource.POD, Action.DELETE), _deletion_helps),
            HintedEvent(ClusterEvent(_NODE_METRICS, Action.ALL), self._report_helps),
            HintedEvent(ClusterEvent(EventResource.NODE, node)),
        )

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        self.table.follow(nodes)
        return (self.table.filter_version, _of_daemon_set(pod), *self._incoming(pod))

    def score_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        self.table.follow(nodes)
        return (self.table.score_version, *self._incoming(pod))

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        """Pods of DaemonSets go to their nodes, however busy those are."""
        return Status.skip() if _of_daemon_set(pod) else None

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return _of_daemon_set(pod)

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        if _of_daemon_set(pod):
            return None
        self.table.follow(node.view)
        entry = self.table.entry(node.view, node.row)
        estimate, is_prod = self._incoming(pod)
        number = self._rules.rejection(entry.judgement, estimate, is_prod=is_prod)
        return self._rules.rejections[number - 1] if number else None

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask | Verdicts:
        if _of_daemon_set(pod):
            return np.ones(len(nodes), np.bool_)
        self.table.follow(nodes)
        estimate, is_prod = self._incoming(pod)
        adds = np.array(estimate, np.int64)[:, np.newaxis]
        full: Mask = adds >= self.table.room(is_prod=is_prod)
        rows_with_more = self.table.with_more_pods(nodes)
        if not rows_with_more and not full.any():
            return np.ones(len(nodes), np.bool_)
        numbers = np.zeros(len(nodes), np.int32)
        for resource in reversed(range(len(estimate))):
            numbers[full[resource]] = resource + 1
        rows = np.flatnonzero(numbers)
        reasons = self.table.reasons(is_prod=is_prod)[rows]
        numbers[rows] += len(estimate) * (reasons == Reason.AGGREGATED)
        numbers[rows[reasons == Reason.EXPIRED]] = len(self._rules.rejections)
        for row in rows_with_more:
            judgement = self.table.entry(nodes, row).judgement
            numbers[row] = self._rules.rejection(judgement, estimate, is_prod=is_prod)
        return Verdicts(numbers, self._rules.rejections)

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        self.table.follow(node.view)
        entry = self.table.entry(node.view, node.row)
        estimate, is_prod = self._incoming(pod)
        return self._rules.score(entry.rules, entry.judgement, estimate, is_prod=is_prod)

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        if not self._weight:
            return np.zeros(len(nodes), np.int64)
        self.table.follow(nodes)
        estimate, is_prod = self._incoming(pod)
        shares = self.table.spare(is_prod=is_prod) - 100.0 * np.array(estimate)[:, np.newaxis]
        shares /= self.table.capacity
        np.floor(shares, out=shares)
        np.maximum(shares, 0.0, out=shares)
        total = self._weights @ shares
        if self._rules.dominant:
            shares[self.table.lacking] = np.inf
            total += self._rules.dominant * shares.min(axis=0)
        total /= self._weight
        scores: Scores = total.astype(np.int64)
        for row in self.table.with_more_pods(nodes):
            entry = self.table.entry(nodes, row)
            scores[row] = self._rules.score(entry.rules, entry.judgement, estimate, is_prod=is_prod)
        return scores

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        """Nothing: an assumed pod is on its node in the next view."""
        return None

    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        """Nothing: a pod that is forgotten is not on the node in the next view."""

    async def _node_document(self, request: PluginRequest) -> object:
        self.table.follow(self._services.cluster.view())
        entry = self.table.known(request.parameters["node"])
        return node_document(None if entry is None else entry.load, self._resources)

    def _incoming(self, pod: ClusterPod) -> tuple[Vector, bool]:
        """The estimate of a pod, and whether it is a prod pod; asked several times in a cycle."""
        if self._asked is None or self._asked[0] is not pod:
            self._asked = pod, self._estimator.incoming(pod)
        return self._asked[1]

    async def _catch_up(self) -> None:
        """Count the pods of all nodes, some nodes at a time so that all else goes on."""
        while not self.table.catch_up(self._services.cluster.view(), _NODES_AT_ONCE):
            await self._services.clock.sleep(0)
        self._started = True

    def _on_report(self, old: UsageReport | None, new: UsageReport | None) -> None:
        report = new or old
        if report is not None:
            self.table.take_report(report.node)

    def _on_pod(self, old: ClusterPod | None, new: ClusterPod | None) -> None:
        if old is not None and old.node and not old.finished and not _is_still_there(old, new):
            self.table.leave(old)
        self._keep_up()

    def _on_node(self, old: ClusterNode | None, new: ClusterNode | None) -> None:
        if old is not None and new is None:
            self.table.forget(old.name)
        self._keep_up()

    def _keep_up(self) -> None:
        """Count anew what has changed, while there is no cycle that does: 5,000 nodes take 0.1 s.

        After leave: what has left counts from then on.
        """
        self._behind += 1
        if self._started and self._behind > self.keeps_up_after:
            self._behind = 0
            self.table.catch_up(self._services.cluster.view(), _CHANGES_BEHIND)

    def _report_helps(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        """With it, the node passes."""
        if not isinstance(new, UsageReport):
            return QueueingHint.QUEUE
        self.table.take_report(new.node)
        entry = self.table.known(new.node)
        if entry is None:
            return QueueingHint.QUEUE
        estimate, is_prod = self._incoming(pod)
        number = self._rules.rejection(entry.judgement, estimate, is_prod=is_prod)
        return QueueingHint.SKIP if number else QueueingHint.QUEUE


def _of_daemon_set(pod: ClusterPod) -> bool:
    return any(one.kind == "DaemonSet" for one in pod.owners)


def _is_still_there(old: ClusterPod, new: ClusterPod | None) -> bool:
    """Whether a pod that was on a node is on it."""
    same = new is not None and new.uid == old.uid and new.node == old.node
    return same and new is not None and not new.finished


def _deletion_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    """A pod that was on a node is estimated there no more."""
    was_placed = isinstance(old, ClusterPod) and old.node
    return QueueingHint.QUEUE if was_placed else QueueingHint.SKIP
