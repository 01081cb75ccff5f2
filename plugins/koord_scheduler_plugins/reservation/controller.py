"""The life of a Reservation after it was made: consumers, expiry, garbage collection.

Source: Koordinator, plugins/reservation/controller.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from koord.api.reservation import ALLOCATED
from koord.plugin import InvalidObject, LastingFailure, PartHealth, Stop, get_logger
from koord.plugin.kube import Conflict, EventType, KubeError, NotFound
from koord_scheduler.plugin import NODE, POD, ClusterNode, ClusterPod, Services
from koord_scheduler_plugins.reservation import status
from koord_scheduler_plugins.reservation.amounts import Amounts, amount_text, masked, total
from koord_scheduler_plugins.reservation.consumers import (
    CONSUMERS,
    allocated_reservation,
    pool_name,
)
from koord_scheduler_plugins.reservation.objects import Condition, Phase, Reservation
from koord_scheduler_plugins.reservation.serving import ReservationMetrics
from koord_scheduler_plugins.reservation.tracker import ReservationTracker

MIN_REQUEUE = 3.0  # seconds
MAX_REQUEUE = 15.0  # seconds


@dataclass(frozen=True, slots=True)
class Sync:
    """The work of a controller on one reservation."""

    status: Mapping[str, Any] | None = None  # to be written; None: it is as it should be
    requeue: float | None = None  # seconds; None: it is looked at when something changes


def sync(
    reservation: Reservation, consumers: Iterable[ClusterPod], now: float, *, node_exists: bool
) -> Sync:
    """Return what to do with a reservation.

    consumers: pods on its node that have been given it and have not finished. A reservation that
    was never scheduled expires like any other.
    """
    if reservation.terminated:
        return Sync()
    is_lost = bool(reservation.node) and not node_exists
    if is_lost or needs_expiration(reservation, now):
        return Sync(status.expired(reservation, now))
    recounted = _recounted(reservation, consumers, now) if reservation.node else None
    return Sync(status.judged(reservation, recounted, now), _requeue(reservation, now))


def needs_expiration(reservation: Reservation, now: float) -> bool:
    """Whether its time is over; one with a ttl of 0 has no end."""
    spec = reservation.spec
    if reservation.terminated or spec is None or spec.ttl == 0:
        return False
    if spec.expires is not None and now > spec.expires:
        return True
    created = reservation.created
    return spec.ttl is not None and created is not None and now - created > spec.ttl


def is_garbage(reservation: Reservation, now: float, keep: float, *, node_exists: bool) -> bool:
    """Whether a reservation is to be deleted.

    It has ended more than keep seconds ago, or its node is gone. One that has failed in another
    way than by its time counts from its last condition.
    """
    if not reservation.terminated:
        return False
    if reservation.node and not node_exists:
        return True
    ended = _ended(reservation)
    return ended is not None and now - ended > keep


def _recounted(
    reservation: Reservation, consumers: Iterable[ClusterPod], now: float
) -> dict[str, Any] | None:
    """The status with the consumers of now; None: it has them already."""
    pods = sorted(consumers, key=lambda pod: pod.uid)
    owners: list[Mapping[str, str]] = [
        {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid} for pod in pods
    ]
    allocatable = reservation.allocatable or {}
    allocated = masked(total(dict(pod.spec.requests) for pod in pods), allocatable)
    if _owners(reservation) == owners and _canonical(reservation.allocated) == _canonical(
        allocated
    ):
        return None
    recounted = status.with_consumers(reservation, owners, allocated)
    spec = reservation.spec
    if owners and spec is not None and spec.allocate_once:
        return status.succeeded(recounted, now)
    return recounted


def _owners(reservation: Reservation) -> list[Mapping[str, str]]:
    """The owners in its status, sorted as they are written."""
    written = reservation.raw.get("status")
    found = written.get("currentOwners") if isinstance(written, Mapping) else None
    owners = [
        {key: str(one.get(key) or "") for key in ("namespace", "name", "uid")}
        for one in (found if isinstance(found, list) else ())
        if isinstance(one, Mapping)
    ]
    return sorted(owners, key=lambda one: one["uid"])


def _canonical(amounts: Amounts) -> dict[str, str]:
    return {name: amount_text(name, value) for name, value in amounts.items() if value}


def _requeue(reservation: Reservation, now: float) -> float | None:
    spec = reservation.spec
    if spec is None or spec.ttl == 0:
        return None
    ends = [] if spec.expires is None else [spec.expires]
    if spec.ttl is not None and reservation.created is not None:
        ends.append(reservation.created + spec.ttl)
    return min(max(min(ends) - now, MIN_REQUEUE), MAX_REQUEUE) if ends else None


def _ended(reservation: Reservation) -> float | None:
    """When it ended, Unix seconds; None: nothing says it."""
    if reservation.phase == Phase.SUCCEEDED:
        times = [_probed(one) for one in reservation.conditions if one.reason == "Succeeded"]
    else:
        times = [one.changed for one in reservation.conditions if one.reason == "Expired"]
    times = times or [_probed(one) for one in reservation.conditions] or [reservation.created]
    return max((one for one in times if one is not None), default=None)


def _probed(condition: Condition) -> float | None:
    return condition.changed if condition.probed is None else condition.probed


PAUSE = 0.02  # seconds between two writes: at most fifty a second
RETRY = 5.0  # seconds after an error
SLICE = 64  # reservations that are looked at in one step

log = get_logger("koord_scheduler.reservation")


@dataclass(frozen=True, kw_only=True, slots=True)
class ControllerOptions:
    """How long Reservations are kept. All in seconds."""

    keep: float = 86400.0  # after they have ended
    gc_interval: float = 60.0
    resync_interval: float = 60.0
    collects_garbage: bool = True
    cleans_pods: bool = False  # pods lose the annotation of a Reservation that has gone


class ReservationController:
    """Works while this process leads. One event loop."""

    def __init__(
        self,
        services: Services,
        tracker: ReservationTracker,
        options: ControllerOptions,
        metrics: ReservationMetrics,
    ) -> None:
        self._services = services
        self._tracker = tracker
        self._options = options
        self._metrics = metrics
        self._changed: dict[str, None] = {}  # uids
        self._due: list[tuple[float, str]] = []  # a heap: monotonic seconds and uids
        self._planned: dict[str, float] = {}  # the time in the heap that counts, by uid
        self._given: dict[str, dict[str, None]] = {}  # keys of pods by uid, if they are cleaned
        self._wake = asyncio.Event()
        self._failure = LastingFailure(log)
        tracker.follow(self.note)
        services.changes.subscribe(POD, self._pod_changed, labels=frozenset())
        services.changes.subscribe(NODE, self._node_changed)

    def note(self, uid: str) -> None:
        """Something has changed about a reservation or its consumers."""
        self._changed[uid] = None
        self._wake.set()

    def _pod_changed(self, old: ClusterPod | None, new: ClusterPod | None) -> None:
        for pod in (old, new):
            if pod is None:
                continue
            try:
                found = allocated_reservation(pod)
            except InvalidObject:
                continue  # it consumes none
            if found is not None:
                self.note(found[1])
                self._note_given(pod, found[1], is_there=pod is new)

    def _note_given(self, pod: ClusterPod, uid: str, *, is_there: bool) -> None:
        """Remember which pods say that they have a reservation."""
        if not self._options.cleans_pods or (is_there and not pod.node):
            return  # an attempt goes on: its annotation is the scheduler's
        if is_there:
            self._given.setdefault(uid, {})[pod.key] = None
        elif uid in self._given:
            self._given[uid].pop(pod.key, None)
            if not self._given[uid]:
                del self._given[uid]

    def _node_changed(self, old: ClusterNode | None, new: ClusterNode | None) -> None:
        node = new or old
        if node is not None and (old is None or new is None):
            for found in self._tracker.on_node(node.name):
                self.note(found.uid)

    async def run(self, stop: Stop) -> None:
        """Work until stop; another replica may have left something undone."""
        clock, options = self._services.clock, self._options
        resync, collect = 0.0, clock.monotonic() + options.gc_interval
        while not stop.is_set():
            now = clock.monotonic()
            if now >= resync:
                for found in self._tracker.reservations.values():
                    self.note(found.uid)
                self._metrics.show(self._tracker.reservations)
                resync = now + options.resync_interval
            if options.collects_garbage and now >= collect:
                await self._collect(stop)
                collect = clock.monotonic() + options.gc_interval
            await self._sync_due(stop)
            if self._changed:
                continue
            self._wake.clear()
            times = [resync, *(at for at, _ in self._due[:1])]
            if options.collects_garbage:
                times.append(collect)
            await stop.sleep(min(times) - clock.monotonic(), wake=self._wake)

    async def wait_ready(self) -> None:
        """No cycle waits for it."""

    def health(self) -> PartHealth:
        """Degraded while Reservations cannot be written."""
        return self._failure.health()

    async def _sync_due(self, stop: Stop) -> None:
        for number, uid in enumerate(self._take_due()):
            if stop.is_set():
                return
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            await self._sync(uid, stop)

    def _take_due(self) -> Iterator[str]:
        """uids that have changed or whose time has come, each once."""
        now = self._services.clock.monotonic()
        while self._due and self._due[0][0] <= now:
            at, uid = heappop(self._due)
            if self._planned.get(uid) == at:
                self._changed[uid] = None
        found, self._changed = self._changed, {}
        for uid in found:
            self._planned.pop(uid, None)
            yield uid

    def _plan(self, uid: str, seconds: float) -> None:
        at = self._services.clock.monotonic() + seconds
        self._planned[uid] = at
        heappush(self._due, (at, uid))

    async def _sync(self, uid: str, stop: Stop) -> None:
        found = self._tracker.get(uid)
        if found is None:
            await self._clean_pods(uid, stop)
            return
        if not found.raw:
            return  # it is a pod that acts as one
        now = self._services.clock.wall()
        result = sync(found, self._consumers(found), now, node_exists=self._has_node(found))
        if result.requeue is not None:
            self._plan(uid, result.requeue)
        if result.status is None:
            return
        try:
            await status.write_status(self._services.client, found, result.status)
        except (NotFound, Conflict):
            self._plan(uid, RETRY)  # the watch says before that what it is now
        except KubeError as err:
            self._failed(found, err)
            self._plan(uid, RETRY)
        else:
            self._failure.ended("reservation.write_ok")
            if needs_expiration(found, now):
                text = f"its time is over; its room on node {found.node or '(none)'} is free"
                self._tracker.emit(found, EventType.NORMAL, "Expired", text)
        await stop.sleep(PAUSE)

    async def _clean_pods(self, uid: str, stop: Stop) -> None:
        """Take the annotation of a Reservation that has gone off its pods."""
        for key in tuple(self._given.get(uid, ())):
            pod, client = self._services.cluster.get(POD, key), self._services.client
            name, given = ("", "") if pod is None else _reservation_of(pod)
            if pod is None or given != uid or stop.is_set():
                continue
            try:
                # After a restart pods may be known before Reservations are.
                if await status.is_there(client, name, uid):
                    return
                await status.annotate(client, pod, {ALLOCATED: None})
            except (NotFound, Conflict):
                continue
            except KubeError as err:
                reason = f"pod {key} keeps the annotation of a Reservation that has gone: {err}"
                self._failure.failed("pod.clean_failed", reason, pod=key, error=str(err))
                self._plan(uid, RETRY)
                return
            self._failure.ended("reservation.write_ok")
            await stop.sleep(PAUSE)

    def _consumers(self, found: Reservation) -> list[ClusterPod]:
        """The pods on its node that have it, as the API server has them."""
        cluster = self._services.cluster
        pool = cluster.account.pool(CONSUMERS, pool_name(found.uid, found.node))
        pods = []
        for key in pool.members:
            pod = cluster.get(POD, key)
            if pod is not None and pod.node == found.node and not pod.finished:
                given = allocated_reservation(pod)
                if given is not None and given[1] == found.uid:
                    pods.append(pod)
        return pods

    def _has_node(self, found: Reservation) -> bool:
        return self._services.cluster.snapshot.node(found.node) is not None

    async def _collect(self, stop: Stop) -> None:
        """Delete those that have ended long enough ago, or whose node has gone."""
        now, keep = self._services.clock.wall(), self._options.keep
        for number, found in enumerate(tuple(self._tracker.reservations.values())):
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            if stop.is_set():
                return
            if found.deleting or not is_garbage(
                found, now, keep, node_exists=self._has_node(found)
            ):
                continue
            try:
                await status.delete(self._services.client, found)
            except KubeError as err:
                self._failed(found, err)
                return  # the next round tries again
            self._failure.ended("reservation.write_ok")
            log.info("reservation.collected", reservation=found.name, phase=found.phase)
            await stop.sleep(PAUSE)

    def _failed(self, found: Reservation, err: KubeError) -> None:
        reason = f"Reservation {found.name} cannot be written: {err}"
        self._failure.failed(
            "reservation.write_failed", reason, reservation=found.name, error=str(err)
        )


def _reservation_of(pod: ClusterPod) -> tuple[str, str]:
    """Name and uid of the reservation that a pod says it has; both "": none."""
    try:
        return allocated_reservation(pod) or ("", "")
    except InvalidObject:
        return "", ""
