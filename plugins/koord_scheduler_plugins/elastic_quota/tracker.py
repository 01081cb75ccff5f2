"""The quotas as they are now, and the pods that are tried again when they have room."""

import asyncio
from collections.abc import Mapping

from koord.api.elasticquota import (
    API_VERSION,
    KIND,
    PLURAL,
    Amounts,
    ElasticQuota,
    last_good,
    read_elastic_quota,
)
from koord.plugin import OK, KoordError, PartHealth, Stop, get_logger
from koord.plugin.kube import (
    ApiResource,
    Change,
    ChangeKind,
    Event,
    EventType,
    MissingKind,
    ObjectRef,
)
from koord_scheduler.plugin import (
    NODE,
    POD,
    ClusterNode,
    ClusterPod,
    Services,
    SharedPart,
    View,
)
from koord_scheduler_plugins.elastic_quota.checks import AdmissionOptions
from koord_scheduler_plugins.elastic_quota.pods import QUOTA_PODS
from koord_scheduler_plugins.elastic_quota.quotas import QuotaOptions, Quotas, start
from koord_scheduler_plugins.elastic_quota.waiting import Room, WaitingPod, WaitingPods

PART = "elastic quotas"
QUOTAS = ApiResource(API_VERSION, PLURAL)
MISSING = MissingKind(
    pause=60.0,
    hint="install the CRD elasticquotas.scheduling.sigs.k8s.io, or disable plugin ElasticQuota",
)
WITHOUT = "all pods are in the default quota"
PAUSE = 0.02  # seconds between two looks at pods that wait
SHARE = 9.0  # times as long as a look has taken nothing is done

log = get_logger("koord_scheduler.elastic_quota")


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
        self._objects: dict[str, ElasticQuota] = {}  # by namespace/name; the last good ones
        self.items: dict[str, object] = {}  # ElasticQuotas as they are in JSON, by namespace/name
        self._said: dict[str, tuple[str, ...]] = {}  # problems that were reported, by object
        self._objects_changed = False
        self._nodes_changed = True
        self._waiting = WaitingPods(admission)
        self._woken = asyncio.Event()
        services.cluster.keep_account(QUOTA_PODS)
        informer = services.informers.informer(QUOTAS, absent=MISSING, without=WITHOUT)
        informer.add_handler(self._quota_changed)
        services.changes.subscribe(NODE, self._node_changed)
        services.changes.subscribe(POD, self._pod_changed)

    def current(self) -> Quotas:
        """The quotas as they are now. Costs what has changed since it was asked last."""
        if self._objects_changed:
            self._objects_changed = False
            self._quotas = self._quotas.with_objects(self._objects.values())
            for quota in self._objects.values():
                self._report(quota, self._quotas.problems_of(quota))
        if self._nodes_changed:
            self._nodes_changed = False
            self._quotas = self._quotas.with_nodes(sum_of_nodes(self._cluster.view()))
        self._quotas = self._quotas.with_account(self._cluster.account)
        return self._quotas

    # Pods that wait.

    def wait(self, pod: WaitingPod, room: Room) -> None:
        """Have a pod tried again when its quota has room; room: what it had."""
        self._waiting.put(pod, room)
        self._woken.set()

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

    def _quota_changed(self, change: Change[object]) -> None:
        if change.kind is ChangeKind.SYNCED:
            return
        known = self._objects.get(change.key)
        if change.new is not None:
            self.items[change.key] = change.new
        else:
            self.items.pop(change.key, None)
            self._objects.pop(change.key, None)
            self._said.pop(change.key, None)
            self._changed(known, None)
            return
        try:
            read = read_elastic_quota(change.new)
        except KoordError as err:
            log.warning("quota.invalid", quota=change.key, error=str(err))
            return
        if known is not None and known.uid != read.uid:
            known = None
        found = last_good(known, read)
        if found is None:
            self._report(read, read.problems)
            self._objects.pop(change.key, None)
        else:
            self._objects[change.key] = found
        self._changed(known, found)

    def _changed(self, old: ElasticQuota | None, new: ElasticQuota | None) -> None:
        """The status that is written into quotas changes nothing of them."""
        if old != new:
            self._objects_changed = True
            self._woken.set()

    def _report(self, quota: ElasticQuota, problems: tuple[str, ...]) -> None:
        """Say once what is wrong with an object."""
        if not problems or self._said.get(quota.key) == problems:
            return
        self._said[quota.key] = problems
        text = "; ".join(problems)
        log.warning("quota.invalid", quota=quota.key, error=text)
        about = ObjectRef(API_VERSION, KIND, quota.name, quota.namespace, quota.uid)
        self._services.events.emit(
            Event(about, EventType.WARNING, "InvalidQuota", text[:1000], "koord-scheduler")
        )


def sum_of_nodes(view: View) -> Amounts:
    """Return what all nodes have together, by resource; exact also beyond 64 bits."""
    high = (view.allocatable >> 32).sum(axis=0).tolist()
    low = (view.allocatable & 0xFFFFFFFF).sum(axis=0).tolist()
    found: Mapping[str, int] = view.resources
    return {name: (high[at] << 32) + low[at] for name, at in found.items()}
