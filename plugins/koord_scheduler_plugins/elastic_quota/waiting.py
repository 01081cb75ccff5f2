"""Pods that wait for room in their quota, and which of them to try again when there is some."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from koord.api.elasticquota import Amounts
from koord_scheduler_plugins.elastic_quota.checks import AdmissionOptions, admission
from koord_scheduler_plugins.elastic_quota.quotas import Quotas
from koord_scheduler_plugins.elastic_quota.runtime import QuotaState

MAX_REQUESTS = 256  # that are found too large in one look at a quota; then all others are tried

Room = dict[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingPod:
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
    pods: dict[str, WaitingPod] = field(default_factory=dict)  # by uid
    due: bool = False  # it must be looked at, whatever its room


class WaitingPods:
    """The index of pods by the quota that they wait for. Belongs to one thread."""

    def __init__(self, options: AdmissionOptions) -> None:
        self._options = options
        self._quotas: dict[str, _Waiting] = {}
        self._places: dict[str, str] = {}  # quotas by uid

    def __len__(self) -> int:
        return len(self._places)

    def put(self, pod: WaitingPod, room: Room) -> None:
        """Have a pod wait; room: what its quota had when it was rejected."""
        self.remove(pod.uid)
        waiting = self._quotas.setdefault(pod.quota, _Waiting(room))
        waiting.room = _least(waiting.room, room)
        waiting.pods[pod.uid] = pod
        self._places[pod.uid] = pod.quota

    def remove(self, uid: str) -> None:
        """A pod does not wait any more."""
        name = self._places.pop(uid, None)
        if name is not None:
            waiting = self._quotas[name]
            del waiting.pods[uid]
            if not waiting.pods:
                del self._quotas[name]

    def find(self, uid: str) -> WaitingPod | None:
        """Return a pod that waits; None: it does not."""
        name = self._places.get(uid)
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
        found: list[WaitingPod] = []
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

    def _fitting(self, state: QuotaState, waiting: _Waiting) -> Iterable[WaitingPod]:
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


def _order(pod: WaitingPod) -> tuple[int, float, str]:
    return -pod.priority, pod.created, pod.uid
