"""Preemption: which pods leave a node so that a pod of higher priority fits there. Pure.

Source: Kubernetes, pkg/scheduler/framework/preemption and plugins/defaultpreemption.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from koord.cluster.facts import PODS, ClusterPod, DisruptionBudget
from koord.cluster.predicates.nodes import free_amounts
from koord.cluster.view import View

NOTHING: Mapping[str, int] = MappingProxyType({})
BudgetsByNamespace = Mapping[str, Sequence[DisruptionBudget]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node on which a pod would fit without its victims."""

    node: str
    victims: tuple[ClusterPod, ...]  # at least one; the most important first
    violations: int = 0  # victims whose eviction a PodDisruptionBudget does not allow


class NodeTrial(Protocol):
    """Pods leave a node and come back, to see whether the preemptor fits beside them.

    For a group of preemptors these are the nodes of all of them.
    """

    def remove(self, pods: Sequence[ClusterPod]) -> None:
        """Remove pods from the node."""

    def add(self, pods: Sequence[ClusterPod]) -> None:
        """Return removed pods to the node."""

    def fits(self) -> bool:
        """Whether the preemptor fits now."""


def priority_of(pod: ClusterPod) -> int:
    """The priority; 0 of a pod that has none."""
    return pod.priority or 0


def may_preempt(pod: ClusterPod, victim: ClusterPod) -> bool:
    """Whether a pod goes before another one that takes resources."""
    return not victim.finished and priority_of(victim) < priority_of(pod)


def importance(pod: ClusterPod) -> tuple[int, float]:
    """Sorts the most important pod first: highest priority, then earliest start."""
    return -priority_of(pod), math.inf if pod.started is None else pod.started


def by_namespace(budgets: Iterable[DisruptionBudget]) -> BudgetsByNamespace:
    """The budgets of each namespace."""
    found: dict[str, list[DisruptionBudget]] = {}
    for budget in budgets:
        found.setdefault(budget.namespace, []).append(budget)
    return found


def violated_budgets(pods: Iterable[ClusterPod], budgets: BudgetsByNamespace) -> set[str]:
    """Keys of the pods whose eviction some budget does not allow, if they go in this order.

    A pod whose eviction a budget has counted already takes nothing from it.
    """
    left: dict[str, int] = {}
    found = set()
    for pod in pods:
        for budget in budgets.get(pod.namespace, ()):
            if pod.name in budget.disrupted or not budget.covers(pod):
                continue
            left[budget.key] = left.get(budget.key, budget.allowed) - 1
            if left[budget.key] < 0:
                found.add(pod.key)
    return found


def find_victims(
    pod: ClusterPod,
    on_node: Iterable[ClusterPod],
    trial: NodeTrial,
    budgets: BudgetsByNamespace,
    lacking: Mapping[str, int] = NOTHING,
    groups: Callable[[], Iterable[Collection[str]]] = tuple,
) -> tuple[list[ClusterPod], int] | None:
    """Return the pods that have to leave, the most important first, and how many violate budgets.

    All pods of lower priority leave; then each comes back if the preemptor still fits beside it:
    those first whose eviction violates a budget, the more important before the others. So none of
    those that are left as victims could stay. None: it does not fit without all of them either.

    lacking: what the preemptor is known to need of the resources of the victims, at least. Where
    nothing else forbids it the node, the pods are found by these sums, and the others never leave.
    That gives the same pods only if no rule of the preemptor needs a pod of lower priority to stay;
    with required pod affinity, give none.

    groups: of keys of pods that hold what lies together. If more than one pod would have to leave,
    each group is tried in the same way as if the others could not; the cheapest victims are taken.
    """
    lower = sorted((one for one in on_node if may_preempt(pod, one)), key=importance)
    protected = violated_budgets(lower, budgets)
    order = (
        [one for one in lower if one.key in protected],
        [one for one in lower if one.key not in protected],
    )
    victims = _by_amounts([*order[0], *order[1]], lacking) if lacking else None
    if victims is None:
        trial.remove(lower)
    else:
        trial.remove(victims)
        if trial.fits():
            return _cheapest(_found(victims, protected), lower, trial, budgets, groups)
        gone = {one.key for one in victims}
        trial.remove([one for one in lower if one.key not in gone])
    if not trial.fits():
        return None
    victims = [one for part in order for one in not_reprieved(part, trial)]
    return _cheapest(_found(victims, protected), lower, trial, budgets, groups)


def _cheapest(
    found: tuple[list[ClusterPod], int],
    lower: Sequence[ClusterPod],
    trial: NodeTrial,
    budgets: BudgetsByNamespace,
    groups: Callable[[], Iterable[Collection[str]]],
) -> tuple[list[ClusterPod], int]:
    """Return the victims that were found, or cheaper ones of one group alone."""
    if len(found[0]) < 2:
        return found
    gone: Sequence[ClusterPod] = found[0]
    for group in groups():
        leaving = [one for one in lower if one.key in group]
        if not leaving or len(leaving) == len(lower):
            continue
        trial.add(gone)
        trial.remove(leaving)
        gone = leaving
        if not trial.fits():
            continue
        protected = violated_budgets(leaving, budgets)
        parts = (
            [one for one in leaving if one.key in protected],
            [one for one in leaving if one.key not in protected],
        )
        gone = [one for part in parts for one in not_reprieved(part, trial)]
        other = _found(list(gone), protected)
        if gone and _cost(Candidate("", tuple(other[0]), other[1])) < _cost(
            Candidate("", tuple(found[0]), found[1])
        ):
            found = other
    return found


def choose(candidates: Iterable[Candidate]) -> Candidate | None:
    """Return the candidate that costs least; of several equal ones the first. None: there is none.

    Fewest violations of budgets, then the lowest priority of the most important victim, then the
    lowest sum of priorities, then fewest victims, then the latest start of the most important ones.
    """
    return min(candidates, key=_cost, default=None)


def candidates_wanted(nodes: int, percentage: int, absolute: int) -> int:
    """How many candidates are enough, of so many nodes that may become one."""
    return min(max(nodes * percentage // 100, absolute), nodes)


class LowerPriorityPods:
    """Requests of the pods with a lower priority than a pod, by node; a column is (nodes,)."""

    def __init__(self, pod: ClusterPod, nodes: View) -> None:
        self._nodes = nodes
        self._chosen = nodes.placed.priority < priority_of(pod)
        self._amounts: dict[str, NDArray[np.int64]] = {}
        self.count: NDArray[np.intp] = nodes.pods_per_node(self._chosen)

    def amount(self, resource: str) -> NDArray[np.int64]:
        """The sum of their requests, computed once; of "pods", their number."""
        found = self._amounts.get(resource)
        if found is None:
            found = self._amounts[resource] = self._sum(resource)
        return found

    def short_of(self, resource: str, wanted: int) -> NDArray[np.bool_]:
        """Nodes that have not so much of a resource free, even without these pods."""
        column = self._nodes.resources.get(resource)
        if column is None:
            return np.full(len(self._nodes), wanted > 0)
        free = free_amounts(self._nodes, column)
        short: NDArray[np.bool_] = free + self.amount(resource) < wanted
        return short

    def _sum(self, resource: str) -> NDArray[np.int64]:
        if resource == PODS:
            return self.count.astype(np.int64)
        placed, specs = self._nodes.placed, self._nodes.specs
        requests = (() if spec is None else spec.requests for spec in specs)
        of_spec = np.fromiter((dict(one).get(resource, 0) for one in requests), np.int64)
        amounts = of_spec[placed.spec[self._chosen]]
        found = np.zeros(len(self._nodes), np.int64)
        np.add.at(found, placed.row[self._chosen], amounts)
        return found


def _found(victims: list[ClusterPod], protected: set[str]) -> tuple[list[ClusterPod], int]:
    return sorted(victims, key=importance), sum(one.key in protected for one in victims)


def _by_amounts(pods: Sequence[ClusterPod], lacking: Mapping[str, int]) -> list[ClusterPod] | None:
    """The pods that cannot come back, in their order, for the rest to fit; None: it never does."""
    requests = [{PODS: 1, **dict(one.spec.requests)} for one in pods]
    free = {
        name: sum(each.get(name, 0) for each in requests) - amount
        for name, amount in lacking.items()
    }
    if min(free.values()) < 0:
        return None
    found = []
    for pod, amounts in zip(pods, requests, strict=True):
        if all(amounts.get(name, 0) <= left for name, left in free.items()):
            for name in free:
                free[name] -= amounts.get(name, 0)
        else:
            found.append(pod)
    return found


def not_reprieved(
    pods: Sequence[ClusterPod], trial: NodeTrial, *, fits: bool | None = None
) -> list[ClusterPod]:
    """Return removed pods, in order, as long as the preemptor fits; list those that cannot return.

    The result is as if one pod returned at a time, for rules that further pods never make easier:
    a part beside which it fits returns whole, another part is halved. fits: with all, if known.
    """
    if not pods:
        return []
    if fits is None:
        trial.add(pods)
        if trial.fits():
            return []
        trial.remove(pods)
    if len(pods) == 1:
        return list(pods)
    middle = len(pods) // 2
    first = not_reprieved(pods[:middle], trial)
    # With all of the first half back, the second one is what all of them were together.
    return first + not_reprieved(pods[middle:], trial, fits=None if first else False)


def _cost(candidate: Candidate) -> tuple[int, int, int, int, float]:
    victims = candidate.victims
    highest = max(map(priority_of, victims))
    starts = (one.started for one in victims if priority_of(one) == highest)
    earliest = min(math.inf if start is None else start for start in starts)
    # Raised so that all are positive: otherwise one victim more of a negative priority costs less.
    total = sum(priority_of(one) + 2**31 for one in victims)
    return candidate.violations, highest, total, len(victims), -earliest
