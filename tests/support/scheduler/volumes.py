"""A cluster with storage, for tests of the plugins that are about volumes."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.controlplane.testing import make_pod
from koord.util.health import Health
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop
from koord_scheduler.cache import SchedulerCache
from koord_scheduler.framework.handle import Handle
from koord_scheduler.framework.interfaces import Plugin, PreFilterPlugin
from koord_scheduler.framework.nodes.search import SearchResult
from koord_scheduler.framework.status import SUCCESS, CycleState, PreFilterResult, Status
from tests.support.clusters import Json
from tests.support.scheduler.framework import Kit

DRIVER = "csi.test"
FAST = "fast"


def claims_of(*claims: str, ephemeral: Iterable[str] = (), **disks: Json) -> list[Json]:
    """volumes of a pod: claims, ephemeral ones by their names, disks by their fields."""
    named = [
        {"name": f"v{at}", "persistentVolumeClaim": {"claimName": claim}}
        for at, claim in enumerate(claims)
    ]
    made = [{"name": name, "ephemeral": {"volumeClaimTemplate": {}}} for name in ephemeral]
    return [*named, *made, *({"name": field, field: disk} for field, disk in disks.items())]


class Storage:
    """Objects by short calls; each may be called again to change the object."""

    def __init__(self) -> None:
        clock = SimulatedClock()
        state = SchedulerCache(clock)
        self.kit = Kit(clock, state)
        self.cluster = self.kit.cluster
        self.services = self.kit.services
        self.version = 0
        state.observe(self.services.changes.notify)

    def handle(self) -> Handle:
        return Handle(profile="p", services=self.services, filters=_no_filters)

    def view(self) -> View:
        return self.cluster.state.view()

    @asynccontextmanager
    async def parts_running(self) -> AsyncIterator["asyncio.Task[None]"]:
        """Run the shared parts of plugins; yields the task that ends when they are ready."""
        shared, clock = self.services.shared, self.kit.clock
        stop = Stop(clock)
        running = asyncio.create_task(shared.run(stop, clock, Health()))
        try:
            yield asyncio.create_task(shared.wait_ready())
        finally:
            stop.set()
            await running

    def node(self, name: str, **labels: str) -> None:
        """With labels whose keys have _ for /."""
        self.cluster.node(name, labels={key.replace("_", "/"): v for key, v in labels.items()})

    def pod(
        self,
        name: str = "web",
        *claims: str,
        node: str = "",
        namespace: str = "default",
        ephemeral: Iterable[str] = (),
        phase: str = "Running",
        **disks: Json,
    ) -> ClusterPod:
        """A pod that is in the cluster."""
        volumes = claims_of(*claims, ephemeral=ephemeral, **disks)
        return self.cluster.pod(
            name, node, namespace=namespace, spec={"volumes": volumes}, phase=phase
        )

    def wanted(
        self, *claims: str, ephemeral: Iterable[str] = (), name: str = "web", **disks: Json
    ) -> ClusterPod:
        """A pod that is to be scheduled, and not in the cluster."""
        volumes = claims_of(*claims, ephemeral=ephemeral, **disks)
        return make_pod(name, phase="Pending", spec={"volumes": volumes})

    def claim(
        self,
        name: str,
        volume: str = "",
        *,
        namespace: str = "default",
        cls: str = FAST,
        size: str | None = "1Gi",
        annotations: dict[str, str] | None = None,
        meta: Json | None = None,
        phase: str = "",
        **spec: Any,
    ) -> None:
        """With a volume it is bound, and that is completed."""
        notes = dict(annotations or {})
        if volume:
            notes.setdefault("pv.kubernetes.io/bind-completed", "yes")
        requests = {} if size is None else {"resources": {"requests": {"storage": size}}}
        self._apply(
            "PersistentVolumeClaim",
            {"name": name, "namespace": namespace, "annotations": notes, **(meta or {})},
            spec={"volumeName": volume, "storageClassName": cls, **requests, **spec},
            status={"phase": phase or ("Bound" if volume else "Pending")},
        )

    def volume(
        self,
        name: str,
        *zones: str,
        cls: str = FAST,
        size: str = "1Gi",
        phase: str = "Available",
        labels: dict[str, str] | None = None,
        meta: Json | None = None,
        **spec: Any,
    ) -> None:
        """That nodes in these zones reach; without any, all of them."""
        near: Json = {}
        if zones:
            expression = {"key": "zone", "operator": "In", "values": list(zones)}
            terms = [{"matchExpressions": [expression]}]
            near = {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}
        self._apply(
            "PersistentVolume",
            {"name": name, "labels": labels or {}, **(meta or {})},
            spec={
                "storageClassName": cls,
                "capacity": {"storage": size},
                "csi": {"driver": DRIVER, "volumeHandle": f"handle-{name}"},
                **near,
                **spec,
            },
            status={"phase": phase},
        )

    def storage_class(
        self,
        name: str = FAST,
        *zones: str,
        provisioner: str = DRIVER,
        mode: str | None = "WaitForFirstConsumer",
    ) -> None:
        """That makes volumes in these zones; without any, in all of them."""
        terms = [{"matchLabelExpressions": [{"key": "zone", "values": list(zones)}]}]
        self._apply(
            "StorageClass",
            {"name": name},
            provisioner=provisioner,
            volumeBindingMode=mode,
            allowedTopologies=terms if zones else None,
        )

    def csi_node(self, name: str, **limits: int | None) -> None:
        """Drivers with _ for . and their limits."""
        drivers = [
            {"name": driver.replace("_", "."), "nodeID": name, "allocatable": {"count": limit}}
            for driver, limit in limits.items()
        ]
        self._apply("CSINode", {"name": name}, spec={"drivers": drivers})

    def csi_driver(self, name: str = DRIVER, *, tracks_capacity: bool = True) -> None:
        self._apply("CSIDriver", {"name": name}, spec={"storageCapacity": tracks_capacity})

    def capacity(
        self,
        name: str,
        zone: str | None,
        capacity: str | None,
        *,
        cls: str = FAST,
        largest: str | None = None,
    ) -> None:
        topology = None if zone is None else {"matchLabels": {"zone": zone}}
        self._apply(
            "CSIStorageCapacity",
            {"name": name, "namespace": "csi"},
            storageClassName=cls,
            nodeTopology=topology,
            capacity=capacity,
            maximumVolumeSize=largest,
        )

    def attachment(self, name: str, node: str, volume: str, driver: str = DRIVER) -> None:
        source = {"persistentVolumeName": volume}
        spec = {"attacher": driver, "nodeName": node, "source": source}
        self._apply("VolumeAttachment", {"name": name}, spec=spec)

    async def search(self, plugin: Plugin, pod: ClusterPod) -> SearchResult:
        """The nodes that a plugin with Filter allows."""
        name = type(plugin).__name__
        search = await Kit().search(preFilter={name: plugin}, filter={name: plugin})
        return search.search(CycleState(), pod, self.view())

    async def search_pre_filter(self, plugin: Plugin, pod: ClusterPod) -> SearchResult:
        """The nodes that a plugin without Filter allows."""
        search = await Kit().search(preFilter={type(plugin).__name__: plugin})
        return search.search(CycleState(), pod, self.view())

    async def message(self, plugin: Plugin, pod: ClusterPod) -> str:
        """Why the pod is not scheduled; "" if there is a node for it."""
        found = await self.search(plugin, pod)
        return "" if found.status.ok else found.diagnosis.message()

    def pre_filter(self, plugin: PreFilterPlugin, pod: ClusterPod) -> Status:
        """What PreFilter says."""
        answer = plugin.pre_filter(CycleState(), pod, self.view())
        assert not isinstance(answer, PreFilterResult)
        return answer or SUCCESS

    def _apply(self, kind: str, meta: Json, **fields: Any) -> None:
        self.version += 1
        uid = f"uid-{meta['name']}"
        meta = {"uid": uid, "resourceVersion": str(self.version), **meta}
        self.cluster.apply({"kind": kind, "metadata": meta, **fields})


def _no_filters() -> Any:
    raise AssertionError("these plugins ask no others")
