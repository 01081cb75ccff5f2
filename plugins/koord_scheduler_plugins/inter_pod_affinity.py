"""InterPodAffinity: pods near to others, or apart from them."""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from koord.plugin.args import FieldError, invalid, takes_args
from koord_scheduler.plugin import (
    MAX_NODE_SCORE,
    Action,
    AffinityTerm,
    AffinityTermKind,
    ClusterEvent,
    ClusterNamespace,
    ClusterNode,
    ClusterPod,
    CycleState,
    EnqueueExtensions,
    EventResource,
    FilterPlugin,
    Handle,
    HintedEvent,
    NodeInfo,
    NodeScore,
    NormalizeScorePlugin,
    PreFilterExtensions,
    PreFilterPlugin,
    PreScorePlugin,
    QueueingHint,
    ScorePlugin,
    Status,
    View,
    selects,
)
from koord_scheduler.plugin.vector import (
    ExistingAntiAffinity,
    Mask,
    RequiredAffinity,
    RequiredAntiAffinity,
    Scores,
    TopologyCounts,
    VectorFilterPlugin,
    VectorNormalizeScorePlugin,
    VectorScorePlugin,
    Verdicts,
    WeightedTerms,
)


class Preferences:
    """Scores of topology domains for one pod. Never changes."""

    def __init__(self, pod: ClusterPod, nodes: View, hard_weight: int) -> None:
        """hard_weight: of a required affinity term of another pod that means this one."""
        sums: dict[str, NDArray[np.integer[Any]]] = {}
        for key, per_node, weight in _term_weights(pod, nodes, hard_weight):
            one = per_node if weight == 1 else weight * per_node.astype(np.int64)
            sums[key] = sums[key] + one if key in sums else one
        found = (TopologyCounts.of(key, per_node, nodes) for key, per_node in sums.items())
        self._domains = [one for one in found if one.totals.any()]

    def __bool__(self) -> bool:
        """Whether any domain is worth something."""
        return bool(self._domains)

    def clone(self) -> "Preferences":
        """Return itself, which never changes."""
        return self

    def score(self, row: int) -> int:
        """The score of one node, before it is normalized."""
        return sum(one.at(row) for one in self._domains)

    def scores(self, nodes: View) -> Scores:
        """The same of all nodes."""
        total: Scores | None = None
        for one in self._domains:
            found = one.totals.take(one.domains.codes)
            total = found if total is None else np.add(total, found, out=total)
        return np.zeros(len(nodes), np.int64) if total is None else total


def normalize(scores: list[NodeScore]) -> None:
    """Bring scores into the range from 0, the lowest, to 100; all equal ones to 0."""
    least = min((one.score for one in scores), default=0)
    spread = max((one.score for one in scores), default=0) - least
    for one in scores:
        one.score = int(MAX_NODE_SCORE * ((one.score - least) / spread)) if spread else 0


def normalized(scores: Scores) -> Scores:
    """The same of all feasible nodes at once."""
    least = int(scores.min(initial=_HIGHEST))
    spread = int(scores.max(initial=-_HIGHEST)) - least
    if spread <= 0:
        return np.zeros_like(scores)
    shares = (scores - least) / spread
    shares *= MAX_NODE_SCORE
    return shares.astype(np.int64)


def _term_weights(
    pod: ClusterPod, nodes: View, hard_weight: int
) -> Iterator[tuple[str, NDArray[np.integer[Any]], int]]:
    """Topology key, numbers by node, and the weight of each."""
    spec = pod.spec
    wanted = ((one.term, one.weight) for one in spec.preferred_affinity)
    unwanted = ((one.term, -one.weight) for one in spec.preferred_anti_affinity)
    for key, sums in WeightedTerms(chain(wanted, unwanted), nodes).per_node().items():
        yield key, sums, 1
    weights = {
        AffinityTermKind.AFFINITY: hard_weight,
        AffinityTermKind.PREFERRED_AFFINITY: 1,  # counts have the terms' own weights
        AffinityTermKind.PREFERRED_ANTI_AFFINITY: -1,
    }
    for (term, key), counts in nodes.existing_terms(pod.label_set).items():
        if weights.get(term):
            yield key, counts, weights[term]


_HIGHEST = 2**62

_RULES, _PREFERENCES = "InterPodAffinity.Filter", "InterPodAffinity.Score"
_HEAVIEST = 100
_MAX_QUERIED_NODES = 64  # terms that are asked about each event
_REJECTIONS = (
    Status.unresolvable("node(s) didn't match pod affinity rules"),
    Status.unschedulable("node(s) didn't match pod anti-affinity rules"),
    Status.unschedulable("node(s) didn't satisfy existing pods anti-affinity rules"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class InterPodAffinityArgs:
    """Weights of the affinity terms of other pods in scores."""

    hard_pod_affinity_weight: int = 1  # of required affinity of other pods, 0 to 100
    ignore_preferred_terms_of_existing_pods: bool = False  # for pods that prefer nothing themselves

    def validate(self) -> Iterator[FieldError]:
        weight = self.hard_pod_affinity_weight
        if not 0 <= weight <= _HEAVIEST:
            yield invalid(("hardPodAffinityWeight",), weight, f"wanted 0 to {_HEAVIEST}")


class _Rule(Protocol):
    def __bool__(self) -> bool: ...

    def change(self, row: int, pod: ClusterPod, amount: int, view: View) -> None: ...

    def allows(self, view: View) -> Mask: ...

    def allows_row(self, row: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Rules:
    """In the order in which they are asked."""

    affinity: RequiredAffinity
    anti_affinity: RequiredAntiAffinity
    existing_anti_affinity: ExistingAntiAffinity

    @property
    def all(self) -> tuple[_Rule, ...]:
        return self.affinity, self.anti_affinity, self.existing_anti_affinity

    def clone(self) -> "_Rules":
        return _Rules(
            self.affinity.clone(), self.anti_affinity.clone(), self.existing_anti_affinity.clone()
        )


@takes_args(InterPodAffinityArgs)
class InterPodAffinity(
    PreFilterPlugin,
    PreFilterExtensions,
    FilterPlugin,
    VectorFilterPlugin,
    PreScorePlugin,
    ScorePlugin,
    VectorScorePlugin,
    NormalizeScorePlugin,
    VectorNormalizeScorePlugin,
    EnqueueExtensions,
):
    """Required (anti-)affinity of the pod and of others rejects, the preferred one scores."""

    def __init__(self, args: InterPodAffinityArgs, handle: Handle) -> None:
        self._args = args

    def events_to_register(self) -> Iterable[HintedEvent]:
        pods = Action.ADD | Action.UPDATE_POD_LABEL | Action.DELETE
        nodes = Action.ADD | Action.UPDATE_NODE_LABEL
        namespaces = Action.ADD | Action.UPDATE
        return (
            HintedEvent(ClusterEvent(EventResource.POD, pods), _pod_helps),
            HintedEvent(ClusterEvent(EventResource.NODE, nodes), _node_helps),
            HintedEvent(ClusterEvent(EventResource.NAMESPACE, namespaces), _namespace_helps),
        )

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        spec, existing_anti_affinity = pod.spec, ExistingAntiAffinity(pod, nodes)
        if not spec.affinity and not spec.anti_affinity and not existing_anti_affinity:
            return Status.skip()
        state.write(
            _RULES,
            _Rules(
                RequiredAffinity(pod, nodes),
                RequiredAntiAffinity(pod, nodes),
                existing_anti_affinity,
            ),
        )
        return None

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        """Only what other pods want matters, if this one wants nothing."""
        wants = pod.spec.affinity or pod.spec.anti_affinity
        return None if wants else nodes.existing_terms_key()

    def add_pod(
        self, state: CycleState, pod: ClusterPod, added: ClusterPod, node: NodeInfo
    ) -> Status | None:
        _count(state, added, node, 1)
        return None

    def remove_pod(
        self, state: CycleState, pod: ClusterPod, removed: ClusterPod, node: NodeInfo
    ) -> Status | None:
        _count(state, removed, node, -1)
        return None

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        rules = state.read(_RULES, _Rules)
        for rule, rejection in zip(rules.all, _REJECTIONS, strict=True):
            if not rule.allows_row(node.row):
                return rejection
        return None

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Verdicts:
        rules = state.read(_RULES, _Rules)
        numbers = np.zeros(len(nodes), np.int32)
        for number, rule in reversed(tuple(enumerate(rules.all, 1))):
            if rule:
                np.copyto(numbers, number, where=~rule.allows(nodes))
        return Verdicts(numbers, _REJECTIONS)

    def pre_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Status | None:
        spec, args = pod.spec, self._args
        prefers = spec.preferred_affinity or spec.preferred_anti_affinity
        if args.ignore_preferred_terms_of_existing_pods and not prefers:
            return Status.skip()
        preferences = Preferences(pod, nodes, args.hard_pod_affinity_weight)
        if not preferences:
            return Status.skip()
        state.write(_PREFERENCES, preferences)
        return None

    def pre_score_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        prefers = pod.spec.preferred_affinity or pod.spec.preferred_anti_affinity
        return None if prefers else nodes.existing_terms_key()

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        return state.read(_PREFERENCES, Preferences).score(node.row)

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        return state.read(_PREFERENCES, Preferences).scores(nodes)

    def normalize_score(
        self, state: CycleState, pod: ClusterPod, scores: list[NodeScore]
    ) -> Status | None:
        normalize(scores)
        return None

    def normalize_scores(self, state: CycleState, pod: ClusterPod, scores: Scores) -> Scores:
        return normalized(scores)


def _count(state: CycleState, pod: ClusterPod, node: NodeInfo, amount: int) -> None:
    if not pod.finished:
        for rule in state.read(_RULES, _Rules).all:
            rule.change(node.row, pod, amount, node.view)


def _pod_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    """A pod that required affinity wants, or that no anti-affinity excludes any more."""
    before = old if isinstance(old, ClusterPod) else None
    after = new if isinstance(new, ClusterPod) else None
    wanted, unwanted = pod.spec.affinity, pod.spec.anti_affinity
    if len(wanted) + len(unwanted) > _MAX_QUERIED_NODES:
        return QueueingHint.QUEUE  # sooner said than whether it is so, for each event
    helps = (
        (after is not None and after.uid == pod.uid)
        or (wanted and _may_all_match(wanted, after) and not _all_match(wanted, before))
        # without the last such pod this one may be the first of its group
        or (wanted and _may_all_match(wanted, before) and _may_all_match(wanted, pod) and not after)
        or any(_may_all_match((one,), before) and not _all_match((one,), after) for one in unwanted)
        or (
            before is not None
            and after is None
            and (
                len(before.spec.anti_affinity) > _MAX_QUERIED_NODES
                or any(_may_all_match((one,), pod) for one in before.spec.anti_affinity)
            )
        )
    )
    return QueueingHint.QUEUE if helps else QueueingHint.SKIP


def _node_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    """A node that is new, or has other labels, and has all that required affinity needs."""
    before = old.labels if isinstance(old, ClusterNode) else None
    after = new.labels if isinstance(new, ClusterNode) else None
    if after is None or after == before:
        return QueueingHint.SKIP
    labelled = all(term.topology_key in after for term in pod.spec.affinity)
    return QueueingHint.QUEUE if labelled else QueueingHint.SKIP


def _namespace_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    """A namespace whose labels selectors of the pod's terms, or of those that mean it, look at.

    Its own namespace may have left the anti-affinity of pods that are there.
    """
    before = old.labels if isinstance(old, ClusterNamespace) else None
    if not isinstance(new, ClusterNamespace) or new.labels == before:
        return QueueingHint.SKIP
    selectors = [term.namespace_selector for term in (*pod.spec.affinity, *pod.spec.anti_affinity)]
    is_changed = new.name == pod.namespace or any(
        selects(one, new.labels) != (before is not None and selects(one, before))
        for one in selectors
    )
    return QueueingHint.QUEUE if is_changed else QueueingHint.SKIP


def _may_all_match(terms: Iterable[AffinityTerm], pod: ClusterPod | None) -> bool:
    """Whether terms may mean a pod: a namespace selector may select its namespace."""
    return pod is not None and all(
        selects(term.selector, pod.labels)
        and (pod.namespace in term.namespaces or term.namespace_selector is not None)
        for term in terms
    )


def _all_match(terms: Iterable[AffinityTerm], pod: ClusterPod | None) -> bool:
    """Whether terms mean a pod, whatever namespaces have for labels."""
    return pod is not None and all(
        selects(term.selector, pod.labels) and pod.namespace in term.namespaces for term in terms
    )
