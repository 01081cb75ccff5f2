"""Reclaiming: a quota below its guarantee takes back what others use beyond what they may.

A pod that its quota admits may lack a node because other quotas use what they were lent. Pods of
these leave for it, whatever their priority. They do not come back to the same place: a quota that
has used more than its runtime does not admit them again. Koordinator waits for the borrowers to
end, or revokes after a delay; Kueue has it as reclaimWithinCohort.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from koord.api.elasticquota import Amounts
from koord.api.podgroup import PodGroup
from koord_scheduler.plugin import is_time_over, remaining_time
from koord_scheduler.plugin.preemption import Candidate, violated_budgets
from koord_scheduler.plugin.vector import Mask
from koord_scheduler_plugins.elastic_quota.preemption import (
    NEVER,
    ROWS,
    QuotaPod,
    RunningGangs,
    VictimSearch,
    WhatIf,
    over_use,
    quota_pod,
    units_of,
)
from koord_scheduler_plugins.elastic_quota.runtime import QuotaState

MAX_NODES = 100  # that are tried: each costs a what-if
NOT_BELOW = "its quota has its guarantee already"
NOBODY = "no pod of a quota that uses more than it may can leave"
NO_NODE = "no node is feasible without pods of quotas that use more than they may"


def is_below_guarantee(state: QuotaState, name: str, request: Amounts) -> bool:
    """Whether a quota with a pod that requests so much uses no more than its min.

    Only resources that the pod requests and the quota has count; without any it is not.
    """
    quota = state.tree.find(name)
    if quota is None:
        return False
    low, used = state.scaled_min(name), state.used(name)
    asked = [key for key, amount in request.items() if amount and key in quota.max]
    return bool(asked) and all(used.get(key, 0) + request[key] <= low.get(key, 0) for key in asked)


class Excess:
    """The usage of quotas of a tree beyond their runtime, while pods leave them."""

    def __init__(self, state: QuotaState, own: str) -> None:
        """own: the quota that reclaims; nothing is taken from it or its ancestors."""
        self._state = state
        self._own = frozenset(state.tree.path(own))
        self._used: dict[str, dict[str, int]] = {}  # by quota; of those that pods have left

    def is_over(self, name: str) -> bool:
        """Whether pods of a quota may leave: it uses more of a resource than its runtime."""
        if name in self._own or name not in self._state.tree.places:
            return False
        return bool(over_use(self._used_by(name), self._state.limit(name)))

    def leave(self, pods: Iterable[QuotaPod]) -> None:
        """Note pods that have left or are leaving."""
        for pod in pods:
            for name in self._state.tree.path(pod.quota):
                used = self._used.setdefault(name, dict(self._state.used(name)))
                for key, amount in pod.request.items():
                    used[key] = used.get(key, 0) - amount

    def take(self, unit: Sequence[QuotaPod]) -> bool:
        """Take pods out together, and return True, if all are of quotas that use too much.

        They stay if one of them requests nothing that its quota has too much of, or if that or an
        ancestor would use less than its min.
        """
        for pod in unit:
            if not self.is_over(pod.quota):
                return False
            over = over_use(self._used_by(pod.quota), self._state.limit(pod.quota))
            if not any(pod.request.get(key) for key in over):
                return False
        before = {name: dict(used) for name, used in self._used.items()}
        self.leave(unit)
        for pod in unit:
            for name in self._state.tree.path(pod.quota):
                low, used = self._state.scaled_min(name), self._used[name]
                if name not in self._own and any(
                    used.get(key, 0) < low.get(key, 0) for key in pod.request if pod.request[key]
                ):
                    self._used = before
                    return False
        return True

    def share(self, name: str) -> float:
        """Return the largest ratio of what a quota uses to its weight: who has most gives first."""
        quota = self._state.tree.find(name)
        if quota is None:
            return 0.0
        used = self._state.used(name)
        shares = (used.get(key, 0) / weight for key, weight in quota.weight.items() if weight)
        return max(shares, default=0.0)

    def _used_by(self, name: str) -> Amounts:
        return self._used.get(name) or self._state.used(name)


@dataclass(kw_only=True)
class QuotaReclaim(VictimSearch):
    """A pod that its quota admits and no node has room for. Nothing is changed."""

    rows: Mask  # nodes that evictions may make feasible; shape (nodes,)
    pod_groups: Mapping[str, PodGroup]  # of the cluster, by namespace/name
    _leaving: list[QuotaPod] = field(default_factory=list)

    async def find(self) -> Candidate | str:
        """Return a node and the victims, or why there are none.

        Raises:
            ExtensionPointError: a plugin has failed.
        """
        if self.pod.preemption_policy == "Never":
            return NEVER
        found = self.quotas.quota_of(self.pod)
        state = None if found is None else self.quotas.state_of(found[0])
        if found is None or state is None:
            return NOBODY
        name = found[0]
        if not is_below_guarantee(state, name, self.quotas.options.request(self.pod)):
            return NOT_BELOW
        units = await self._units(Excess(state, name))
        if not units:
            return NOBODY
        return await self._choose(units, state, name)

    async def _units(self, excess: Excess) -> list[tuple[QuotaPod, ...]]:
        """Pods that may leave, together where they are a gang, in the order in which they do."""
        gangs = RunningGangs(self.pod_groups)
        pods: list[QuotaPod] = []
        for row in range(len(self.nodes)):
            node = self.nodes.node(row).name
            for pod in self.nodes.pods(row):
                gangs.count(pod)
                if pod.finished or pod.node != node:
                    continue
                found = self.quotas.quota_of(pod)
                if found is None or not excess.is_over(found[0]):
                    continue
                one = quota_pod(pod, found[0], self.quotas.options.request(pod))
                if pod.deleting:
                    if self.quotas.counts(pod):
                        self._leaving.append(one)
                elif one.preemptible:
                    pods.append(one)
                    self._pods[pod.key] = pod
            if row % ROWS == 0:
                await remaining_time()
        units = units_of(pods, gangs.spare)
        units = [one for one in units if self._is_whole(one, gangs)]
        # The sort is stable: within a quota the least important pods are first.
        return sorted(units, key=lambda unit: -max(excess.share(one.quota) for one in unit))

    def _is_whole(self, unit: Sequence[QuotaPod], gangs: RunningGangs) -> bool:
        """Whether it is no gang, or one all of whose members may leave."""
        gang = unit[0].gang
        return len(unit) == 1 or gangs.spare.get(gang, 0) + len(unit) == gangs.running(gang)

    async def _choose(
        self, units: list[tuple[QuotaPod, ...]], state: QuotaState, own: str
    ) -> Candidate | str:
        ordered = sorted(self._pods.values(), key=lambda one: (-(one.priority or 0), one.key))
        protected = violated_budgets(ordered, self.budgets)
        by_node: dict[str, list[tuple[QuotaPod, ...]]] = {}
        for unit in units:
            for node in dict.fromkeys(one.node for one in unit):
                by_node.setdefault(node, []).append(unit)
        cluster = WhatIf(self)
        best: tuple[tuple[int, float, int, int], str, list[QuotaPod]] | None = None
        tried = 0
        for node, there in by_node.items():
            row = self.nodes.row(node)
            if row is None or not self.rows[row]:
                continue
            await remaining_time()
            if tried == MAX_NODES or is_time_over():
                break
            tried += 1
            excess = Excess(state, own)
            excess.leave(self._leaving)
            taken = [unit for unit in there if excess.take(unit)]
            victims = self._victims(cluster, node, taken, protected) if taken else None
            if victims is None:
                continue
            cost = (
                sum(one.key in protected for one in victims),
                -max(excess.share(one.quota) for one in victims),
                max(one.priority for one in victims),
                len(victims),
            )
            if best is None or cost < best[0]:
                best = cost, node, victims
        if best is None:
            return NO_NODE
        (violations, *_), node, victims = best
        victims.sort(key=lambda one: one.importance, reverse=True)
        return Candidate(node, tuple(self._pods[one.key] for one in victims), violations)

    def _victims(
        self,
        cluster: WhatIf,
        node: str,
        units: list[tuple[QuotaPod, ...]],
        protected: Iterable[str],
    ) -> list[QuotaPod] | None:
        """The pods that leave a node, as few as possible; None: all of them do not suffice."""
        trial, kept = cluster.clone(), frozenset(protected)
        trial.remove(self._pods[one.key] for unit in units for one in unit)
        if not trial.fits(node):
            return None
        victims: list[QuotaPod] = []
        # From the end: those of the quota that has most over leave first, the others come back.
        back = units[::-1]
        back.sort(key=lambda unit: not any(one.key in kept for one in unit))
        for unit in back:
            for one in unit:
                trial.add(self._pods[one.key])
            if not trial.fits(node):
                trial.remove(self._pods[one.key] for one in unit)
                victims += unit
        return victims or None
