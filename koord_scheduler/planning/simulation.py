"""Simulation: a scheduler places a list of pods one by one; nothing else changes meanwhile."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from random import Random

import numpy as np
from msgspec.structs import replace as changed

from koord.cluster.facts import ClusterPod
from koord.cluster.kinds import POD
from koord.cluster.view import View
from koord_scheduler.framework.binding import PodBinding
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.enqueueing import Enqueueing
from koord_scheduler.framework.handle import Services
from koord_scheduler.framework.interfaces import pod_changes
from koord_scheduler.framework.status import Status
from koord_scheduler.framework.types import QueuedPod
from koord_scheduler.planning.offline import PlannedProfiles


@dataclass(frozen=True, slots=True)
class Placed:
    """The result for one pod."""

    pod: ClusterPod
    node: str | None  # None: it stays pending
    message: str = ""  # why it does


@dataclass(frozen=True, slots=True)
class Evicted:
    """A pod that has left its node for another one."""

    pod: ClusterPod
    node: str
    by: str  # key of the pod that was placed there instead


@dataclass(frozen=True, slots=True)
class Utilization:
    """Requests as shares of what is allocatable, over the nodes that have some of a resource."""

    mean: float  # of all nodes together, 0 to 1
    highest: float
    lowest: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """The outcome of a simulation."""

    pods: tuple[Placed, ...]  # in the order in which they were tried
    evicted: tuple[Evicted, ...]  # in the order in which they have left
    before: Mapping[str, Utilization]  # by resource
    after: Mapping[str, Utilization]

    @property
    def pending(self) -> tuple[Placed, ...]:
        return tuple(one for one in self.pods if one.node is None)


class Simulation:
    """Places pods in a cluster state, which it changes; nothing else sees it."""

    def __init__(self, profiles: PlannedProfiles, services: Services) -> None:
        self._profiles = profiles
        self._services = services
        self._queue = Enqueueing([one.plugins for one in profiles.all])
        self._evicted: list[Evicted] = []

    async def play(
        self,
        pods: Iterable[ClusterPod],
        resources: Sequence[str],
        draw: Random,
        progress: Callable[[float], None] = lambda share: None,
    ) -> Simulated:
        """Try all pods once, in the order in which the queue would have them.

        Pods without a feasible node preempt the victims that PostFilter of their profile names:
        these leave at once, are not made anew, and the pod is tried again. Gated pods and those for
        which that is no help stay pending; none waits for a permit.
        progress is given the share of the pods that were tried, from 0 to 1.

        Raises:
            UnknownScheduler: a pod asks for a scheduler that has no profile; nothing was tried.
        """
        cluster, ordered = self._services.cluster, self._ordered(pods)
        before = utilization(cluster.view(), resources)
        placed = []
        for number, pod in enumerate(ordered, 1):
            placed.append(await self._place(pod, draw))
            progress(number / len(ordered))
        gone = {one.pod.uid: one for one in self._evicted}
        return Simulated(
            pods=tuple(_unless_evicted(one, gone.get(one.pod.uid)) for one in placed),
            evicted=tuple(self._evicted),
            before=before,
            after=utilization(cluster.view(), resources),
        )

    def _ordered(self, pods: Iterable[ClusterPod]) -> list[ClusterPod]:
        queued = []
        for number, pod in enumerate(pods):
            self._profiles.of(pod)
            queued.append(QueuedPod(pod=pod, timestamp=float(number)))
        return [one.pod for one in sorted(queued, key=cmp_to_key(self._order))]

    def _order(self, one: QueuedPod, other: QueuedPod) -> int:
        less = self._queue.less
        return -1 if less(one, other) else int(less(other, one))

    async def _place(self, pod: ClusterPod, draw: Random) -> Placed:
        profile = self._profiles.of(pod)
        cluster, changes = self._services.cluster, self._services.changes
        cluster.put(POD, pod)
        changes.notify(POD, None, pod)
        gate = self._queue.gate(pod)
        if not gate.ok:
            return Placed(pod, None, gate.message)
        decision = profile.decider.decide(pod, cluster.view())
        preemption = await profile.decider.preemption(decision)
        if preemption is not None and preemption.nominated_node:
            self._evict(preemption.victims, pod)
            self._services.nominator.nominate(pod, preemption.nominated_node)
            decision = profile.decider.decide(pod, cluster.view())
        node = decision.choose(draw)
        if node is None:
            return Placed(pod, None, decision.message)
        there = changed(pod, node=node)
        cluster.put(POD, there)
        self._services.nominator.forget(pod.key)
        status = _reserve(profile.binding, decision.state, there, node)
        if not status.ok:
            cluster.put(POD, pod)
            return Placed(pod, None, status.message)
        written = pod_changes(decision.state).annotations
        if written:  # what the pod holds is read from them, as devices are
            merged = {**dict(there.annotations), **written}
            kept = sorted((key, text) for key, text in merged.items() if text is not None)
            there = changed(there, annotations=tuple(kept))
            cluster.put(POD, there)
        changes.notify(POD, pod, there)
        return Placed(pod, node)

    def _evict(self, victims: Iterable[ClusterPod], pod: ClusterPod) -> None:
        """Remove victims at once, without their grace period."""
        for victim in victims:
            self._services.cluster.remove(POD, victim.key, victim.uid)
            self._services.changes.notify(POD, victim, None)
            self._evicted.append(Evicted(victim, victim.node, pod.key))


def _unless_evicted(placed: Placed, gone: Evicted | None) -> Placed:
    """Return the final result for a pod."""
    if gone is None:
        return placed
    return Placed(placed.pod, None, f"evicted from {gone.node} for {gone.by}")


def _reserve(binding: PodBinding, state: CycleState, pod: ClusterPod, node: str) -> Status:
    status = binding.reserve(state, pod, node)
    if not status.ok:
        binding.unreserve(state, pod, node)
    return status


def utilization(view: View, resources: Iterable[str]) -> dict[str, Utilization]:
    """Return how much of each resource is requested; of one that no node has nothing."""
    found = {}
    for name in resources:
        column = view.resources.get(name)
        if column is None:
            continue
        allocatable = view.allocatable[:, column]
        has = allocatable > 0
        if has.any():
            shares = view.requested[has, column] / allocatable[has]
            mean = float(view.requested[has, column].sum() / allocatable[has].sum())
            found[name] = Utilization(mean, float(np.max(shares)), float(np.min(shares)))
    return found
