"""LoadAwareScheduling: keeps pods off nodes that are busy, and prefers those that are idle."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import inf, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koord.api.annotations import (
    AFTER_INITIALIZED,
    AFTER_SCHEDULED,
    SCALING_FACTORS,
    USAGE_THRESHOLDS,
)
from koord.api.reservation import RESERVE_POD
from koord.plugin import Clock
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
    ChangedRows,
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
from koord_scheduler_plugins.load_aware.loads import (
    UNBOUNDED,
    NodeAssessment,
    NodeLoad,
    NodeRules,
    Reason,
    Rules,
    is_estimated,
)

_ROWS = 256  # room for so many at first


class NodeEntry:
    """One node: its rules, its load, and what follows from them."""

    __slots__ = (
        "expired",
        "expires",
        "judgement",
        "load",
        "name",
        "node",
        "row",
        "rules",
        "written",
    )

    def __init__(self, node: ClusterNode, rules: NodeRules, load: NodeLoad) -> None:
        self.name = node.name
        self.node = node
        self.rules = rules
        self.load = load
        self.row = -1
        self.written: tuple[Vector, tuple[Reason, Reason], bool] | None = None
        """The rarely changing inputs of the columns of the row; None: not written yet."""
        self.expires = inf  # Unix seconds
        self.expired = False
        self.judgement: NodeAssessment


class LoadTable:
    """Loads by node, and columns of what follows from them. Belongs to one event loop.

    An entry follows its row's generation, and reports as they come. What is filtered changes with
    a row's generation, or is noted in filter_changes; so is what is scored.
    """

    def __init__(
        self, rules: Rules, estimator: Estimator, reports: Mapping[str, UsageReport], clock: Clock
    ) -> None:
        """reports: those there are, by node."""
        # Rows for which a report, or its expiry, has changed what is filtered or scored.
        self.filter_changes, self.score_changes = ChangedRows(), ChangedRows()
        self._rules = rules
        self._estimator = estimator
        self._reports = reports
        self._clock = clock
        self._entries: dict[str, NodeEntry] = {}
        self._rows: list[NodeEntry | None] = []
        self._imagined: dict[int, tuple[int, NodeAssessment, NodeEntry]] = {}  # by row: of what-ifs
        self._view: View | None = None
        self._next_expiry = inf
        self._checked = -inf  # Unix seconds
        kinds = len(rules.resources)
        self._generation = np.full(_ROWS, -1, np.int64)
        # Generations of what-ifs in which no pod has come to the row, beside the actual ones.
        self._unchanged = np.zeros(_ROWS, np.int64)
        self._room = np.full((2, kinds, _ROWS), UNBOUNDED, np.int64)
        self._reasons = np.zeros((2, _ROWS), np.int8)
        self._spare = np.full((2, kinds, _ROWS), -1.0)  # times 100
        self._capacity = np.ones((kinds, _ROWS))
        self._lacking = np.zeros((kinds, _ROWS), np.bool_)

    # Columns; each is for the nodes of the view that was followed last, and read-only to others.

    def room(self, *, is_prod: bool) -> NDArray[np.int64]:
        """The least estimates that are too much; shape (resources, nodes)."""
        return self._room[int(is_prod), :, : len(self._rows)]

    def reasons(self, *, is_prod: bool) -> NDArray[np.int8]:
        """Why those are too much, as Reason numbers it; shape (nodes,)."""
        return self._reasons[int(is_prod), : len(self._rows)]

    def spare(self, *, is_prod: bool) -> NDArray[np.float64]:
        """Return the unloaded capacity, times 100; below 0: none is left. Shape as room."""
        return self._spare[int(is_prod), :, : len(self._rows)]

    @property
    def capacity(self) -> NDArray[np.float64]:
        """The amounts of nodes; 1 where there is none; shape (resources, nodes)."""
        return self._capacity[:, : len(self._rows)]

    @property
    def lacking(self) -> Mask:
        """Resources that a node does not have, as far as it has others; as room."""
        return self._lacking[:, : len(self._rows)]

    def entry(self, nodes: View, row: int) -> NodeEntry:
        """The node of a row, after follow. In a what-if, pods that were added count."""
        found = self._rows[row]
        assert found is not None  # noqa: S101 - follow has made it
        if row not in nodes.altered:
            return found
        generation, last = nodes.generations[row], self._imagined.get(row)
        if generation == self._unchanged[row]:
            return found
        if last is not None and last[0] == generation and last[1] is found.judgement:
            return last[2]
        known = found.load.assigned
        added = [pod for pod in nodes.pods(row) if pod.uid not in known and is_estimated(pod)]
        if not added:
            self._unchanged[row] = generation
            return found
        imagined = NodeEntry(found.node, found.rules, found.load.with_pods(added))
        self._imagined[row] = int(generation), found.judgement, imagined
        self._judge(imagined)
        return imagined

    def with_more_pods(self, nodes: View) -> list[int]:
        """Rows of a what-if to which pods may have come, after follow; of others none are."""
        if not nodes.altered:
            return []
        generation = nodes.generation
        rows = np.flatnonzero((generation < 0) & (generation != self._unchanged[: len(nodes)]))
        return rows.tolist()

    def known(self, name: str) -> NodeEntry | None:
        """A node by its name, as it was last followed; None: not known."""
        return self._entries.get(name)

    def follow(self, nodes: View) -> None:
        """Update the columns to a view, without what a what-if changes, and to the current time."""
        nodes = nodes.actual
        if nodes is not self._view:
            self._follow(nodes)
        now = self._clock.wall()
        if now >= self._next_expiry or now < self._checked:
            self._expire(now)
        self._checked = now

    def catch_up(self, nodes: View, most: int) -> bool:
        """Take over at most so many rows that have changed; return whether that is all.

        nodes: no what-if.
        """
        if nodes is not self._view:
            self._follow(nodes, most)
        return nodes is self._view

    def take_report(self, name: str) -> None:
        """A NodeMetric has come or gone."""
        entry, report = self._entries.get(name), self._reports.get(name)
        if entry is not None and entry.load.report is not report:
            entry.load.take_report(report)
            self._judge_again(entry)

    def leave(self, pod: ClusterPod) -> None:
        """A pod has left its node for good."""
        entry = self._entries.get(pod.node)
        if entry is not None:
            entry.load.leave(pod)  # judged when its row is followed, which has changed

    def forget(self, name: str) -> None:
        """A node has gone."""
        self._entries.pop(name, None)

    def _follow(self, nodes: View, most: int | None = None) -> None:
        count = len(nodes)
        self._resize(count)
        changed = self._changed(nodes, None if most is None else most + 1)
        for row in changed[:most]:
            self._place(nodes.node(row), row, nodes.pods(row))
            self._generation[row] = nodes.generations[row]
            self._unchanged[row] = 0
        self._view = nodes if most is None or len(changed) <= most else None

    def _changed(self, nodes: View, most: int | None) -> list[int]:
        """Rows that are not as they were placed last; not many more than `most`."""
        placed, now = self._generation[: len(nodes)], nodes.generations
        if self._view is None:
            rows: list[int] = np.flatnonzero(placed != now.array)[:most].tolist()
            return rows
        rows = now.other_rows(self._view.generations)
        return [row for row in rows if row < len(nodes) and placed[row] != now[row]]

    def _place(self, node: ClusterNode, row: int, pods: tuple[ClusterPod, ...]) -> None:
        entry = self._entries.get(node.name)
        if entry is None:
            entry = self._entries[node.name] = self._made(node, pods)
        else:
            if entry.node is not node:
                entry.node, entry.rules = node, self._rules.of_node(node)
            report = self._reports.get(node.name)
            if entry.load.report is not report:
                entry.load.take_report(report)
            entry.load.take_pods(pods)
        if self._rows[row] is not entry or entry.row != row:
            self._rows[row], entry.row, entry.written = entry, row, None
            # what was noted for another row counts here, too, where an older view comes back
            self.filter_changes.note(row)
            self.score_changes.note(row)
        self._judge(entry)

    def _made(self, node: ClusterNode, pods: tuple[ClusterPod, ...]) -> NodeEntry:
        args = self._rules.args
        load = NodeLoad(self._estimator, prod_includes_system=args.prod_usage_include_sys)
        load.take_pods(pods)
        load.take_report(self._reports.get(node.name))
        return NodeEntry(node, self._rules.of_node(node), load)

    def _judge_again(self, entry: NodeEntry) -> None:
        """Judge a node whose row may be the same, and note if that changes anything."""
        before = entry.judgement
        self._judge(entry)
        now = entry.judgement
        if (before.room, before.reasons) != (now.room, now.reasons):
            self.filter_changes.note(entry.row)
        if before.spare != now.spare:
            self.score_changes.note(entry.row)

    def _judge(self, entry: NodeEntry) -> None:
        """Judge a node anew, and write its row if it has one."""
        self._time(entry)
        judgement = self._rules.judge(entry.rules, entry.load, expired=entry.expired)
        row, before = entry.row, entry.judgement if entry.written is not None else None
        entry.judgement = judgement
        if not 0 <= row < len(self._rows) or self._rows[row] is not entry:
            return  # imagined, moved or gone, of which the next view knows
        if before is None or before.room != judgement.room:
            self._room[:, :, row] = judgement.room
        capacity, scored = entry.rules.capacity, judgement.spare is not None
        if entry.written != (capacity, judgement.reasons, scored):
            entry.written = capacity, judgement.reasons, scored
            self._reasons[:, row] = judgement.reasons
            has = np.array(capacity) > 0
            counts = scored and has.any()
            self._spare[:, :, row] = -1.0
            self._capacity[:, row] = np.where(counts & has, capacity, 1)
            self._lacking[:, row] = counts & ~has
        if judgement.spare is not None:
            self._spare[:, :, row] = judgement.spare
            if not all(capacity):
                self._spare[:, np.array(capacity) == 0, row] = -1.0

    def _time(self, entry: NodeEntry) -> None:
        """Note when the report of a node expires, and whether it has."""
        reported = entry.load.reported
        if reported is None:
            entry.expires, entry.expired = inf, False
            return
        entry.expires = reported.at + self._rules.args.node_metric_expiration_seconds
        entry.expired = self._clock.wall() >= entry.expires
        if not entry.expired:
            self._next_expiry = min(self._next_expiry, entry.expires)

    def _expire(self, now: float) -> None:
        """Judge nodes anew whose reports have expired, or, after a clock went back, have not."""
        changed = [one for one in self._entries.values() if one.expired != (now >= one.expires)]
        self._next_expiry = min(
            (one.expires for one in self._entries.values() if now < one.expires), default=inf
        )
        for entry in changed:
            self._judge_again(entry)

    def _resize(self, count: int) -> None:
        """Resize the columns to a number of rows; entries beyond it belong to no node."""
        before = len(self._rows)
        if count < before:
            self._imagined.clear()
            del self._rows[count:]
            self._generation[count:before] = -1
        self._rows += [None] * (count - len(self._rows))
        size = len(self._generation)
        if count <= size:
            return
        more = max(count, 2 * size) - size
        self._generation = _longer(self._generation, more, -1)
        self._unchanged = _longer(self._unchanged, more, 0)
        self._room = _longer(self._room, more, UNBOUNDED)
        self._reasons = _longer(self._reasons, more, 0)
        self._spare = _longer(self._spare, more, -1.0)
        self._capacity = _longer(self._capacity, more, 1.0)
        self._lacking = _longer(self._lacking, more, False)


def _longer(column: NDArray[Any], more: int, value: object) -> NDArray[Any]:
    added = np.full((*column.shape[:-1], more), value, column.dtype)
    return np.concatenate((column, added), axis=-1)


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
        self.filter_changes = self.table.filter_changes
        self.score_changes = self.table.score_changes
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
        return (_of_daemon_set(pod), *self._incoming(pod))

    def score_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        self.table.follow(nodes)
        return self._incoming(pod)

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
