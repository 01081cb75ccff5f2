"""NodeName, NodeAffinity, NodePorts, NodeUnschedulable, TaintToleration: may a node be used."""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from koord.api.labelselector import LabelSelector, Requirement, check_selector
from koord.plugin import KoordError
from koord.plugin.args import FieldError, FieldPath, invalid, required, takes_args
from koord_scheduler.plugin import (
    UNSCHEDULABLE_TAINT,
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
    NodeTerm,
    PreferredTerm,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    QueueingHint,
    ScorePlugin,
    Status,
    View,
    about_itself,
    affinity_allows,
    intolerable_preferences,
    is_label_requirement,
    is_name_requirement,
    ports_conflict,
    term_matches,
    tolerates,
)
from koord_scheduler.plugin.vector import (
    Mask,
    Numbers,
    Scores,
    VectorFilterPlugin,
    VectorNormalizeScorePlugin,
    VectorScorePlugin,
    Verdicts,
    default_normalize,
    has_free_ports,
    has_name,
    is_schedulable,
    matches_node_affinity,
    matches_terms,
    preferences_met,
    tolerates_taints,
    untolerated_preferences,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Expression:
    """A requirement on a label, or on the node's name."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    @property
    def requirement(self) -> Requirement:
        """The same as pods have it."""
        return Requirement(self.key, self.operator, self.values)


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectorTerm:
    """Requirements that must all hold; without any it matches no node."""

    match_expressions: tuple[Expression, ...] = ()
    match_fields: tuple[Expression, ...] = ()

    def term(self) -> NodeTerm | None:
        """The same as pods have it; None: it matches nothing."""
        labels = tuple(one.requirement for one in self.match_expressions)
        names = tuple(one.requirement for one in self.match_fields)
        return NodeTerm(labels, names) if labels or names else None

    def faults(self, path: FieldPath) -> Iterator[FieldError]:
        for at, one in enumerate(self.match_expressions):
            below = (*path, "matchExpressions", at)
            if not is_label_requirement(one.requirement):
                wanted = "wanted In or NotIn with values, Exists or DoesNotExist without, or Gt or "
                yield invalid(below, one.operator, wanted + "Lt with one whole number")
            elif not _is_label(one.key):
                yield invalid((*below, "key"), one.key, "wanted a label key")
        for at, one in enumerate(self.match_fields):
            if not is_name_requirement(one.requirement):
                wanted = "wanted metadata.name with In or NotIn and one value"
                yield invalid((*path, "matchFields", at), one.key, wanted)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSelector:
    """Terms of which one must match."""

    node_selector_terms: tuple[SelectorTerm, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PreferredSchedulingTerm:
    """A term that is worth so much."""

    weight: int
    preference: SelectorTerm


@dataclass(frozen=True, kw_only=True, slots=True)
class AddedAffinity:
    """A node affinity as pods have it."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeAffinityArgs:
    """Node affinity that is added to all pods."""

    added_affinity: AddedAffinity | None = None

    def validate(self) -> Iterator[FieldError]:
        if self.added_affinity is None:
            return
        path: FieldPath = ("addedAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
        selector = self.added_affinity.required_during_scheduling_ignored_during_execution
        if selector is not None:
            path = (*path, "nodeSelectorTerms")
            if not selector.node_selector_terms:
                yield required(path, "at least one term is needed")
            for at, term in enumerate(selector.node_selector_terms):
                yield from term.faults((*path, at))
        path = ("addedAffinity", "preferredDuringSchedulingIgnoredDuringExecution")
        preferred = self.added_affinity.preferred_during_scheduling_ignored_during_execution
        for at, one in enumerate(preferred):
            if not 1 <= one.weight <= 100:
                yield invalid((*path, at, "weight"), one.weight, "wanted 1 to 100")
            yield from one.preference.faults((*path, at, "preference"))

    def terms(self) -> tuple[NodeTerm, ...] | None:
        """Return the required node terms; None: nothing is required."""
        if self.added_affinity is None:
            return None
        selector = self.added_affinity.required_during_scheduling_ignored_during_execution
        if selector is None:
            return None
        return tuple(_there(one.term() for one in selector.node_selector_terms))

    def preferred(self) -> tuple[PreferredTerm, ...]:
        """Return the preferred node terms with their weights."""
        if self.added_affinity is None:
            return ()
        found = self.added_affinity.preferred_during_scheduling_ignored_during_execution
        return tuple(
            PreferredTerm(one.weight, term)
            for one in found
            if (term := one.preference.term()) is not None
        )


def _there(terms: Iterable[NodeTerm | None]) -> Iterator[NodeTerm]:
    return (one for one in terms if one is not None)


def _is_label(key: str) -> bool:
    try:
        check_selector(LabelSelector({key: ""}), "")
    except KoordError:
        return False
    return True


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
        return sum(
            one.weight for one in self._preferred_terms(pod) if term_matches(one.term, node.node)
        )

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        return preferences_met(self._preferred_terms(pod), nodes)

    scales_to_highest = True

    def normalize_scores(self, state: CycleState, pod: ClusterPod, scores: Scores) -> Scores:
        return default_normalize(scores)

    def _preferred_terms(self, pod: ClusterPod) -> tuple[PreferredTerm, ...]:
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


class NodeName(PreFilterPlugin, FilterPlugin, VectorFilterPlugin, EnqueueExtensions):
    """Rejects all nodes but the one that the pod's spec names."""

    rejection = Status.unresolvable("node(s) didn't match the requested node name")

    def __init__(self, args: Any, handle: Handle) -> None:
        """It has no arguments."""

    def events_to_register(self) -> Iterable[HintedEvent]:
        return (HintedEvent(ClusterEvent(EventResource.NODE, Action.ADD), _named_node_helps),)

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        """Most pods name none."""
        return None if pod.node else Status.skip()

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return pod.node

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return pod.node

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        return None if pod.node in ("", node.name) else self.rejection

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask:
        return has_name(pod, nodes)


def _named_node_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    named = isinstance(new, ClusterNode) and pod.node in ("", new.name)
    return QueueingHint.QUEUE if named else QueueingHint.SKIP


class NodePorts(PreFilterPlugin, FilterPlugin, VectorFilterPlugin, EnqueueExtensions):
    """Rejects nodes on which another pod has a port that this one needs."""

    rejection = Status.unschedulable("node(s) didn't have free ports for the requested pod ports")

    def __init__(self, args: Any, handle: Handle) -> None:
        """It has no arguments."""

    def events_to_register(self) -> Iterable[HintedEvent]:
        return (
            HintedEvent(ClusterEvent(EventResource.POD, Action.DELETE), _pod_helps),
            HintedEvent(ClusterEvent(EventResource.NODE, Action.ADD)),
        )

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        """Most pods need none."""
        return None if pod.spec.host_ports else Status.skip()

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        wanted = pod.spec.host_ports
        for other in node.pods:
            if not other.finished and ports_conflict(wanted, other.spec.host_ports):
                return self.rejection
        return None

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask:
        return has_free_ports(pod, nodes)


def _pod_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    """A pod that has left its node, and had a port that is needed."""
    helps = (
        isinstance(old, ClusterPod)
        and bool(old.node)
        and ports_conflict(pod.spec.host_ports, old.spec.host_ports)
    )
    return QueueingHint.QUEUE if helps else QueueingHint.SKIP


class TaintToleration(
    FilterPlugin,
    VectorFilterPlugin,
    PreScorePlugin,
    ScorePlugin,
    VectorScorePlugin,
    VectorNormalizeScorePlugin,
    EnqueueExtensions,
):
    """Taints NoSchedule and NoExecute reject; of PreferNoSchedule each costs score."""

    rejection = Status.unresolvable("node(s) had untolerated taint(s)")

    def __init__(self, args: Any, handle: Handle) -> None:
        """It has no arguments."""

    def events_to_register(self) -> Iterable[HintedEvent]:
        node = ClusterEvent(EventResource.NODE, Action.ADD | Action.UPDATE_NODE_TAINT)
        pod = ClusterEvent(EventResource.UNSCHEDULED_POD, Action.UPDATE_POD_TOLERATION)
        return HintedEvent(node, _untainted_node_helps), HintedEvent(pod, about_itself)

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        return None if tolerates(pod.spec, node.node.taints) else self.rejection

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask:
        return tolerates_taints(pod, nodes)

    def pre_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Status | None:
        """Where no node has such a taint, all would have the same score."""
        preferences = nodes.traits.preferences
        wanted = preferences and any(intolerable_preferences(pod.spec, one) for one in preferences)
        return None if wanted else Status.skip()

    def pre_score_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return nodes.traits

    def score_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        return intolerable_preferences(pod.spec, node.node.taints)

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        return untolerated_preferences(pod, nodes)

    def normalize_scores(self, state: CycleState, pod: ClusterPod, scores: Scores) -> Scores:
        """The fewer, the better."""
        return default_normalize(scores, reverse=True)


def _untainted_node_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    """A node that is new, or had a taint, and is tolerated."""
    before = isinstance(old, ClusterNode) and tolerates(pod.spec, old.taints)
    after = isinstance(new, ClusterNode) and tolerates(pod.spec, new.taints)
    return QueueingHint.QUEUE if after and not before else QueueingHint.SKIP


class NodeUnschedulable(FilterPlugin, VectorFilterPlugin, EnqueueExtensions):
    """Rejects nodes with spec.unschedulable."""

    rejection = Status.unresolvable("node(s) were unschedulable")

    def __init__(self, args: Any, handle: Handle) -> None:
        """It has no arguments."""

    def events_to_register(self) -> Iterable[HintedEvent]:
        node = ClusterEvent(EventResource.NODE, Action.ADD | Action.UPDATE_NODE_TAINT)
        pod = ClusterEvent(EventResource.UNSCHEDULED_POD, Action.UPDATE_POD_TOLERATION)
        return HintedEvent(node, _uncordoned_node_helps), HintedEvent(pod)

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        if not node.node.unschedulable:
            return None
        tolerated = any(one.tolerates(UNSCHEDULABLE_TAINT) for one in pod.spec.tolerations)
        return None if tolerated else self.rejection

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask:
        return is_schedulable(pod, nodes)


def _uncordoned_node_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    """A node that is new, or was cordoned, and is schedulable."""
    before = isinstance(old, ClusterNode) and not old.unschedulable
    after = isinstance(new, ClusterNode) and not new.unschedulable
    return QueueingHint.QUEUE if after and not before else QueueingHint.SKIP
