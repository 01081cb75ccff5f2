"""The quotas as they are now, and the pods that are tried again when they have room."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
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
from koord_scheduler_plugins.elastic_quota.checks import AdmissionOptions, admission
from koord_scheduler_plugins.elastic_quota.hooks import QuotaHooks
from koord_scheduler_plugins.elastic_quota.quotas import QuotaOptions, Quotas, start
from koord_scheduler_plugins.elastic_quota.runtime import QuotaState

MAX_REQUESTS = 256  # that are found too large in one look at a quota; then all others are tried

Room = dict[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class QuotaWaitingPod:
    """A pod in the queue that its quota, or that of another pod of its group, had no room for."""

    uid: str
    quota: str  # that had none
    need: Amounts  # it must have so much room; of a group: of all its pods in this quota
    preemptible: bool = True
    priority: int = 0
    created: float = 0.0  # Unix seconds

    @property
    def shape(self) -> tuple[bool, frozenset[tuple[str, int]]]:
        """Pods of a quota with the same one are admitted or not alike."""
        return self.preemptible, frozenset(self.need.items())


@dataclass(slots=True)
class _Waiting:
    """The pods that wait for one quota."""

    room: Room  # the least since it was looked at last
    pods: dict[str, QuotaWaitingPod] = field(default_factory=dict)  # by uid
    due: bool = False  # it must be looked at, whatever its room


class QuotaWaitingPods:
    """The index of pods by the quota that they wait for. Belongs to one thread."""

    def __init__(self, options: AdmissionOptions) -> None:
        self._options = options
        self._quotas: dict[str, _Waiting] = {}
        self.quotas_by_uid: dict[str, str] = {}
        """The quotas that pods wait for."""

    def __len__(self) -> int:
        return len(self.quotas_by_uid)

    def put(self, pod: QuotaWaitingPod, room: Room) -> None:
        """Add a waiting pod; room: of its quota when it was rejected."""
        self.remove(pod.uid)
        waiting = self._quotas.setdefault(pod.quota, _Waiting(room))
        waiting.room = _least(waiting.room, room)
        waiting.pods[pod.uid] = pod
        self.quotas_by_uid[pod.uid] = pod.quota

    def remove(self, uid: str) -> None:
        """A pod does not wait any more."""
        name = self.quotas_by_uid.pop(uid, None)
        if name is not None:
            waiting = self._quotas[name]
            del waiting.pods[uid]
            if not waiting.pods:
                del self._quotas[name]

    def find(self, uid: str) -> QuotaWaitingPod | None:
        """Return a pod that waits; None: it does not."""
        name = self.quotas_by_uid.get(uid)
        return None if name is None else self._quotas[name].pods[uid]

    def tried(self, quota: str) -> bool:
        """A pod was admitted to a quota; return whether others wait for it.

        They are looked at next time: it may be that the pod has not found a node.
        """
        waiting = self._quotas.get(quota)
        if waiting is not None:
            waiting.due = True
        return waiting is not None

    def ready(self, quotas: Quotas) -> list[str]:
        """Return the uids of pods that there is room for now, the most important first.

        They do not wait any more.
        """
        found: list[QuotaWaitingPod] = []
        for name, waiting in self._quotas.items():
            state = quotas.state_of(name)
            room = {} if state is None else room_of(state, name, self._options)
            if waiting.due or state is None or _grown(waiting.room, room):
                found += waiting.pods.values() if state is None else self._fitting(state, waiting)
            waiting.room, waiting.due = room, False
        found.sort(key=_order)
        for pod in found:
            self.remove(pod.uid)
        return [pod.uid for pod in found]

    def _fitting(self, state: QuotaState, waiting: _Waiting) -> Iterable[QuotaWaitingPod]:
        """Pods that fit together into the room of a quota, by priority and age."""
        taken: dict[str, int] = {}
        fixed: dict[str, int] = {}
        too_large: set[object] = set()
        for pod in sorted(waiting.pods.values(), key=_order):
            shape = pod.shape
            if shape in too_large:
                continue
            if len(too_large) < MAX_REQUESTS and admission(
                state,
                pod.quota,
                pod.need,
                preemptible=pod.preemptible,
                options=self._options,
                freed=taken,
                freed_non_preemptible=fixed,
            ):
                too_large.add(shape)
                continue
            for sums in (taken,) if pod.preemptible else (taken, fixed):
                for key, amount in pod.need.items():
                    sums[key] = sums.get(key, 0) - amount
            yield pod


def room_of(state: QuotaState, name: str, options: AdmissionOptions) -> Room:
    """Return what is left of each limit that pods of a quota are checked against."""
    found: Room = {}
    path = state.tree.path(name) if options.parents else (name,)
    for one in path:
        _leave(found, f"{one}/", state.limit(one), state.used(one))
    quota = state.tree.find(name)
    if quota is not None:
        _leave(found, "min/", quota.min, state.non_preemptible_used(name))
    return found


def _leave(room: Room, prefix: str, limit: Amounts, used: Amounts) -> None:
    for key, amount in limit.items():
        room[prefix + key] = amount - used.get(key, 0)


def _grown(before: Room, after: Room) -> bool:
    """Whether some limit has more left, or is gone."""
    return any(after.get(key, left + 1) > left for key, left in before.items())


def _least(one: Room, other: Room) -> Room:
    """The smaller of both; what one of them does not limit is limited by the other."""
    return {
        key: min(one.get(key, left), other.get(key, left)) for key, left in {**one, **other}.items()
    }


def _order(pod: QuotaWaitingPod) -> tuple[int, float, str]:
    return -pod.priority, pod.created, pod.uid


PART = "elastic quotas"
QUOTAS = ApiResource(API_VERSION, PLURAL)
WITHOUT = "all pods are in the default quota"
PAUSE = 0.02  # seconds between two looks at pods that wait
MAX_REST = 3600.0  # seconds between two looks if nothing changes
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
        self.hooks: QuotaHooks | None = None
        """Hooks that follow what it follows; set before the first list comes."""
        self._quotas = start(options)
        self._objects_changed = True
        self._nodes_changed = True
        self._waiting = QuotaWaitingPods(admission)
        self._followers: list[Callable[[], None]] = []
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
        self._quotas = self._quotas.with_time(self._services.clock.wall())
        return self._quotas

    @property
    def admits_all(self) -> bool:
        """Whether no pod can lack room and none waits for it, as where nobody uses quotas."""
        if self._objects_changed:
            self.current()
        return self._quotas.admits_all and not len(self._waiting)

    def follow(self, on_change: Callable[[], None]) -> None:
        """Call a function whenever admits_all may have changed."""
        self._followers.append(on_change)

    def _note(self) -> None:
        for each in self._followers:
            each()

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

    def wait(self, pod: QuotaWaitingPod, room: Room) -> None:
        """Try a pod again when its quota has room; room: at its rejection."""
        self._waiting.put(pod, room)
        self._note()
        self._woken.set()

    def waiting_pod(self, uid: str) -> QuotaWaitingPod | None:
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
                self._note()  # perhaps none waits any more
            pause = PAUSE + SHARE * (clock.monotonic() - began)
            if await stop.sleep(pause):
                return
            await stop.sleep(self._rest(), self._woken)

    def _rest(self) -> float:
        """Seconds until room comes for pods that wait, although nothing changes."""
        if not len(self._waiting):
            return MAX_REST
        left = self._quotas.next_overdue - self._services.clock.wall()
        return min(max(left, PAUSE), MAX_REST)

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
        if self.hooks is not None and self.hooks.entries:
            self.hooks.pod_changed(old, new)
        if not self._waiting.quotas_by_uid:
            return
        if old is not None and (new is None or new.uid != old.uid or new.node or new.finished):
            self._waiting.remove(old.uid)
        self._woken.set()

    def _changed(self, old: ElasticQuota | None, new: ElasticQuota | None) -> None:
        """Follow a change; the status that is written into quotas is none."""
        if old != new:
            self._objects_changed = True
            self._note()
            self._woken.set()
        if self.hooks:
            self.hooks.quota_changed(old, new)


def sum_of_nodes(view: View) -> Amounts:
    """Return what all nodes have together, by resource; exact also beyond 64 bits."""
    high = (view.allocatable >> 32).sum(axis=0).tolist()
    low = (view.allocatable & 0xFFFFFFFF).sum(axis=0).tolist()
    found: Mapping[str, int] = view.resources
    return {name: (high[at] << 32) + low[at] for name, at in found.items()}
