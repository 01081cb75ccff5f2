"""RoomyNodes: prefers nodes that can take more pods, and keeps some of their room free."""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from koord.plugin.args import FieldError, Int32, invalid, takes_args
from koord_scheduler.plugin import (
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
    QueueingHint,
    ScorePlugin,
    Status,
    View,
)
from koord_scheduler.plugin.vector import Mask, Scores, VectorFilterPlugin, VectorScorePlugin


@dataclass(frozen=True, kw_only=True, slots=True)
class RoomyNodesArgs:
    """How much room is kept free."""

    spare: Int32 = 5  # pods that a node could still take

    def validate(self) -> Iterator[FieldError]:
        if not 0 <= self.spare <= 100:
            yield invalid(("spare",), self.spare, "wanted 0 to 100 pods")


@takes_args(RoomyNodesArgs)
class RoomyNodes(
    FilterPlugin, VectorFilterPlugin, ScorePlugin, VectorScorePlugin, EnqueueExtensions
):
    """Filter and Score by the pods that a node could still take, in both forms."""

    rejection = Status.unschedulable("node(s) had no spare room for pods")

    def __init__(self, args: RoomyNodesArgs, handle: Handle) -> None:
        self._spare = args.spare

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        return None if node.free("pods") > self._spare else self.rejection

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask:
        most, taken = _pods(nodes)
        passes: Mask = most - taken > self._spare
        return passes

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        most = node.allocatable("pods")
        return 100 * max(node.free("pods"), 0) // most if most else 0

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        most, taken = _pods(nodes)
        scores: Scores = 100 * np.maximum(most - taken, 0) // np.maximum(most, 1)
        return scores

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()  # it depends on nothing but the node's row

    def score_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def events_to_register(self) -> Iterable[HintedEvent]:
        node = ClusterEvent(EventResource.NODE, Action.ADD | Action.UPDATE_NODE_ALLOCATABLE)
        gone = ClusterEvent(EventResource.ASSIGNED_POD, Action.DELETE)
        return HintedEvent(node, self._node_helps), HintedEvent(gone)

    def _node_helps(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        room = dict(new.allocatable).get("pods", 0) if isinstance(new, ClusterNode) else 0
        return QueueingHint.QUEUE if room > self._spare else QueueingHint.SKIP


def _pods(nodes: View) -> tuple[Scores, Scores]:
    """The pods that each node can have, and those that it has."""
    column = nodes.resources.get("pods")
    if column is None:
        nothing = np.zeros(len(nodes), np.int64)
        return nothing, nothing
    return nodes.allocatable[:, column], nodes.requested[:, column]
