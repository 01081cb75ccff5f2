"""A scheduler with Coscheduling, and pods of gangs."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from koord.api.podgroup import GROUP_LABEL, LIGHTWEIGHT_MIN_LABEL, LIGHTWEIGHT_NAME_LABEL
from koord.cluster.decoder import Decoder
from koord.cluster.keptfields import reads_of
from koord.cluster.kinds import NODE, POD
from koord.controlplane.testing import CapturedEvents
from koord.kube.events import Event
from koord_scheduler.framework.extension.networktopology import TOPOLOGIES, NetworkTopology
from koord_scheduler.framework.handle import Handle
from koord_scheduler.framework.interfaces import (
    FilterPlugin,
    PreBindExtensions,
    PreBindPlugin,
    pod_changes,
)
from koord_scheduler.framework.status import Status
from koord_scheduler.framework.types import NodeInfo
from koord_scheduler_plugins.coscheduling.plugin import Coscheduling, CoschedulingArgs
from koord_scheduler_plugins.coscheduling.serving import POD_GROUPS
from tests.support.clusters import read_node
from tests.support.scheduler.framework import FreeCpu
from tests.support.scheduler.loop import Loop

POINTS = (
    "preEnqueue",
    "preFilter",
    "preScore",
    "score",
    "reserve",
    "permit",
    "preBind",
    "postFilter",
)


class Patcher(PreBindPlugin, PreBindExtensions):
    """Remembers what it is to apply, and fails for pods with certain names."""

    def __init__(self) -> None:
        self.rejected: set[str] = set()
        self.annotations: dict[str, Any] = {}

    def pre_bind_pre_flight(self, state: Any, pod: Any, node_name: str) -> Status | None:
        """Skip a pod that nothing has changed yet, as DefaultPreBind does."""
        return None if pod.name in self.rejected or pod_changes(state).metadata else Status.skip()

    async def pre_bind(self, state: Any, pod: Any, node_name: str) -> Status | None:
        return Status.failed("no") if pod.name in self.rejected else None

    async def apply_patch(self, state: Any, pod: Any, changes: Any) -> Status | None:
        self.annotations[pod.name] = dict(changes.annotations)
        return None


def labels_of(minimum: int, gang: str = "g") -> dict[str, str]:
    """The labels of a member of a gang."""
    return {LIGHTWEIGHT_NAME_LABEL: gang, LIGHTWEIGHT_MIN_LABEL: str(minimum)}


class Never(FilterPlugin):
    """Rejects nodes for good."""

    def __init__(self) -> None:
        self.nodes: set[str] = set()

    def filter(self, state: Any, pod: Any, node: NodeInfo) -> Status | None:
        return Status.unresolvable("never") if node.name in self.nodes else None


class World(Loop):
    """A scheduler with the plugin, and nodes with so many cores."""

    more: Mapping[str, Mapping[str, Any]] = {}  # plugins by point, called before the others

    async def begin(self, *cores: int, network: bool = False, **args: Any) -> "World":
        """cores: of nodes n0, n1 and so on. network: it is followed. args: of the plugin."""
        if network:
            informer = self.services.informers.informer(TOPOLOGIES)
            followed = NetworkTopology(self.state, self.services.changes, informer, self.clock)
            self.services = replace(self.services, network=followed)
        self.patcher = Patcher()
        self.api.decoder = Decoder(reads_of(Coscheduling))

        def make(_: object, handle: Handle) -> Coscheduling:
            self.plugin = Coscheduling(CoschedulingArgs(**args), handle)
            return self.plugin

        self.registry.register("Coscheduling", make)
        points: dict[str, Any] = {point: {"Coscheduling": None} for point in POINTS}
        points["preBind"]["Patcher"] = self.patcher
        self.never = Never()
        points["filter"] = {"FreeCpu": FreeCpu(), "Never": self.never}
        for point, plugins in self.more.items():
            points[point] = {**plugins, **points.get(point, {})}
        await self.build(**points)
        for number, cpu in enumerate(cores):
            self.api.add_node(f"n{number}", cpu=str(cpu))
        await self.start()
        return self

    def add(self, name: str, minimum: int = 2, gang: str = "g", cpu: str = "1", **spec: Any) -> str:
        """A pod of a gang that its labels declare."""
        return self.api.add_pod(name, cpu=cpu, labels=labels_of(minimum, gang), **spec)

    def add_of_group(self, name: str, group: str = "g", cpu: str = "1", **spec: Any) -> str:
        """A pod of a gang that a PodGroup declares."""
        return self.api.add_pod(name, cpu=cpu, labels={GROUP_LABEL: group}, **spec)

    def pod_group(self, name: str, minimum: int, **annotations: str) -> None:
        meta = {"namespace": "default", "name": name, "uid": name, "annotations": annotations}
        self.services.informers.apply(
            POD_GROUPS, {"metadata": meta, "spec": {"minMember": minimum}}
        )

    def republish(self) -> None:
        """Have the scheduler learn of all nodes and pods, as at its start."""
        for item in self.api.nodes.values():
            self.state.put(NODE, read_node(item))
        for key in self.api.pods:
            self.state.put(POD, self.api.pod(key))

    @property
    def bound(self) -> list[str]:
        return sorted(key.partition("/")[2] for key, _ in self.api.bindings)

    @property
    def invalid_pod_groups(self) -> list[Event]:
        """The events about PodGroups."""
        recorded = self.services.events
        assert isinstance(recorded, CapturedEvents)
        return [one for one in recorded.events if one.reason == "InvalidPodGroup"]

    def message(self, name: str) -> str:
        """The latest reason for which a pod is not scheduled."""
        return next(text for pod, _, text in reversed(self.events) if pod == name)
