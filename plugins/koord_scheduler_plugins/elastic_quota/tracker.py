"""The quotas as they are now, and the pods that are tried again when they have room."""

import asyncio
from collections.abc import Mapping
from typing import Any

from koord.api.elasticquota import (
    API_VERSION,
    PLURAL,
    Amounts,
    ElasticQuota,
    read_elastic_quota,
)
from koord.plugin import OK, PartHealth, Stop
from koord.plugin.kube import ApiResource
from koord_scheduler.plugin import (
    NODE,
    POD,
    ClusterNode,
    ClusterPod,
    FollowedResource,
    Services,
    SharedPart,
    View,
)
from koord_scheduler_plugins.elastic_quota.checks import AdmissionOptions
from koord_scheduler_plugins.elastic_quota.quotas import QuotaOptions, Quotas, start
from koord_scheduler_plugins.elastic_quota.waiting import Room, WaitingPod, WaitingPods

PART = "elastic quotas"
QUOTAS = ApiResource(API_VERSION, PLURAL)
WITHOUT = "all pods are in the default quota"
PAUSE = 0.02  # seconds between two looks at pods that wait
SHARE = 9.0  # times as long as a look has taken nothing is done


class QuotaTracker(SharedPart):
    """Follows ElasticQuotas, nodes and the account, for all profiles of a process.

    Nothing is added up in event handlers: they only say that something has changed.
    """

    def __init__(
        self, services: Services, options: QuotaOptions, admission: AdmissionOptions
    ) -> None:
        self.options = options
        self.admission = admission
        self._services = services
        self._cluster = services.cluster
        self._quotas = start(options)
        self._objects_changed = True
        self._nodes_changed = True
        self._waiting = WaitingPods(admission)
        self._woken = asyncio.Event()
        services.cluster.keep_account(options.pods)
        self.followed: FollowedResource[ElasticQuota] = services.custom_resources.follow(
            QUOTAS, read_elastic_quota, self._changed, without=WITHOUT
        )
        services.changes.subscribe(NODE, self._node_changed)
        services.changes.subscribe(POD, self._pod_changed)

    def current(self) -> Quotas:
        """The quotas as they are now. Costs what has changed since it was asked last."""
        if self._objects_changed:
            self._objects_changed = False
            self._quotas = self._quotas.with_objects(self.followed.objects.values())
        if self._nodes_changed:
            self._nodes_changed = False
            self._quotas = self._quotas.with_nodes(sum_of_nodes(self._cluster.view()))
        self._quotas = self._quotas.with_account(self._cluster.account)
        return self._quotas

    @property
    def items(self) -> Mapping[str, Mapping[str, Any]]:
        """ElasticQuotas as they are in JSON, by namespace/name; rejected ones, too."""
        return self.followed.items

    def problems_of(self, key: str) -> tuple[str, ...]:
        """Return what is wrong with an object, namespace/name, by itself and among the others."""
        quota, rejected = self.followed.objects.get(key), self.followed.rejected.get(key)
        found = () if quota is None else self.current().problems_of(quota)
        return found if rejected is None else (rejected, *found)

    # Pods that wait.

    def wait(self, pod: WaitingPod, room: Room) -> None:
        """Have a pod tried again when its quota has room; room: what it had."""
        self._waiting.put(pod, room)
        self._woken.set()

    def waiting_pod(self, uid: str) -> WaitingPod | None:
        """Return a pod that waits; None: it does not."""
        return self._waiting.find(uid)

    def tried(self, pod: ClusterPod, quota: str) -> None:
        """A pod was admitted to its quota."""
        self._waiting.remove(pod.uid)
        if self._waiting.tried(quota):
            self._woken.set()

    async def run(self, stop: Stop) -> None:
        """Wake pods that their quota has room for, until stop."""
        clock = self._services.clock
        while not stop.is_set():
            self._woken.clear()
            began = clock.monotonic()
            if len(self._waiting):
                self._services.activate(self._waiting.ready(self.current()))
            pause = PAUSE + SHARE * (clock.monotonic() - began)
            if await stop.sleep(pause):
                return
            await stop.bound(self._woken.wait())

    async def wait_ready(self) -> None:
        """It knows enough from the beginning."""

    def health(self) -> PartHealth:
        return OK

    # What changes.

    def _node_changed(self, old: ClusterNode | None, new: ClusterNode | None) -> None:
        if old is None or new is None or old.allocatable != new.allocatable:
            self._nodes_changed = True
            self._woken.set()

    def _pod_changed(self, old: ClusterPod | None, new: ClusterPod | None) -> None:
        """Room may have come; a pod that is gone or has a node does not wait."""
        if old is not None and (new is None or new.uid != old.uid or new.node or new.finished):
            self._waiting.remove(old.uid)
        if len(self._waiting):
            self._woken.set()

    def _changed(self, old: ElasticQuota | None, new: ElasticQuota | None) -> None:
        """Follow a change; the status that is written into quotas is none."""
        if old != new:
            self._objects_changed = True
            self._woken.set()


def sum_of_nodes(view: View) -> Amounts:
    """Return what all nodes have together, by resource; exact also beyond 64 bits."""
    high = (view.allocatable >> 32).sum(axis=0).tolist()
    low = (view.allocatable & 0xFFFFFFFF).sum(axis=0).tolist()
    found: Mapping[str, int] = view.resources
    return {name: (high[at] << 32) + low[at] for name, at in found.items()}
