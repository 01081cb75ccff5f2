"""Keeps the statuses of Reservations: consumers, expiry; and deletes those that have ended.

Source: Koordinator, plugins/reservation/controller.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from koord.plugin import InvalidObject, LastingFailure, PartHealth, Stop, get_logger
from koord.plugin.kube import Conflict, EventType, KubeError, NotFound
from koord_scheduler.plugin import NODE, POD, ClusterNode, ClusterPod, Services
from koord_scheduler_plugins.reservation import writing
from koord_scheduler_plugins.reservation.consumers import (
    CONSUMERS,
    allocated_reservation,
    pool_name,
)
from koord_scheduler_plugins.reservation.lifetime import is_garbage, needs_expiration, sync
from koord_scheduler_plugins.reservation.objects import Reservation
from koord_scheduler_plugins.reservation.serving import ReservationMetrics
from koord_scheduler_plugins.reservation.tracker import ReservationTracker

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
        self._wake = asyncio.Event()
        self._failure = LastingFailure(log)
        tracker.follow(self.note)
        services.changes.subscribe(POD, self._pod_changed)
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
        if found is None or not found.raw:
            return  # it has gone, or it is a pod that acts as one
        now = self._services.clock.wall()
        result = sync(found, self._consumers(found), now, node_exists=self._has_node(found))
        if result.requeue is not None:
            self._plan(uid, result.requeue)
        if result.status is None:
            return
        try:
            await writing.write_status(self._services.client, found, result.status)
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
                await writing.delete(self._services.client, found)
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
