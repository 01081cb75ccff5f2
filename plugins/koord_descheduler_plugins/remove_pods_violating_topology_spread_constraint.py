"""RemovePodsViolatingTopologySpreadConstraint: pods leave domains that have too many of them.

Source: sigs.k8s.io/descheduler, removepodsviolatingtopologyspreadconstraint.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from koord.api.labelselector import LabelSelector
from koord.plugin.args import FieldError, takes_args
from koord_descheduler.plugin import (
    Action,
    BalancePlugin,
    ClusterNode,
    ClusterPod,
    Evictions,
    Handle,
    HypotheticalCluster,
    Mask,
    Namespaces,
    PluginRegistry,
    PodSpec,
    Selector,
    SpreadConstraint,
    View,
    check_pods,
    least_important,
    matches_node_affinity,
    nodes_named,
    pods_in,
    selector_of,
    selects,
    tolerates_taints,
)


class ConstraintKind(StrEnum):
    """The kind of a topology spread constraint."""

    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovePodsViolatingTopologySpreadConstraintArgs:
    """Pods leave domains that have too many of them."""

    namespaces: Namespaces | None = None  # pods that may go; not set: all
    label_selector: LabelSelector | None = None  # pods that may go; not set: all
    constraints: tuple[ConstraintKind, ...] = (ConstraintKind.DO_NOT_SCHEDULE,)  # kinds that count
    topology_balance_node_fit: bool = True  # a pod goes only if a node of another domain fits

    def validate(self) -> Iterator[FieldError]:
        """Return the faults."""
        yield from check_pods(self.namespaces, self.label_selector)


@dataclass(slots=True)
class Imbalance:
    """A constraint whose domains differ by more than it allows."""

    namespace: str
    selector: Selector
    topology_key: str
    max_skew: int
    codes: NDArray[np.intp]  # domain of each node, -1: it does not count; (nodes,)
    names: list[str]  # of the domains
    counts: dict[int, int]  # pods by domain
    pods: dict[int, list[ClusterPod]]  # by domain, of those that should give some

    def means(self, pod: ClusterPod) -> bool:
        """Whether a pod counts."""
        return pod.namespace == self.namespace and selects(self.selector, pod.labels)

    def why(self, domain: int) -> str:
        """Why pods should leave a domain."""
        least = min(self.counts.values())
        return (
            f"its {self.topology_key} {self.names[domain]} has {self.counts[domain]} pods of its "
            f"topology spread, another has {least}; maxSkew is {self.max_skew}"
        )


@dataclass(frozen=True, slots=True)
class SpreadMove:
    """A pod that should leave its domain."""

    pod: ClusterPod
    why: str
    stays: bool = False  # it fits no node of a domain that has fewer
    target: str = ""  # a node where it could go; "": not asked for


@takes_args(RemovePodsViolatingTopologySpreadConstraintArgs, strict=False)
class RemovePodsViolatingTopologySpreadConstraint(BalancePlugin):
    """Evicts the fewest pods after which, placed well, no constraint is violated."""

    def __init__(
        self, args: RemovePodsViolatingTopologySpreadConstraintArgs, handle: Handle
    ) -> None:
        self._handle = handle
        self._args = args
        self._in_namespace = pods_in(args.namespaces)
        self._wanted = pods_in(args.namespaces, args.label_selector)

    async def balance(self, nodes: Sequence[ClusterNode]) -> None:
        view = self._handle.view_with_migrations()
        among = nodes_named(view, [node.name for node in nodes])
        found = await asyncio.to_thread(lambda: list(self._find(view, among)))
        with Evictions(self._handle, self.name) as evictions:
            for one in found:
                for domain, pods in one.pods.items():
                    wanted = list(filter(self._wanted, pods))
                    pods[:] = await evictions.those_that_may_go(wanted, one.why(domain))
            node_fit = self._args.topology_balance_node_fit
            async for step in evictions.steps(plan(view, among, found, node_fit=node_fit)):
                if step.stays:
                    reason = f"{step.why}; but it fits no node of a domain that has fewer"
                    evictions.findings.pod(step.pod, Action.STAY, reason)
                else:
                    await evictions.evict(step.pod, step.why, (step.target,) if step.target else ())

    def _find(self, view: View, among: Mask) -> Iterator[Imbalance]:
        seen: set[object] = set()
        for pod in examples(view, among, self._constraints):
            if not self._in_namespace(pod):
                continue
            for constraint in self._constraints(pod.spec):
                selector = selector_of(pod, constraint)
                spec = pod.spec
                key = (
                    pod.namespace,
                    constraint.topology_key,
                    constraint.max_skew,
                    selector,
                    (spec.node_selector, spec.node_terms) if constraint.honor_affinity else None,
                    spec.tolerations if constraint.honor_taints else None,
                )
                if not selector or key in seen:
                    continue
                seen.add(key)
                one = imbalance(view, among, pod, constraint, selector)
                if one is not None:
                    yield one

    def _constraints(self, spec: PodSpec) -> tuple[SpreadConstraint, ...]:
        """Those of the kinds that count."""
        kinds = self._args.constraints
        hard = spec.spread if ConstraintKind.DO_NOT_SCHEDULE in kinds else ()
        soft = spec.soft_spread if ConstraintKind.SCHEDULE_ANYWAY in kinds else ()
        return (*hard, *soft)


def examples(
    view: View, among: Mask, constraints: Callable[[PodSpec], Sequence[SpreadConstraint]]
) -> list[ClusterPod]:
    """One of all pods on some nodes that have the same labels and spec, of those with constraints.

    In the order of their names.
    """
    has = np.fromiter(
        (spec is not None and bool(constraints(spec)) for spec in view.specs), np.bool_
    )
    placed = view.placed
    numbers = np.flatnonzero(has[placed.spec] & among[placed.row] & ~placed.deleting)
    pairs = np.stack((placed.label_set[numbers], placed.spec[numbers]))
    _, first = np.unique(pairs, axis=1, return_index=True)
    chosen = np.zeros(len(placed.spec), np.bool_)
    chosen[numbers[first]] = True
    return sorted(view.pods_chosen(chosen), key=lambda pod: pod.key)


def imbalance(
    view: View, among: Mask, pod: ClusterPod, constraint: SpreadConstraint, selector: Selector
) -> Imbalance | None:
    """Return how a constraint of a pod is violated; None: it is not."""
    column = view.traits.label(constraint.topology_key)
    counted = among & column.present
    if constraint.honor_affinity:
        counted &= matches_node_affinity(pod, view)
    if constraint.honor_taints:
        counted &= tolerates_taints(pod, view)
    codes = np.where(counted, column.codes, -1)
    placed = view.placed
    chosen = view.pods_selected(pod.namespace, selector) & ~placed.deleting & counted[placed.row]
    totals = np.bincount(codes[placed.row[chosen]], minlength=len(column.index))
    counts = {domain: int(totals[domain]) for domain in np.unique(codes[counted]).tolist()}
    if not counts or max(counts.values()) - min(counts.values()) <= constraint.max_skew:
        return None
    least = min(counts.values())
    pods: dict[int, list[ClusterPod]] = {}
    crowded = np.array([counts.get(domain, 0) - least > constraint.max_skew
                        for domain in range(len(column.index))])  # fmt: skip
    for one in view.pods_chosen(chosen & crowded[codes[placed.row]]):
        pods.setdefault(int(codes[view.traits.rows[one.node]]), []).append(one)
    return Imbalance(
        namespace=pod.namespace,
        selector=selector,
        topology_key=constraint.topology_key,
        max_skew=constraint.max_skew,
        codes=codes,
        names=list(column.index),
        counts=counts,
        pods=pods,
    )


def plan(
    view: View, among: Mask, found: Iterable[Imbalance], *, node_fit: bool
) -> Iterator[SpreadMove]:
    """Yield the pods that should leave; with node_fit only those that fit a domain with fewer.

    What has moved for one constraint counts for the next ones, too.
    """
    rows = np.array(
        sorted(np.flatnonzero(among).tolist(), key=lambda row: view.node(row).name), np.intp
    )
    moves = HypotheticalCluster(view)
    moved: dict[str, tuple[ClusterPod, int | None]] = {}  # by key, with the new row
    for one in found:
        why = {domain: one.why(domain) for domain in one.pods}
        for pod, row in moved.values():
            if one.means(pod):
                for at, by in ((view.row(pod.node), -1), (row, 1)):
                    if at is not None and one.codes[at] >= 0:
                        one.counts[int(one.codes[at])] += by

        def place(
            pod: ClusterPod, domains: Sequence[int], codes: NDArray[np.intp] = one.codes
        ) -> int | None:
            target: int | None = None
            domain = domains[0]
            if node_fit:
                fits, here = moves.fits(pod)[rows], codes[rows]
                domain = next((each for each in domains if (fits & (here == each)).any()), -1)
                if domain < 0:
                    return None
                target = int(rows[np.argmax(fits & (here == domain))])
            moves.move(pod, target)
            moved[pod.key] = pod, target
            return domain

        free = {
            domain: sorted((pod for pod in pods if pod.key not in moved), key=_order)
            for domain, pods in one.pods.items()
        }
        for pod, giver, taker in even_out(one.counts, free, one.max_skew, place):
            row = moved[pod.key][1] if taker is not None else None
            target = "" if row is None else view.node(row).name
            yield SpreadMove(pod, why[giver], stays=taker is None, target=target)


def even_out(
    counts: dict[int, int],
    pods: Mapping[int, Sequence[ClusterPod]],
    max_skew: int,
    place: Callable[[ClusterPod, Sequence[int]], int | None],
) -> Iterator[tuple[ClusterPod, int, int | None]]:
    """Yield pods one by one, from which domain to which each should go; None: it cannot.

    counts, by domain, follow. place puts a pod into one of some domains, of which the first is the
    best, and returns which; None: it fits none. From the fullest domain to the emptiest, so no
    other way needs fewer moves.
    """
    free = {domain: deque(some) for domain, some in pods.items()}
    while True:
        least = min(counts.values())
        givers = [each for each, some in free.items() if some and counts[each] - least > max_skew]
        if not givers:
            return
        giver = max(givers, key=lambda each: (counts[each], -each))
        pod = free[giver].popleft()
        takers = [each for each in counts if counts[giver] - counts[each] > max_skew]
        taker = place(pod, sorted(takers, key=lambda each: (counts[each], each)))
        if taker is not None:
            counts[giver] -= 1
            counts[taker] += 1
        yield pod, giver, taker


def _order(pod: ClusterPod) -> tuple[object, ...]:
    """Pods that may go anywhere first, then the least important, then the youngest."""
    bound = bool(pod.spec.node_selector) or pod.spec.node_terms is not None
    return bound, *least_important(pod), -(pod.created or 0.0), pod.key


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register(
        "RemovePodsViolatingTopologySpreadConstraint", RemovePodsViolatingTopologySpreadConstraint
    )
