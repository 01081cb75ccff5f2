"""Which pods of a quota make room: for another pod of it, or because it uses more than it may.

For a pod the victims are chosen over the whole quota first, as its shortage is no matter of a
node; then a node is looked for that the pod fits on without them, or without further pods of its
quota there. Nobody is evicted unless the pod is admitted and has a node afterwards.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from koord.api.elasticquota import DEFAULT_QUOTA, Amounts, is_preemptible
from koord.api.podgroup import PodGroup, gang_of, is_of_pod_group, spec_of_pod
from koord_scheduler.plugin import ClusterPod, CycleState, View, is_time_over, remaining_time
from koord_scheduler.plugin.koordinator import HypotheticalCluster
from koord_scheduler.plugin.preemption import (
    BudgetsByNamespace,
    Candidate,
    NodeFilters,
    violated_budgets,
)
from koord_scheduler_plugins.elastic_quota.checks import AdmissionOptions, admission
from koord_scheduler_plugins.elastic_quota.quotas import Quotas


@dataclass(frozen=True, kw_only=True, slots=True)
class QuotaPod:
    """A pod that uses a quota."""

    key: str  # namespace/name
    uid: str = ""
    quota: str
    node: str = ""
    priority: int = 0
    started: float = 0.0  # Unix seconds
    request: Amounts
    preemptible: bool = True
    protected: bool = False  # evicting it would violate a PodDisruptionBudget
    gang: str = ""  # namespace/name; "": none

    @property
    def importance(self) -> tuple[int, float, str]:
        """Sort key: the least important pod first; of equal priority the one started last."""
        return (self.priority, -self.started, self.key)


def quota_pod(pod: ClusterPod, quota: str, request: Amounts) -> QuotaPod:
    """Return a pod as its quota, of which it takes so much, sees it; none is protected."""
    return QuotaPod(
        key=pod.key,
        uid=pod.uid,
        quota=quota,
        node=pod.node,
        priority=pod.priority or 0,
        started=pod.started or 0.0,
        request=request,
        preemptible=is_preemptible(pod.labels),
        gang=gang_of(pod.labels, dict(pod.annotations), pod.namespace),
    )


@dataclass(slots=True)
class _Gang:
    running: int = 0  # pods on nodes, without those that leave
    minimum: int = 0

    @property
    def spare(self) -> int:
        """How many members it can lose; all, if it lacks some of its minimum already."""
        if self.running < self.minimum:
            return self.running
        return self.running - self.minimum


class RunningGangs:
    """Gangs with pods on nodes, as far as they were counted."""

    def __init__(self, pod_groups: Mapping[str, PodGroup]) -> None:
        """pod_groups: those of the cluster, by namespace/name; live."""
        self._pod_groups = pod_groups
        self._gangs: dict[str, _Gang] = {}

    def count(self, pod: ClusterPod) -> None:
        """Count a pod on a node, and find the minimum of its gang."""
        if pod.finished or pod.deleting:
            return
        annotations = dict(pod.annotations)
        name = gang_of(pod.labels, annotations, pod.namespace)
        if not name:
            return
        gang = self._gangs.setdefault(name, _Gang())
        gang.running += 1
        group = self._pod_groups.get(name)
        spec = group.spec if group is not None else None
        if group is None and not is_of_pod_group(pod.labels):
            spec = spec_of_pod(name, pod.labels, annotations)
        if spec is not None:
            gang.minimum = max(gang.minimum, spec.min_members)

    def lose(self, name: str) -> None:
        """A pod of a gang, or of none, leaves."""
        if name in self._gangs:
            self._gangs[name].running -= 1

    def running(self, name: str) -> int:
        """How many pods a gang has on nodes."""
        return self._gangs[name].running if name in self._gangs else 0

    @property
    def spare(self) -> Mapping[str, int]:
        """How many members each gang can lose and still have its minimum."""
        return {name: gang.spare for name, gang in self._gangs.items()}


def candidates(
    pods: Iterable[QuotaPod], quota: str, priority: int, *, spare_default: bool = False
) -> list[QuotaPod]:
    """Return pods that one of this priority may preempt, the least important one first.

    spare_default: pods of the default quota are no victims.
    """
    if spare_default and quota == DEFAULT_QUOTA:
        return []
    found = (pod for pod in pods if pod.quota == quota and pod.preemptible)
    return sorted((pod for pod in found if pod.priority < priority), key=_importance)


def quota_victims(
    pods: Sequence[QuotaPod], admitted: Callable[[Amounts], bool]
) -> list[QuotaPod] | None:
    """Return the pods of a quota to evict so that a preemptor is admitted; None: none suffice.

    pods: candidates of the whole quota. admitted: whether the preemptor is admitted when so much
    of what the quota uses is freed. First all pods are taken away, then those come back without
    which it still is, those that a budget protects and the most important ones first. So nobody
    is evicted unless the preemptor is admitted afterwards.
    """
    freed: dict[str, int] = {}
    for pod in pods:
        _add(freed, pod.request, 1)
    if not admitted(freed):
        return None
    victims: list[QuotaPod] = []
    for pod in sorted(pods, key=_reprieve):
        _add(freed, pod.request, -1)
        if not admitted(freed):
            _add(freed, pod.request, 1)
            victims.append(pod)
    return victims


def over_use(used: Amounts, limit: Amounts) -> tuple[str, ...]:
    """Return the resources of which more is used than the limit; what it lacks is not limited."""
    return tuple(key for key in sorted(used) if key in limit and used[key] > limit[key])


def revoked(
    pods: Iterable[QuotaPod],
    used: Amounts,
    limit: Amounts,
    spare: Mapping[str, int] | None = None,
) -> list[QuotaPod]:
    """Return the pods of a quota to evict until what it uses is within its limit.

    The least important ones are collected until it is; if all of them do not suffice, all are
    evicted. Otherwise the most important ones of the collected come back as long as it is.

    spare: how many members each gang can lose and still have its minimum. Its further members are
    collected together, after all pods whose end breaks no gang.

    Source: Koordinator, QuotaOverUsedGroupMonitor.getToRevokePodList.
    """
    left = {key: amount for key, amount in used.items() if key in limit}
    collected: list[tuple[QuotaPod, ...]] = []
    for unit in units_of(pods, spare or {}):
        if not over_use(left, limit):
            break
        _add_all(left, unit, -1)
        collected.append(unit)
    if over_use(left, limit):
        return [pod for unit in collected for pod in unit]
    evicted: list[QuotaPod] = []
    for unit in reversed(collected):
        _add_all(left, unit, 1)
        if over_use(left, limit):
            _add_all(left, unit, -1)
            evicted += unit
    return evicted


def units_of(pods: Iterable[QuotaPod], spare: Mapping[str, int]) -> list[tuple[QuotaPod, ...]]:
    """Pods that leave together, the least important ones first, then whole gangs."""
    alone: list[tuple[QuotaPod, ...]] = []
    gang_members: dict[str, list[QuotaPod]] = {}
    left = dict(spare)
    for pod in sorted(pods, key=_importance):
        if not pod.preemptible:
            continue
        if pod.gang not in left or left[pod.gang] > 0:
            alone.append((pod,))
            if pod.gang in left:
                left[pod.gang] -= 1
        else:
            gang_members.setdefault(pod.gang, []).append(pod)
    gangs = sorted(gang_members.values(), key=lambda members: members[-1].importance)
    return [*alone, *map(tuple, gangs)]


@dataclass(frozen=True, slots=True)
class OverUse:
    """How long a quota has been using more than it may."""

    under_used: float  # seconds of a monotonic clock; when it last did not

    def next(self, now: float, delay: float, *, over: bool) -> tuple["OverUse", bool]:
        """Return the state after a round, and whether pods are to be revoked now.

        delay: seconds that use above the limit is tolerated.
        """
        if over and now - self.under_used <= delay:
            return self, False
        return OverUse(now), over


def _importance(pod: QuotaPod) -> tuple[int, float, str]:
    return pod.importance


def _reprieve(pod: QuotaPod) -> tuple[bool, int, float, str]:
    return (not pod.protected, -pod.priority, pod.started, pod.key)


def _add_all(amounts: dict[str, int], pods: Iterable[QuotaPod], sign: int) -> None:
    for pod in pods:
        _add(amounts, pod.request, sign)


def _add(amounts: dict[str, int], request: Amounts, sign: int) -> None:
    for key, amount in request.items():
        amounts[key] = amounts.get(key, 0) + sign * amount


ROWS = 256  # nodes whose pods are looked at in one step
NEVER = "not eligible due to preemptionPolicy=Never."
LEAVING = "not eligible due to terminating pods of the quota."
NO_VICTIMS = "No preemption victims found for incoming pod"
NO_NODE = "pods of the quota could make room in it, but no node is feasible without them"


@dataclass(kw_only=True)
class VictimSearch:
    """A pod that pods of quotas are to leave for, and the cluster in its cycle.

    None of it is changed.
    """

    pod: ClusterPod
    state: CycleState  # after PreFilter
    nodes: View
    quotas: Quotas
    filters: NodeFilters
    budgets: BudgetsByNamespace
    _pods: dict[str, ClusterPod] = field(default_factory=dict)  # that may leave, by key


@dataclass(kw_only=True)
class QuotaPreemption(VictimSearch):
    """A pod that its quota has no room for."""

    options: AdmissionOptions
    spare_default: bool  # pods of the default quota are no victims
    _leaving: dict[str, int] = field(default_factory=dict)  # requests of those that do

    async def find(self) -> Candidate | str:
        """Return a node and the victims, or why there are none.

        Raises:
            ExtensionPointError: a plugin has failed.
        """
        if self.pod.preemption_policy == "Never":
            return NEVER
        found = self.quotas.quota_of(self.pod)
        if found is None:
            return NO_VICTIMS
        name = found[0]
        pods, priority = await self._pods_of(name), self.pod.priority or 0
        lower = candidates(pods, name, priority, spare_default=self.spare_default)
        if self._leaving and self._admitted(name, {}):
            return LEAVING
        victims = quota_victims(lower, lambda freed: self._admitted(name, freed))
        if not victims:
            return NO_VICTIMS
        placed = await self._place(lower, victims)
        if placed is None:
            return NO_NODE
        node, also = placed
        chosen = self._needed(name, victims, also)
        violations = sum(one.protected for one in chosen)
        chosen.sort(key=lambda one: one.importance, reverse=True)
        return Candidate(node, tuple(self._pods[one.key] for one in chosen), violations)

    async def _pods_of(self, quota: str) -> list[QuotaPod]:
        """The pods of the quota on nodes, without those that leave already."""
        for row in range(len(self.nodes)):
            node = self.nodes.node(row).name
            for pod in self.nodes.pods(row):
                there = pod.node == node and not pod.finished
                found = self.quotas.quota_of(pod) if there else None
                if found is None or found[0] != quota:
                    continue
                if not pod.deleting:
                    self._pods[pod.key] = pod
                    continue
                if self.quotas.counts(pod):
                    _add(self._leaving, self.quotas.options.request(pod), 1)
            if row % ROWS == 0:
                await remaining_time()
        pods = sorted(self._pods.values(), key=lambda one: (-(one.priority or 0), one.key))
        protected = violated_budgets(pods, self.budgets)
        request = self.quotas.options.request
        return [
            replace(quota_pod(pod, quota, request(pod)), protected=pod.key in protected)
            for pod in pods
        ]

    def _admitted(self, name: str, freed: Amounts) -> bool:
        """Whether the quota admits the pod when so much is freed, and what leaves already."""
        state = self.quotas.state_of(name)
        if state is None:
            return False
        both = {
            key: freed.get(key, 0) + self._leaving.get(key, 0) for key in {*freed, *self._leaving}
        }
        rejection = admission(
            state,
            name,
            self.quotas.options.request(self.pod),
            preemptible=is_preemptible(self.pod.labels),
            options=self.options,
            freed=both,
        )
        return rejection is None

    async def _place(
        self, lower: list[QuotaPod], victims: list[QuotaPod]
    ) -> tuple[str, list[QuotaPod]] | None:
        """A node, and which pods there leave beyond the victims; None: there is none."""
        cluster = WhatIf(self)
        cluster.remove([self._pods[one.key] for one in victims])
        feasible = np.flatnonzero(cluster.feasible())
        if len(feasible):
            return self.nodes.node(int(feasible[0])).name, []
        gone = {one.key for one in victims}
        by_node: dict[str, list[QuotaPod]] = {}
        for one in lower:
            if one.key not in gone:
                by_node.setdefault(one.node, []).append(one)
        best: tuple[tuple[int, int], str, list[QuotaPod]] | None = None
        for node, others in by_node.items():
            await remaining_time()
            if is_time_over():
                break
            also = self._also(cluster, node, others)
            if also is not None:
                cost = (
                    sum(one.protected for one in also),
                    max((one.priority for one in also), default=0),
                )
                if best is None or cost < best[0]:
                    best = cost, node, also
        return None if best is None else (best[1], best[2])

    def _also(self, cluster: "WhatIf", node: str, others: list[QuotaPod]) -> list[QuotaPod] | None:
        """The further pods that have to leave a node, as few as possible; None: none suffice."""
        pods = [self._pods[one.key] for one in others]
        trial = cluster.clone()
        trial.remove(pods)
        if not trial.fits(node):
            return None
        also = []
        by_importance = sorted(others, key=lambda one: (not one.protected, -one.priority, one.key))
        for one in by_importance:
            trial.add(self._pods[one.key])
            if not trial.fits(node):
                trial.remove([self._pods[one.key]])
                also.append(one)
        return also

    def _needed(self, name: str, victims: list[QuotaPod], also: list[QuotaPod]) -> list[QuotaPod]:
        """The victims without those that may stay as others leave the node for the pod."""
        if not also:
            return victims
        node = also[0].node
        fixed = [*also, *(one for one in victims if one.node == node)]
        free = [one for one in victims if one.node != node]
        base: dict[str, int] = {}
        for one in fixed:
            for key, amount in one.request.items():
                base[key] = base.get(key, 0) + amount

        def admitted(freed: Amounts) -> bool:
            return self._admitted(
                name, {key: base.get(key, 0) + freed.get(key, 0) for key in {*base, *freed}}
            )

        return [*fixed, *(quota_victims(free, admitted) or ())]


@dataclass(kw_only=True)
class GroupQuotaPreemption(QuotaPreemption):
    """The members of a group in one quota, which has no room for all of them."""

    members: Sequence[ClusterPod]

    async def victims(self) -> tuple[list[QuotaPod], list[QuotaPod]] | str:
        """Return the pods of the quota that may leave, and those that must; or why none may."""
        found = self.quotas.quota_of(self.members[0])
        if found is None:
            return NO_VICTIMS
        name, priority = found[0], min(one.priority or 0 for one in self.members)
        pods = await self._pods_of(name)
        lower = candidates(pods, name, priority, spare_default=self.spare_default)
        if self._leaving and self._admitted(name, {}):
            return LEAVING
        chosen = quota_victims(lower, lambda freed: self._admitted(name, freed))
        return (lower, chosen) if chosen else NO_VICTIMS

    @property
    def is_short(self) -> bool:
        """Whether the quota lacks room for all of the members."""
        found = self.quotas.quota_of(self.members[0])
        return found is not None and not self._admitted(found[0], {})

    def pod_of(self, one: QuotaPod) -> ClusterPod:
        """The pod that was found under its key."""
        return self._pods[one.key]

    def _admitted(self, name: str, freed: Amounts) -> bool:
        """Whether the quota admits all members; of those that count against min, these alone."""
        state = self.quotas.state_of(name)
        if state is None:
            return False
        both = dict(freed)
        _add(both, self._leaving, 1)
        every: dict[str, int] = {}
        fixed: dict[str, int] = {}
        for pod in self.members:
            request = self.quotas.options.request(pod)
            _add(every, request, 1)
            if not is_preemptible(pod.labels):
                _add(fixed, request, 1)
        needs = [(every, True)] + ([(fixed, False)] if fixed else [])
        return all(
            admission(state, name, need, preemptible=preemptible, options=self.options, freed=both)
            is None
            for need, preemptible in needs
        )


MAX_REPRIEVED = 32  # pods of which each is tried alone whether a group can be placed beside it

Plan = Callable[[View], Mapping[str, str] | None]
"""Returns the nodes of all members of a group by namespace/name; None: they have none."""


async def make_room_for_group(
    preemptions: Sequence[GroupQuotaPreemption], nodes: View, plan: Plan
) -> tuple[Mapping[str, str], tuple[ClusterPod, ...], int] | str:
    """Return the members' nodes, the victims and violated budgets; or why there are none.

    preemptions: of the quotas that lack room, at least one. The victims are chosen once, for all
    members, so that each quota admits them; if they have no nodes then, further pods of these
    quotas leave, as few as possible. Nobody is a victim unless the whole group is planned.

    Raises:
        ExtensionPointError: a plugin has failed.
    """
    lower: dict[str, QuotaPod] = {}
    pods: dict[str, ClusterPod] = {}
    least: set[str] = set()
    for preemption in preemptions:
        found = await preemption.victims()
        if isinstance(found, str):
            return found
        lower.update((one.key, one) for one in found[0])
        pods.update((one.key, preemption.pod_of(one)) for one in found[0])
        least.update(one.key for one in found[1])
    cluster = HypotheticalCluster(nodes)
    gone: list[str] = []

    def leave(keys: Iterable[str]) -> None:
        for key in keys:
            cluster.remove(key, pods[key].node)
            gone.append(key)

    leave(least)
    planned = plan(cluster.view())
    if planned is None:
        others = [one for one in sorted(lower.values(), key=_reprieve) if one.key not in least]
        leave(one.key for one in others)
        await remaining_time()
        planned = plan(cluster.view()) if others else None
        if planned is None:
            return NO_NODE
        for one in others[:MAX_REPRIEVED]:
            await remaining_time()
            if is_time_over():
                return NO_NODE
            cluster.add(pods[one.key], one.node)
            again = plan(cluster.view())
            if again is None:
                cluster.remove(one.key, one.node)
            else:
                planned = again
                gone.remove(one.key)
    victims = sorted((lower[key] for key in gone), key=_importance, reverse=True)
    violations = sum(one.protected for one in victims)
    return planned, tuple(pods[one.key] for one in victims), violations


class WhatIf:
    """The cluster without some pods, as the plugins of the profile see it."""

    def __init__(self, of: VictimSearch, without: Iterable[ClusterPod] = ()) -> None:
        self._of = of
        self._cluster = HypotheticalCluster(of.nodes)
        self._state = of.state.clone()
        self._counted = of.filters.count_pods(of.state)
        self._without: dict[str, ClusterPod] = {}
        self.remove(without)

    def clone(self) -> "WhatIf":
        return WhatIf(self._of, self._without.values())

    def remove(self, pods: Iterable[ClusterPod]) -> None:
        of = self._of
        for pod in pods:
            self._cluster.remove(pod.key, pod.node)
            self._without[pod.key] = pod
            row = of.nodes.row(pod.node)
            if self._counted and row is not None:
                of.filters.remove_pod(self._state, of.pod, pod, self._cluster.view(), row)

    def add(self, pod: ClusterPod) -> None:
        of = self._of
        self._cluster.add(pod, pod.node)
        del self._without[pod.key]
        row = of.nodes.row(pod.node)
        if self._counted and row is not None:
            of.filters.add_pod(self._state, of.pod, pod, self._cluster.view(), row)

    def feasible(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which nodes the pod fits on; shape (nodes,), bool."""
        of, every = self._of, np.ones(len(self._of.nodes), np.bool_)
        found = of.filters.filter(self._state, of.pod, self._cluster.view(), every)
        return np.asarray(found.feasible)

    def fits(self, node: str) -> bool:
        of, row = self._of, self._of.nodes.row(node)
        if row is None:
            return False
        return of.filters.filter_row(self._state, of.pod, self._cluster.view(), row).ok
