"""PodTopologySpread: pods spread evenly over zones, nodes or other domains."""

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from koord.api.labelselector import LabelSelector, Requirement, check_selector
from koord.plugin import KoordError
from koord.plugin.args import FieldError, duplicate, invalid, required, takes_args
from koord_scheduler.plugin import (
    MAX_NODE_SCORE,
    Action,
    ClusterEvent,
    ClusterNode,
    ClusterPod,
    ClusterState,
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
    Selector,
    SpreadConstraint,
    Status,
    View,
    in_time,
    selects,
)
from koord_scheduler.plugin.vector import (
    CodedColumn,
    Mask,
    Scores,
    TopologySpread,
    VectorFilterPlugin,
    VectorNormalizeScorePlugin,
    VectorScorePlugin,
    Verdicts,
    counted_nodes,
    labelled_by,
    pods_counted,
    selector_of,
    spreads,
)


class DefaultingType(StrEnum):
    """The constraints of pods that have none themselves."""

    SYSTEM = "System"
    """Zones with maxSkew 5 and nodes with maxSkew 3, both ScheduleAnyway."""
    LIST = "List"
    """Those of defaultConstraints."""


class WhenUnsatisfiable(StrEnum):
    """The effect of a constraint on a node that exceeds its skew."""

    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


class InclusionPolicy(StrEnum):
    """Whether nodes that the pod's affinity or tolerations rule out are left out of the counts."""

    HONOR = "Honor"
    IGNORE = "Ignore"


@dataclass(frozen=True, kw_only=True, slots=True)
class DefaultConstraint:
    """A constraint; it is about the pods of the services and the controller of a pod."""

    max_skew: int
    topology_key: str
    when_unsatisfiable: WhenUnsatisfiable
    min_domains: int | None = None  # not set: 1; only with DoNotSchedule
    node_affinity_policy: InclusionPolicy = InclusionPolicy.HONOR
    node_taints_policy: InclusionPolicy = InclusionPolicy.IGNORE
    label_selector: object = None  # must not be set: it is made of services and controller
    match_label_keys: tuple[str, ...] = ()  # likewise


@dataclass(frozen=True, kw_only=True, slots=True)
class PodTopologySpreadArgs:
    """Constraints for pods without topology spread constraints."""

    default_constraints: tuple[DefaultConstraint, ...] = ()
    defaulting_type: DefaultingType = DefaultingType.SYSTEM

    def validate(self) -> Iterator[FieldError]:
        if self.default_constraints and self.defaulting_type is DefaultingType.SYSTEM:
            wanted = 'wanted "List", because there are defaultConstraints'
            yield invalid(("defaultingType",), self.defaulting_type, wanted)
        seen = set()
        for at, one in enumerate(self.default_constraints):
            for fault in _faults(one):
                yield fault.below(("defaultConstraints", at))
            pair = one.topology_key, one.when_unsatisfiable
            if pair in seen:
                yield duplicate(("defaultConstraints", at), f"{{{', '.join(pair)}}}")
            seen.add(pair)


def _faults(one: DefaultConstraint) -> Iterator[FieldError]:
    if one.max_skew < 1:
        yield invalid(("maxSkew",), one.max_skew, "wanted 1 or more")
    if not one.topology_key:
        yield required(("topologyKey",))
    elif not _is_label_key(one.topology_key):
        yield invalid(("topologyKey",), one.topology_key, "wanted a label key")
    if one.min_domains is not None:
        if one.min_domains < 1:
            yield invalid(("minDomains",), one.min_domains, "wanted 1 or more")
        if one.when_unsatisfiable is not WhenUnsatisfiable.DO_NOT_SCHEDULE:
            yield invalid(("minDomains",), one.min_domains, "wanted only with DoNotSchedule")
    for key, value in (
        ("labelSelector", one.label_selector),
        ("matchLabelKeys", one.match_label_keys or None),
    ):
        if value is not None:
            wanted = "wanted none: pods are those of the pod's services and controller"
            yield invalid((key,), value, wanted)


def _is_label_key(text: str) -> bool:
    try:
        check_selector(LabelSelector(match_expressions=(Requirement(text, "Exists"),)), "")
    except KoordError:
        return False
    return True


HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
CONTROLLERS = frozenset({"ReplicationController", "ReplicaSet", "StatefulSet"})

_SYSTEM = tuple(
    DefaultConstraint(
        max_skew=skew,
        topology_key=key,
        when_unsatisfiable=WhenUnsatisfiable.SCHEDULE_ANYWAY,
    )
    for key, skew in ((HOSTNAME, 3), (ZONE, 5))
)


class Defaults:
    """The default constraints of one profile."""

    def __init__(self, args: PodTopologySpreadArgs, cluster: ClusterState) -> None:
        self.of_system = args.defaulting_type is DefaultingType.SYSTEM
        self._cluster = cluster
        wanted = _SYSTEM if self.of_system else args.default_constraints
        self._hard = tuple(_constraints(wanted, WhenUnsatisfiable.DO_NOT_SCHEDULE))
        self._soft = tuple(_constraints(wanted, WhenUnsatisfiable.SCHEDULE_ANYWAY))

    def hard(self, pod: ClusterPod) -> tuple[SpreadConstraint, ...]:
        """Those with DoNotSchedule."""
        return self._about(pod, self._hard)

    def soft(self, pod: ClusterPod) -> tuple[SpreadConstraint, ...]:
        """Those with ScheduleAnyway."""
        return self._about(pod, self._soft)

    def _about(
        self, pod: ClusterPod, constraints: tuple[SpreadConstraint, ...]
    ) -> tuple[SpreadConstraint, ...]:
        selector = default_selector(pod, self._cluster) if constraints else ()
        if not selector:
            return ()
        return tuple(replace(one, selector=selector) for one in constraints)


def default_selector(pod: ClusterPod, cluster: ClusterState) -> Selector:
    """Return what all services that select the pod, and its controller, select; (): there is none.

    Of the controllers a ReplicationController, ReplicaSet or StatefulSet counts.
    """
    selectors = [service.selector for service in cluster.services.selecting(pod)]
    controller = cluster.workloads.controlling(pod)
    if controller is not None and controller.kind in CONTROLLERS:
        selectors.append(controller.selector)
    if not selectors:
        return ()
    return tuple(dict.fromkeys(one for selector in selectors for one in selector or ()))


def _constraints(
    wanted: Iterable[DefaultConstraint], when: WhenUnsatisfiable
) -> Iterable[SpreadConstraint]:
    return (
        SpreadConstraint(
            topology_key=one.topology_key,
            max_skew=one.max_skew,
            selector=None,
            min_domains=one.min_domains or 1,
            honor_affinity=one.node_affinity_policy is InclusionPolicy.HONOR,
            honor_taints=one.node_taints_policy is InclusionPolicy.HONOR,
        )
        for one in wanted
        if one.when_unsatisfiable is when
    )


class SoftSpread:
    """The scores of one pod's constraints. Never changes."""

    def __init__(
        self,
        pod: ClusterPod,
        constraints: Sequence[SpreadConstraint],
        nodes: View,
        feasible: Mask,
        *,
        require_all: bool,
    ) -> None:
        """require_all: nodes that lack a label of a constraint have no score, and no pods."""
        labelled = labelled_by(constraints, nodes) if require_all else None
        self._nodes = nodes
        self._labelled = labelled
        self._scored = None if labelled is None else labelled[feasible]
        candidates = feasible if labelled is None else feasible & labelled
        self._parts = [_Part(pod, one, nodes, candidates, labelled) for one in in_time(constraints)]

    def clone(self) -> "SoftSpread":
        """Return itself, which never changes."""
        return self

    def score(self, row: int) -> int:
        """The score of one node, before it is normalized."""
        if self._labelled is not None and not self._labelled[row]:
            return 0
        return math.floor(sum(part.score(row) for part in self._parts) + 0.5)

    def scores(self) -> Scores:
        """The same of all nodes."""
        total = self._parts[0].scores()
        for part in self._parts[1:]:
            total += part.scores()
        total += 0.5
        np.floor(total, out=total)
        rounded: Scores = total.astype(np.int64)
        if self._labelled is not None:
            rounded[~self._labelled] = 0
        return rounded

    def normalize(self, scores: list[NodeScore]) -> None:
        """Turn the scores of feasible nodes round; one that lacks a label has 0."""
        scored = [one for one in scores if self._has_score(one.name)]
        least = min((one.score for one in scored), default=0)
        most = max((one.score for one in scored), default=0)
        for one in scores:
            one.score = _turned(one.score, least, most) if self._has_score(one.name) else 0

    def _has_score(self, name: str) -> bool:
        row = self._nodes.row(name)
        return self._labelled is None or (row is not None and bool(self._labelled[row]))

    def normalized(self, scores: Scores) -> Scores:
        """The same of all feasible nodes at once."""
        scored = scores if self._scored is None else scores[self._scored]
        least, most = int(scored.min(initial=_HIGHEST)), int(scored.max(initial=0))
        if most:
            turned: Scores = most + least - scores
            turned *= MAX_NODE_SCORE
            turned //= most
        else:
            turned = np.full_like(scores, MAX_NODE_SCORE)
        if self._scored is not None:
            turned[~self._scored] = 0
        return turned


class _Part:
    """One constraint: pods by domain, and what each of them weighs."""

    def __init__(
        self,
        pod: ClusterPod,
        constraint: SpreadConstraint,
        nodes: View,
        candidates: Mask,
        labelled: Mask | None,
    ) -> None:
        self._domains = domains = nodes.traits.label(constraint.topology_key)
        per_node = pods_counted(pod.namespace, selector_of(pod, constraint), nodes)
        self._per_node: NDArray[np.int32] | None = None
        if constraint.topology_key == HOSTNAME:  # each node is a domain, whatever else it is
            size = int(np.count_nonzero(candidates))
            self._per_node = per_node
        else:
            size = _distinct(domains, candidates)
            self._totals = domains.totals(per_node, counted_nodes(pod, constraint, nodes, labelled))
        self._weight = math.log(size + 2)
        self._surplus = float(constraint.max_skew - 1)

    def score(self, row: int) -> float:
        code = self._domains.codes.item(row)
        if code < 0:
            return 0.0
        pods = self._totals.item(code) if self._per_node is None else self._per_node.item(row)
        return float(pods * self._weight + self._surplus)

    def scores(self) -> NDArray[np.floating[Any]]:
        """Return the scores of all nodes, in a new column."""
        if self._per_node is None:
            by_domain = self._totals * self._weight + self._surplus
            by_domain[-1] = 0.0
            return by_domain.take(self._domains.codes)
        found = self._per_node * self._weight
        found += self._surplus
        if not self._domains.complete:
            found[~self._domains.present] = 0.0
        return found


def _distinct(domains: CodedColumn[str], rows: Mask) -> int:
    """How many values the rows have; as in Kubernetes, to have none is one, too."""
    if rows.all():
        return len(domains.index) + (not domains.complete)
    there = np.zeros(len(domains.index) + 1, np.bool_)
    there[domains.codes[rows]] = True  # -1 is the last
    return int(np.count_nonzero(there))


def _turned(score: int, least: int, most: int) -> int:
    return MAX_NODE_SCORE * (most + least - score) // most if most else MAX_NODE_SCORE


_HIGHEST = 2**62

_HARD, _SOFT = "PodTopologySpread.Filter", "PodTopologySpread.Score"
_MISMATCH = "node(s) didn't match pod topology spread constraints"
_SKEWED = Status.unschedulable(_MISMATCH)
_UNLABELLED = Status.unresolvable(f"{_MISMATCH} (missing required label)")


@dataclass(slots=True)
class _Hard:
    """Constraints with DoNotSchedule, and the pods that they count."""

    spreads: list[TopologySpread]

    def clone(self) -> "_Hard":
        return _Hard([one.clone() for one in self.spreads])


@takes_args(PodTopologySpreadArgs)
class PodTopologySpread(
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
    """Rejects nodes beyond the skew of DoNotSchedule, and scores by ScheduleAnyway."""

    rejection = _SKEWED

    def __init__(self, args: PodTopologySpreadArgs, handle: Handle) -> None:
        self._defaults = Defaults(args, handle.services.cluster)

    def events_to_register(self) -> Iterable[HintedEvent]:
        pods = Action.ADD | Action.UPDATE_POD_LABEL | Action.DELETE
        nodes = Action.ADD | Action.DELETE | Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_TAINT
        return (
            HintedEvent(ClusterEvent(EventResource.POD, pods), self._pod_helps),
            HintedEvent(ClusterEvent(EventResource.NODE, nodes), self._node_helps),
        )

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        constraints = self._hard(pod)
        if not constraints:
            return Status.skip()
        state.write(_HARD, _Hard(spreads(pod, constraints, nodes)))
        return None

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return None if self._hard(pod) else ()

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
        for one in state.read(_HARD, _Hard).spreads:
            if one.domains.codes[node.row] < 0:
                return _UNLABELLED
            if not one.allows_row(node.row):
                return _SKEWED
        return None

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask | Verdicts:
        found = [(one, one.allows()) for one in state.read(_HARD, _Hard).spreads]
        passes: Mask = np.logical_and.reduce([allowed for _, allowed in found])
        if passes.all():
            return passes
        numbers = np.zeros(len(nodes), np.int32)
        for one, allowed in reversed(found):  # the first constraint is the one that is named
            numbers[~allowed] = 1
            if not one.domains.complete:
                numbers[~one.domains.present] = 2
        return Verdicts(numbers, (_SKEWED, _UNLABELLED))

    def pre_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Status | None:
        constraints = self._soft(pod)
        if not constraints:
            return Status.skip()
        own = _has_own(pod)
        # nodes without a zone are still spread over by hostname
        require_all = own or not self._defaults.of_system
        soft = SoftSpread(pod, constraints, nodes, feasible, require_all=require_all)
        state.write(_SOFT, soft)
        return None

    def pre_score_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return None if self._soft(pod) else ()

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        return state.read(_SOFT, SoftSpread).score(node.row)

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        return state.read(_SOFT, SoftSpread).scores()

    def normalize_score(
        self, state: CycleState, pod: ClusterPod, scores: list[NodeScore]
    ) -> Status | None:
        state.read(_SOFT, SoftSpread).normalize(scores)
        return None

    def normalize_scores(self, state: CycleState, pod: ClusterPod, scores: Scores) -> Scores:
        return state.read(_SOFT, SoftSpread).normalized(scores)

    def _hard(self, pod: ClusterPod) -> tuple[SpreadConstraint, ...]:
        return pod.spec.spread if _has_own(pod) else self._defaults.hard(pod)

    def _soft(self, pod: ClusterPod) -> tuple[SpreadConstraint, ...]:
        return pod.spec.soft_spread if _has_own(pod) else self._defaults.soft(pod)

    def _pod_helps(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        """A pod that a constraint counts now and did not before, or the other way round."""
        constraints = self._hard(pod)
        if isinstance(new, ClusterPod) and new.uid == pod.uid:
            return QueueingHint.QUEUE
        before, after = (_counted(pod, constraints, one) for one in (old, new))
        return QueueingHint.QUEUE if before != after else QueueingHint.SKIP

    def _node_helps(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        """A node that comes to a domain, leaves it, or counts there from now on or no more."""
        constraints = self._hard(pod)
        before, after = (_place(pod, constraints, one) for one in (old, new))
        return QueueingHint.QUEUE if before != after else QueueingHint.SKIP


def _has_own(pod: ClusterPod) -> bool:
    """Whether the pod has constraints of its own: then none of the defaults counts."""
    return bool(pod.spec.spread or pod.spec.soft_spread)


def _count(state: CycleState, pod: ClusterPod, node: NodeInfo, amount: int) -> None:
    if not pod.finished:
        for one in state.read(_HARD, _Hard).spreads:
            one.change(node.row, pod, amount)


def _counted(
    pod: ClusterPod, constraints: Iterable[SpreadConstraint], other: object
) -> tuple[bool, ...]:
    """Which constraints of a pod count another one."""
    return tuple(
        isinstance(other, ClusterPod)
        and other.namespace == pod.namespace
        and selects(selector_of(pod, one), other.labels)
        for one in constraints
    )


def _place(
    pod: ClusterPod, constraints: tuple[SpreadConstraint, ...], node: object
) -> object | None:
    """All that constraints look at in a node; None: it counts for none of them."""
    if not isinstance(node, ClusterNode):
        return None
    labels = node.labels
    if not all(one.topology_key in labels for one in constraints):
        return None
    affine = bool(pod.spec.node_selector) or pod.spec.node_terms is not None
    return (
        [labels[one.topology_key] for one in constraints],
        node.taints if any(one.honor_taints for one in constraints) else (),
        dict(labels) if affine and any(one.honor_affinity for one in constraints) else {},
    )
