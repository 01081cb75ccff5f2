"""The plugin."""

from collections.abc import Hashable, Iterable

import numpy as np

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
    Mask,
    NodeInfo,
    NodeTerm,
    Numbers,
    PreferredTerm,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    QueueingHint,
    ScorePlugin,
    Scores,
    Status,
    VectorFilterPlugin,
    VectorNormalizeScorePlugin,
    VectorScorePlugin,
    Verdicts,
    View,
    affinity_allows,
    default_normalize,
    matches_node_affinity,
    matches_terms,
    preferences_met,
    takes_args,
    term_matches,
)
from koord_scheduler_plugins.node_affinity.args import NodeAffinityArgs

_NOT_ADDED = Status.unresolvable("node(s) didn't match scheduler-enforced node affinity")
_CONFLICT = Status.unresolvable("pod affinity terms conflict")


@takes_args(NodeAffinityArgs)
class NodeAffinity(
    PreFilterPlugin,
    FilterPlugin,
    VectorFilterPlugin,
    PreScorePlugin,
    ScorePlugin,
    VectorScorePlugin,
    VectorNormalizeScorePlugin,
    EnqueueExtensions,
):
    """The node selector and node affinity of a pod, and an affinity that all pods are given."""

    rejection = Status.unresolvable("node(s) didn't match Pod's node affinity/selector")

    def __init__(self, args: NodeAffinityArgs, handle: Handle) -> None:
        self._added = args.terms()
        self._preferred = args.preferred()

    def events_to_register(self) -> Iterable[HintedEvent]:
        node = ClusterEvent(EventResource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL)
        return (HintedEvent(node, self._node_helps),)

    def pre_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View
    ) -> PreFilterResult | Status | None:
        """Where each term names nodes, only these are worth a look."""
        spec = pod.spec
        if self._added is None and spec.node_terms is None and not spec.node_selector:
            return Status.skip()
        names = _named(spec.node_terms or ())
        if names is None:
            return None
        return PreFilterResult(names) if names else _CONFLICT

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        if not self._is_added(node.node):
            return _NOT_ADDED
        return None if affinity_allows(pod.spec, node.node) else self.rejection

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask | Verdicts:
        allowed = matches_node_affinity(pod, nodes)
        if self._added is None:
            return allowed
        added = matches_terms(self._added, nodes)
        numbers: Numbers = np.where(added, np.where(allowed, 0, 2), 1).astype(np.int32)
        return Verdicts(numbers, (_NOT_ADDED, self.rejection))

    def pre_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Status | None:
        return None if pod.spec.preferred_nodes or self._preferred else Status.skip()

    def pre_score_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def score_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        return sum(one.weight for one in self._wishes(pod) if term_matches(one.term, node.node))

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        return preferences_met(self._wishes(pod), nodes)

    def normalize_scores(self, state: CycleState, pod: ClusterPod, scores: Scores) -> Scores:
        return default_normalize(scores)

    def _wishes(self, pod: ClusterPod) -> tuple[PreferredTerm, ...]:
        return pod.spec.preferred_nodes + self._preferred

    def _is_added(self, node: ClusterNode) -> bool:
        return self._added is None or any(term_matches(term, node) for term in self._added)

    def _node_helps(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        """A node that matches now, and is new or did not match before."""
        helps = self._matches(pod, new) and not self._matches(pod, old)
        return QueueingHint.QUEUE if helps else QueueingHint.SKIP

    def _matches(self, pod: ClusterPod, node: object) -> bool:
        return (
            isinstance(node, ClusterNode)
            and self._is_added(node)
            and affinity_allows(pod.spec, node)
        )


def _named(terms: Iterable[NodeTerm]) -> frozenset[str] | None:
    """The nodes that the terms name; None: one of them, or there is none, does not name any."""
    found: set[str] = set()
    some = False
    for term in terms:
        lists = [frozenset(one.values) for one in term.names if one.operator == "In"]
        if not lists:
            return None
        found |= frozenset.intersection(*lists)
        some = True
    return frozenset(found) if some else None
