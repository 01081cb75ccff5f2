"""The plugin."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np

from koord_scheduler.plugin import (
    POD_COUNT,
    Action,
    ClusterEvent,
    ClusterNode,
    ClusterPod,
    CycleState,
    Demand,
    EnqueueExtensions,
    EventResource,
    FilterPlugin,
    FreeTable,
    Handle,
    HintedEvent,
    Mask,
    NodeInfo,
    Numbers,
    PreFilterPlugin,
    PreScorePlugin,
    QueueingHint,
    ScorePlugin,
    Scores,
    Status,
    VectorFilterPlugin,
    VectorScorePlugin,
    Verdicts,
    View,
    demand_of,
    is_extended,
    resource_counts,
    shortage_at,
    shortages,
    takes_args,
    use_of_all,
    use_of_node,
)
from koord_scheduler_plugins.node_resources_fit.args import NodeResourcesFitArgs, ScoringStrategy

_FEW_BITS = 12  # so many that a table of all combinations is small


_DEMAND = "NodeResourcesFit/demand"


@dataclass(frozen=True, slots=True)
class _Demanded:
    """What the pod needs of a node, in the state of its cycle."""

    demand: Demand

    def clone(self) -> Self:
        return self


@takes_args(NodeResourcesFitArgs)
class NodeResourcesFit(
    PreFilterPlugin,
    FilterPlugin,
    VectorFilterPlugin,
    PreScorePlugin,
    ScorePlugin,
    VectorScorePlugin,
    EnqueueExtensions,
):
    """Rejects nodes without room, and scores them by how much is requested there with the pod."""

    def __init__(self, args: NodeResourcesFitArgs, handle: Handle) -> None:
        self._ignored = frozenset(args.ignored_resources)
        self._ignored_groups = frozenset(args.ignored_resource_groups)
        strategy = args.scoring_strategy or ScoringStrategy()
        self._resources = tuple(one.name for one in strategy.resources)
        self._scorer = strategy.scorer()
        self._table = FreeTable()

    def events_to_register(self) -> Iterable[HintedEvent]:
        pod_actions = Action.DELETE | Action.UPDATE_POD_SCALE_DOWN
        node_actions = Action.ADD | Action.UPDATE_NODE_ALLOCATABLE
        return (
            HintedEvent(ClusterEvent(EventResource.POD, pod_actions), self._pod_helps),
            HintedEvent(ClusterEvent(EventResource.NODE, node_actions), self._node_helps),
        )

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> None:
        """Each node is asked for the same."""
        state.write(_DEMAND, _Demanded(self._demand(pod)))

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        demand = self._demand_in(state, pod)
        found = shortage_at(demand, node.view, node.row)
        return _rejection(found, demand) if found else None

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask | Verdicts:
        demand = self._demand_in(state, pod)
        codes = shortages(demand, nodes, self._table)
        if codes is None:
            return np.ones(len(nodes), np.bool_)
        if len(demand) < _FEW_BITS:
            counts = np.bincount(codes, minlength=1)
            counts[0] = 0
            present = np.flatnonzero(counts)
            table = np.zeros(len(counts), np.int32)
            table[present] = np.arange(1, len(present) + 1)
            numbers: Numbers = table[codes]
        else:
            present, places = np.unique(np.append(codes, 0), return_inverse=True)
            present, numbers = present[1:], places[:-1].astype(np.int32)
        return Verdicts(numbers, tuple(_rejection(code, demand) for code in present.tolist()))

    def pre_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Status | None:
        """Where no resource of the strategy counts, all nodes would have the score 0."""
        counts = any(resource_counts(pod, name, nonzero=True) for name in self._resources)
        return None if counts else Status.skip()

    def pre_score_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def score_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        view, row = node.view, node.row
        uses = [use_of_node(pod, view, row, name, nonzero=True) for name in self._resources]
        return self._scorer.of_node(uses)

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        uses = [
            use_of_all(pod, nodes, name, nonzero=True, table=self._table)
            for name in self._resources
        ]
        return self._scorer.of_all(uses, len(nodes))

    def _demand_in(self, state: CycleState, pod: ClusterPod) -> Demand:
        found = state.find(_DEMAND, _Demanded)
        return self._demand(pod) if found is None else found.demand

    def _demand(self, pod: ClusterPod) -> Demand:
        return demand_of(pod.spec, self._is_ignored)

    def _is_ignored(self, name: str) -> bool:
        return is_extended(name) and (
            name in self._ignored or name.split("/", 1)[0] in self._ignored_groups
        )

    def _pod_helps(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        """A pod that has left its node, or that requests less now, or the rejected one does."""
        if not isinstance(old, ClusterPod):
            return QueueingHint.SKIP
        if not isinstance(new, ClusterPod):
            helps = bool(old.node or old.nominated_node)
        elif new.uid == pod.uid:
            helps = True
        else:
            before, after = dict(old.spec.requests), dict(new.spec.requests)
            helps = bool(new.node) and any(
                after.get(name, 0) < before.get(name, 0) for name, _ in pod.spec.requests
            )
        return QueueingHint.QUEUE if helps else QueueingHint.SKIP

    def _node_helps(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        """A node that is large enough, and is new or has more of something that is needed."""
        if not isinstance(new, ClusterNode):
            return QueueingHint.SKIP
        after, demand = dict(new.allocatable), self._demand(pod)
        helps = all(after.get(name, 0) >= amount for name, amount in demand)
        if helps and isinstance(old, ClusterNode):
            before = dict(old.allocatable)
            helps = any(after.get(name, 0) > before.get(name, 0) for name, _ in demand)
        return QueueingHint.QUEUE if helps else QueueingHint.SKIP


def _rejection(code: int, demand: Demand) -> Status:
    reasons = [
        "Too many pods" if name == POD_COUNT else f"Insufficient {name}"
        for bit, (name, _) in enumerate(demand)
        if code >> bit & 1
    ]
    if code >> len(demand):
        return Status.unresolvable(*reasons)
    return Status.unschedulable(*reasons)
