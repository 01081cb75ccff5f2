"""A scheduler with Coscheduling, and pods of gangs."""

from dataclasses import replace
from typing import Any

from koord.api.podgroup import GROUP_LABEL, LIGHTWEIGHT_MIN_LABEL, LIGHTWEIGHT_NAME_LABEL
from koord.cluster.decoder import Decoder
from koord.cluster.keptfields import reads_of
from koord.controlplane.testing import CapturedEvents
from koord.kube.events import Event
from koord_scheduler.framework.extension.networktopology import TOPOLOGIES, NetworkTopology
from koord_scheduler.framework.handle import Handle
from koord_scheduler.framework.interfaces import PreBindExtensions, PreBindPlugin
from koord_scheduler.framework.status import Status
from koord_scheduler_plugins.coscheduling.plugin import Coscheduling, CoschedulingArgs
from koord_scheduler_plugins.coscheduling.serving import POD_GROUPS
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

    async def pre_bind(self, state: Any, pod: Any, node_name: str) -> Status | None:
        return Status.failed("no") if pod.name in self.rejected else None

    async def apply_patch(self, state: Any, pod: Any, changes: Any) -> Status | None:
        self.annotations[pod.name] = dict(changes.annotations)
        return None


class World(Loop):
    """A scheduler with the plugin, and nodes with so many cores."""

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
        await self.build(**points)
        for number, cpu in enumerate(cores):
            self.api.add_node(f"n{number}", cpu=str(cpu))
        await self.start()
        return self

    def add(self, name: str, minimum: int = 2, gang: str = "g", cpu: str = "1") -> str:
        """A pod of a gang that its labels declare."""
        labels = {LIGHTWEIGHT_NAME_LABEL: gang, LIGHTWEIGHT_MIN_LABEL: str(minimum)}
        return self._labelled(name, labels, cpu)

    def add_of_group(self, name: str, group: str = "g", cpu: str = "1") -> str:
        """A pod of a gang that a PodGroup declares."""
        return self._labelled(name, {GROUP_LABEL: group}, cpu)

    def _labelled(self, name: str, labels: dict[str, str], cpu: str) -> str:
        return self.api.add_pod(name, cpu=cpu, labels=labels)

    def pod_group(self, name: str, minimum: int, **annotations: str) -> None:
        meta = {"namespace": "default", "name": name, "uid": name, "annotations": annotations}
        self.services.informers.apply(
            POD_GROUPS, {"metadata": meta, "spec": {"minMember": minimum}}
        )

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
