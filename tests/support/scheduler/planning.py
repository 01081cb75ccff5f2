"""Small clusters and small profiles, decided about without a scheduler."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.kinds import NODE
from koord.cluster.state import ClusterState
from koord.cluster.view import View
from koord.controlplane.testing import make_node
from koord_scheduler.config.profiles import EnabledPlugin, Point, Profile
from koord_scheduler.framework.handle import Handle, Services
from koord_scheduler.framework.interfaces import (
    BindPlugin,
    Plugin,
    PreEnqueuePlugin,
    ReservePlugin,
    VectorFilterPlugin,
)
from koord_scheduler.framework.profile import PluginRegistry, announce
from koord_scheduler.framework.status import CycleState, Status, Verdicts
from koord_scheduler.planning.simulation import PlannedProfiles, offline_services, plan_profiles
from tests.support.scheduler.framework import FirstCome, FreeCpu

Factory = Callable[[Any, Handle], Plugin]


class NoBinding(BindPlugin):
    """Nothing is bound in a plan."""

    async def bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        raise NotImplementedError


class EvenOnly(VectorFilterPlugin):
    """Rejects nodes with an odd number at the end of their names."""

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask | Verdicts:
        odd = [int(nodes.node(row).name[-1]) % 2 == 1 for row in range(len(nodes))]
        return Verdicts.of(~np.array(odd), Status.unresolvable("node(s) were odd"))


class Accounts(ReservePlugin):
    """Reserves as many pods as it may."""

    def __init__(self, most: int = 1000) -> None:
        self.most = most
        self.reserved: dict[str, str] = {}

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        if len(self.reserved) == self.most:
            return Status.unschedulable("no more")
        self.reserved[pod.key] = node_name
        return None

    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        self.reserved.pop(pod.key, None)


class NoDrafts(PreEnqueuePlugin):
    """Keeps pods that are called draft."""

    def pre_enqueue(self, pod: ClusterPod) -> Status | None:
        return Status.unresolvable("it is a draft") if pod.name.startswith("draft") else None


def small_cluster(**cpus: Any) -> ClusterState:
    """Nodes by name, each with so many cores."""
    state = ClusterState()
    for name, cpu in cpus.items():
        state.put(NODE, make_node(name, cpu=cpu))
    return state


async def planned(
    cluster: ClusterState,
    name: str = "koord-scheduler",
    made: Iterable[tuple[str, Factory, Point]] = (),
    **points: Mapping[str, Plugin],
) -> tuple[PlannedProfiles, Services]:
    """One profile: FreeCpu filters and scores unless points say otherwise.

    made: plugins that need a handle, by name, with the factory and the extension point.
    """
    free = FreeCpu()
    wanted: dict[str, Mapping[str, Plugin]] = {
        "queueSort": {"FirstCome": FirstCome()},
        "filter": {"FreeCpu": free},
        "score": {"FreeCpu": free},
        "bind": {"NoBinding": NoBinding()},
        **points,
    }
    registry, enabled = PluginRegistry(), {}
    for point, plugins in wanted.items():
        for each, plugin in plugins.items():
            if registry.get(each) is None:
                registry.register(each, lambda args, handle, plugin=plugin: plugin)
        enabled[Point(point)] = tuple(EnabledPlugin(each) for each in plugins)
    for each, factory, point in made:
        registry.register(each, factory)
        enabled[point] = (*enabled.get(point, ()), EnabledPlugin(each))
    services = offline_services(cluster, 0.0)
    settings = Profile(scheduler_name=name, plugins=enabled)
    profiles = await plan_profiles((settings,), registry, services)
    announce(services)
    return profiles, services
