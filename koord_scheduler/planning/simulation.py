"""Decisions without a running scheduler: profiles, services, and lists of pods, one by one."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cmp_to_key
from random import Random

import numpy as np
from msgspec.structs import replace as changed
from prometheus_client import CollectorRegistry

from koord.cluster.decoder import Decoder
from koord.cluster.facts import ClusterPod
from koord.cluster.keptfields import NO_FIELDS, KeptFields
from koord.cluster.kinds import POD
from koord.cluster.state import ClusterState
from koord.cluster.view import View
from koord.controlplane.offline import (
    DiscardingEventRecorder,
    EmptyInformers,
    FixedWallClock,
    UnreachableTransport,
)
from koord.kube.client import ApiClient
from koord.util.errors import KoordError
from koord_scheduler.config.profiles import Profile
from koord_scheduler.config.v1 import GROUP_VERSION, KIND
from koord_scheduler.framework.binding import PodBinding
from koord_scheduler.framework.handle import Informers, Services, new_services
from koord_scheduler.framework.interfaces import pod_changes
from koord_scheduler.framework.nodes.filtering import NodeScoring
from koord_scheduler.framework.nodes.search import NodeSearch
from koord_scheduler.framework.profile import (
    Enqueueing,
    PluginRegistry,
    ProfileError,
    ProfilePlugins,
    build_profile,
)
from koord_scheduler.framework.status import CycleState, Status
from koord_scheduler.framework.types import QueuedPod
from koord_scheduler.planning.decision import Decider, Decision

EXTRA_PLUGINS = ("LoadAwareScheduling",)


def default_plan_configuration(schedulers: Iterable[str], known: Collection[str]) -> bytes:
    """Return a configuration file: the default plugins and BESIDE_DEFAULTS, for these schedulers.

    known: the plugins that are installed.
    """
    enabled = [{"name": name} for name in EXTRA_PLUGINS if name in known]
    plugins = {"multiPoint": {"enabled": enabled}}
    document = {
        "apiVersion": GROUP_VERSION,
        "kind": KIND,
        "profiles": [{"schedulerName": name, "plugins": plugins} for name in schedulers],
    }
    return json.dumps(document).encode()


def offline_services(
    cluster: ClusterState,
    now: float,
    kept: KeptFields = NO_FIELDS,
    informers: Informers | None = None,
) -> Services:
    """Return services for a cluster as it was at so many Unix seconds.

    kept: what plugins read of pods beyond what is always kept. informers: of custom resources;
    None: there are none.
    """
    clock = FixedWallClock(now)
    return new_services(
        client=ApiClient(UnreachableTransport(), clock),
        events=DiscardingEventRecorder(),
        informers=EmptyInformers() if informers is None else informers,
        cluster=cluster,
        activate=_nothing_waits,
        clock=clock,
        registry=CollectorRegistry(),
        decoder=Decoder(kept),
    )


def _nothing_waits(uids: Iterable[str]) -> None:
    """There is no queue."""


class UnbuildableProfiles(KoordError):
    """Plugins of the configuration cannot be made; the message has all that is wrong."""


class UnknownScheduler(KoordError):
    """A pod asks for a scheduler that has no profile."""


@dataclass(frozen=True, slots=True)
class PlannedProfile:
    """One profile, and what decides by it."""

    plugins: ProfilePlugins
    decider: Decider
    binding: PodBinding


class PlannedProfiles:
    """Profiles by scheduler name. Close them at the end."""

    def __init__(self, profiles: Mapping[str, PlannedProfile]) -> None:
        self._profiles = profiles

    @property
    def all(self) -> Sequence[PlannedProfile]:
        return tuple(self._profiles.values())

    def of(self, pod: ClusterPod) -> PlannedProfile:
        """The profile that a pod asks for.

        Raises:
            UnknownScheduler: there is none.
        """
        found = self._profiles.get(pod.scheduler_name)
        if found is None:
            known = ", ".join(self._profiles)
            raise UnknownScheduler(
                f"pod {pod.key}: wanted spec.schedulerName to be that of a profile ({known}), "
                f'found "{pod.scheduler_name}"'
            )
        return found

    async def close(self) -> None:
        """Let all plugins clean up."""
        for one in self._profiles.values():
            await one.plugins.close()


async def plan_profiles(
    settings: Sequence[Profile], registry: PluginRegistry, services: Services
) -> PlannedProfiles:
    """Make the plugins of all profiles.

    Raises:
        UnbuildableProfiles: as it says; what was made is closed.
    """
    made: dict[str, PlannedProfile] = {}
    errors = []
    for one in settings:
        try:
            plugins = await build_profile(one, registry, services)
        except ProfileError as err:
            errors.append(str(err))
        else:
            search = NodeSearch(plugins, services.nominator)
            binding = PodBinding(plugins)
            decider = Decider(one.scheduler_name, search, NodeScoring(plugins), binding)
            made[one.scheduler_name] = PlannedProfile(plugins, decider, binding)
    profiles = PlannedProfiles(made)
    if errors:
        await profiles.close()
        raise UnbuildableProfiles("; ".join(errors))
    return profiles


@dataclass(frozen=True, slots=True)
class Placed:
    """The result for one pod."""

    pod: ClusterPod
    node: str | None  # None: it stays pending
    message: str = ""  # why it does
    annotations: Mapping[str, str] = field(default_factory=dict)  # that plugins write in Reserve


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
        return Placed(pod, node, annotations=_texts(written))

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


def reserved_annotations(
    profile: PlannedProfile, services: Services, decision: Decision
) -> Mapping[str, str]:
    """Return what plugins write on a pod on the node that it would go to, such as its CPUs.

    The pod is on that node from then on, in this cluster that nothing else sees.
    """
    node = decision.choose()
    if node is None:
        return {}
    there = changed(decision.pod, node=node)
    services.cluster.put(POD, there)
    status = _reserve(profile.binding, decision.state, there, node)
    return _texts(pod_changes(decision.state).annotations) if status.ok else {}


def _texts(written: Mapping[str, str | None]) -> Mapping[str, str]:
    return {key: text for key, text in sorted(written.items()) if text is not None}


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
