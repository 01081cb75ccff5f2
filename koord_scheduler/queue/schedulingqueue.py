"""The queue: pods that are to be tried, wait for their backoff, or wait for something to happen.

Source: Kubernetes, pkg/scheduler/backend/queue/scheduling_queue.go.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice

from koord.cluster.facts import ClusterPod
from koord.util.clock import Clock
from koord.util.slices import Turn
from koord.util.stop import Stop
from koord_scheduler.framework.enqueueing import Enqueueing, Worth
from koord_scheduler.framework.events import WILDCARD, ClusterEvent
from koord_scheduler.framework.nominator import Nominator
from koord_scheduler.framework.queuedpod import QueuedPod
from koord_scheduler.queue.backoff import BackoffOptions
from koord_scheduler.queue.heap import KeyedHeap
from koord_scheduler.queue.inflight import Happened, InFlight
from koord_scheduler.queue.pool import Pool
from koord_scheduler.queue.shares import HINTS, FairHeap, NamespaceShares

FLUSH = 1.0  # seconds; of the backoffs that have ended
POOL_FLUSH = 30.0  # seconds
SLICE = 500  # pods that are moved before others on the event loop have their turn
MOST_ASKED = 64  # events about which many pods are asked one by one
MOST_REPLAYED = 1000  # events since a pod was popped about which it is asked one by one
LONGEST_IN_POOL = 300.0  # seconds that a rejected pod waits for an event, if nothing else is said

# Why pods come into a queue, beside cluster events: as kube-scheduler's metric names it.
POD_ADDED = "UnschedulablePodAdd"
ATTEMPT_FAILED = "ScheduleAttemptFailure"
BACKOFF_ENDED = "BackoffComplete"
TIMED_OUT = "UnschedulableTimeout"
ACTIVATED = "ForceActivate"
MANY_EVENTS = "ManyEvents"


class SchedulingQueue:
    """Pods by uid, each in one place: active, in backoff, in the pool, or in flight.

    Belongs to one thread, the event loop's.
    """

    def __init__(
        self,
        plugins: Enqueueing,
        nominator: Nominator,
        clock: Clock,
        backoff: BackoffOptions | None = None,
        incoming: Callable[[str, str], None] = lambda queue, event: None,
        *,
        longest_in_pool: float = LONGEST_IN_POOL,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        """incoming is called with the queue that a pod comes into, and the event that is why.

        longest_in_pool: seconds that a rejected pod waits for an event at most. cpu: seconds that
        this thread has computed.
        """
        self._longest_in_pool = longest_in_pool
        self._plugins = plugins
        self._nominator = nominator
        self._clock = clock
        self._options = backoff or BackoffOptions()
        self._cpu = cpu
        self._shares = NamespaceShares(clock)
        self._hint_shares = NamespaceShares(clock, HINTS)
        self._active = FairHeap(plugins.less, self._shares)
        self._backoff: KeyedHeap[QueuedPod] = KeyedHeap(self._sooner)
        self._errors: KeyedHeap[QueuedPod] = KeyedHeap(self._sooner)
        self._pool = Pool()
        self._flight = InFlight()
        self._ready = asyncio.Event()
        self._incoming = incoming
        self._later: list[tuple[Happened, str]] = []  # with the uid that each does not concern
        self._much = asyncio.Event()  # something is for later

    @property
    def pending(self) -> Mapping[str, int]:
        """How many pods there are by queue, as in scheduler_pending_pods."""
        return {
            "active": len(self._active),
            "backoff": len(self._backoff) + len(self._errors),
            "unschedulable": len(self._pool) - self._pool.gated,
            "gated": self._pool.gated,
        }

    @property
    def rejected_by_plugin(self) -> Mapping[tuple[str, str], int]:
        """How many pods of the pool each plugin keeps there, by profile and plugin."""
        pool = self._pool
        return {key: len(pool.rejected_by(*key)) for key in pool.plugins}

    @property
    def in_flight(self) -> InFlight:
        """Pods that were popped and are not done; only for looking."""
        return self._flight

    def wait_of(self, queued: QueuedPod) -> float:
        """Seconds that a pod waits after its last attempt, whatever happens."""
        return self._options.wait(queued)

    def place_of(self, uid: str) -> str:
        """Where a pod is: active, backoff, unschedulable, gated or inFlight; "": nowhere."""
        if uid in self._active:
            return "active"
        if uid in self._backoff or uid in self._errors:
            return "backoff"
        queued = self._pool.get(uid)
        if queued is not None:
            return _place_in_pool(queued)
        return "inFlight" if uid in self._flight else ""

    def some(self, most: int) -> list[tuple[str, QueuedPod]]:
        """At most so many pods that wait, with their places: rejected and gated ones first."""
        pool = ((_place_in_pool(one), one) for one in self._pool)
        backoff = (("backoff", one) for one in chain(self._backoff, self._errors))
        active = (("active", one) for one in self._active)
        return list(islice(chain(pool, backoff, active), most))

    def find(self, uid: str) -> QueuedPod | None:
        """What is known of a pod that waits; None: it does not, as while it is in flight."""
        for heap in (self._active, self._backoff, self._errors):
            queued = heap.get(uid)
            if queued is not None:
                return queued
        return self._pool.get(uid)

    def add(self, pod: ClusterPod) -> None:
        """Take over a pod that is to be scheduled; one that is there already is updated."""
        if self.place_of(pod.uid):
            self.update(pod, ())
            return
        now = self._clock.monotonic()
        self._activate(QueuedPod(pod=pod, timestamp=now), POD_ADDED)

    def update(
        self, pod: ClusterPod, events: Iterable[ClusterEvent], old: ClusterPod | None = None
    ) -> None:
        """Take over a changed pod; one that is not there is added.

        events: what has changed about it, for the plugins that rejected it.
        """
        self._nominator.update(pod)
        uid, happened = pod.uid, [Happened(event, old, pod) for event in events]
        if uid in self._flight:
            for each in happened:
                self._flight.note(each)
            return
        for heap in (self._active, self._backoff, self._errors):
            queued = heap.remove(uid)
            if queued is not None:
                queued.pod = pod
                heap.push(uid, queued)
                return
        queued = self._pool.get(uid)
        if queued is None:
            self._activate(QueuedPod(pod=pod, timestamp=self._clock.monotonic()), POD_ADDED)
            return
        queued.pod = pod
        for each in happened:
            if self._move(queued, each):
                return

    def forget(self, pod: ClusterPod) -> None:
        """Forget a pod that was deleted or is bound; one in flight is done with by its cycle."""
        self._nominator.forget(pod.key)
        self._take(pod.uid)

    async def pop(self) -> QueuedPod:
        """Return the next pod, when there is one; it is in flight until done or requeue."""
        while True:
            queued = self.pop_now()
            if queued is not None:
                return queued
            self._ready.clear()
            await self._ready.wait()

    def pop_now(self) -> QueuedPod | None:
        """Return the next pod; None: there is none.

        Without an active one it is the first in backoff, but none whose attempt ended in an error.
        """
        queued = self._active.pop() or self._backoff.pop()
        return None if queued is None else self._popped(queued)

    def pop_one(self, uid: str) -> QueuedPod | None:
        """Return a pod whatever it waits for, as pop_now; None: it is not here, or gated."""
        if self.place_of(uid) not in ("active", "backoff", "unschedulable"):
            return None
        queued = self._take(uid)
        return None if queued is None else self._popped(queued)

    def _popped(self, queued: QueuedPod) -> QueuedPod:
        queued.attempts += 1
        if queued.first_attempt is None:
            queued.first_attempt = self._clock.monotonic()
        queued.unschedulable_plugins = queued.pending_plugins = frozenset()
        self._flight.begin(queued.pod.uid)
        return queued

    def charge(self, namespace: str, seconds: float) -> None:
        """An attempt of a pod has taken so much computing: see NamespaceShares."""
        self._shares.charge(namespace, seconds)

    def done(self, uid: str) -> None:
        """A pod is not in flight any more, and does not come back."""
        self._flight.end(uid)

    def requeue(
        self,
        queued: QueuedPod,
        *,
        unschedulable_plugins: Iterable[str] = (),
        pending_plugins: Iterable[str] = (),
        cut: bool = False,
    ) -> None:
        """Take back a pod in flight whose attempt failed; without any plugin that was an error.

        cut: it was ended for time: the pod waits longer each time, whatever happens meanwhile.
        Its facts are those that the caller has given it since, if it was changed meanwhile.
        What has happened since it was popped counts as if it happened now.
        """
        uid = queued.pod.uid
        if self.place_of(uid) not in ("inFlight", ""):
            self._flight.end(uid)
            return
        queued.cuts = queued.cuts + 1 if cut else 0
        queued.unschedulable_plugins = frozenset(() if cut else unschedulable_plugins)
        queued.pending_plugins = frozenset(() if cut else pending_plugins)
        if queued.rejecting_plugins:
            queued.unschedulable_count += 1
            queued.consecutive_errors = 0
        else:
            queued.consecutive_errors += 1
        queued.timestamp = self._clock.monotonic()
        worth = self._worth_since_pop(queued)
        self._flight.end(uid)
        self._put(queued, worth, ATTEMPT_FAILED)

    def happened(
        self,
        event: ClusterEvent,
        old: object = None,
        new: object = None,
        *,
        only: str | None = None,
        without: str = "",
    ) -> int:
        """Something has happened in the cluster; return how many pods it has moved at once.

        only: the uid of the one pod that it concerns; None: all. without: of one that it does not.

        Where it concerns many, run moves them soon, in slices.
        """
        one = Happened(event, old, new)
        self._flight.note(one)
        if only is not None:
            queued = self._pool.get(only)
            return int(queued is not None and self._move(queued, one))
        if not len(self._pool):
            return 0
        concerned = self._concerned((one,))
        if sum(map(len, concerned)) > SLICE:
            self._later.append((one, without))
            self._much.set()
            return 0
        pods = {uid: queued for each in concerned for uid, queued in each.items()}
        pods.pop(without, None)
        return sum(self._move(queued, one) for queued in pods.values())

    def activate(self, uids: Iterable[str]) -> None:
        """Have pods be tried now, whatever they wait for; gates still count."""
        for uid in uids:
            queued = self._take(uid)
            if queued is not None:
                self._activate(queued, ACTIVATED)

    def flush_backoff(self, most: int = SLICE) -> int:
        """Move pods whose backoff has ended, at most so many; return how many."""
        moved, now = 0, self._clock.monotonic()
        for heap in (self._backoff, self._errors):
            while (
                moved < most
                and (first := heap.peek()) is not None
                and self._options.expiry(first) <= now
            ):
                heap.pop()
                self._activate(first, BACKOFF_ENDED)
                moved += 1
        return moved

    def flush_pool(self, most: int = SLICE) -> int:
        """Move pods that have waited for too long for an event, at most so many; return how many.

        Gated ones go on waiting.
        """
        before = self._clock.monotonic() - self._longest_in_pool
        timeout = Happened(WILDCARD, None, None)
        older = self._pool.older_than(before, most)
        return sum(self._move(queued, timeout, TIMED_OUT) for queued in older)

    async def run(self, stop: Stop) -> None:
        """Flush, and ask about events that concern many pods, until stop."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._flush(stop), name="queue flush")
            group.create_task(stop.bound(self._ask_later()), name="queue events")

    async def _ask_later(self) -> None:
        """Ask the hints about events that concern many pods, with pauses for the event loop.

        Events that come meanwhile are asked about together in the next round. Pods that are
        rejected after an event know it already, so it does no harm that they are asked, too.
        """
        while True:
            if not self._later:
                self._much.clear()
                await self._much.wait()
            events, self._later = self._later, []
            turn = Turn()
            for each in self._concerned([one for one, _ in events]):
                for uid in tuple(each):
                    self._ask_all(uid, events)
                    await turn.yield_if_over()

    def _ask_all(self, uid: str, events: Sequence[tuple[Happened, str]]) -> None:
        """Move a pod of the pool, if one of the events may help it.

        Where they are too many to be asked about one by one, any that a plugin has registered may.
        """
        queued = self._pool.get(uid)
        if queued is not None and len(events) > MOST_ASKED and not queued.gating_plugin:
            self._move(queued, Happened(WILDCARD, None, None), MANY_EVENTS)
            return
        for happened, without in events:
            queued = self._pool.get(uid)
            if queued is None or (uid != without and self._move(queued, happened)):
                return

    async def _flush(self, stop: Stop) -> None:
        """Flush at whole seconds."""
        next_pool = self._clock.monotonic() + POOL_FLUSH
        while True:
            now = self._clock.monotonic()
            if await stop.sleep(math.floor(now / FLUSH + 1) * FLUSH - now):
                return
            await _in_slices(self.flush_backoff)
            if self._clock.monotonic() >= next_pool:
                next_pool += POOL_FLUSH
                await _in_slices(self.flush_pool)

    def _worth_since_pop(self, queued: QueuedPod) -> Worth:
        if not queued.rejecting_plugins:
            return Worth.AFTER_BACKOFF
        found, happened = Worth.SKIP, self._flight.since_pop(queued.pod.uid)
        if happened is None or len(happened) > MOST_REPLAYED:
            return Worth.AFTER_BACKOFF  # too many to be asked about: one may help
        for each in happened:
            found = max(found, self._worth(queued, each))
            if found is Worth.AT_ONCE:
                break
        return found

    def _concerned(self, events: Iterable[Happened]) -> list[Mapping[str, QueuedPod]]:
        """Pods of the pool, by the plugins that rejected them and have registered an event."""
        kinds = {one.event for one in events}
        return [
            self._pool.rejected_by(profile, plugin)
            for profile, plugin in self._pool.plugins
            if any(
                event.wildcard or self._plugins.interested(profile, plugin, event)
                for event in kinds
            )
        ]

    def _move(self, queued: QueuedPod, happened: Happened, why: str = "") -> bool:
        """Move a pod out of the pool, if what has happened may help it; return whether it did.

        why: in the metric; "": the event.
        """
        worth = self._worth(queued, happened)
        if worth is Worth.SKIP:
            return False
        self._pool.remove(queued.pod.uid)
        self._put(queued, worth, why or happened.event.label)
        return not queued.gating_plugin

    def _worth(self, queued: QueuedPod, happened: Happened) -> Worth:
        """What is to be done with a pod after an event.

        While hints have taken too long for the pods of its namespace, they are not asked: any
        event that a plugin has registered may help.
        """
        namespace = queued.pod.namespace
        without_hints = self._hint_shares.is_over(namespace)
        began = self._cpu()
        worth = self._plugins.worth(
            queued, happened.event, happened.old, happened.new, without_hints=without_hints
        )
        self._hint_shares.charge(namespace, self._cpu() - began)
        return worth

    def _put(self, queued: QueuedPod, worth: Worth, why: str) -> None:
        waits = self._options.expiry(queued) > self._clock.monotonic()
        if worth is Worth.SKIP:
            self._pool.add(queued)
            self._incoming("unschedulable", why)
        elif worth is Worth.AFTER_BACKOFF and waits:
            if self._passes(queued, why):
                heap = self._errors if queued.consecutive_errors else self._backoff
                heap.push(queued.pod.uid, queued)
                self._incoming("backoff", why)
                self._ready.set()
        else:
            self._activate(queued, why)

    def _activate(self, queued: QueuedPod, why: str) -> None:
        if self._passes(queued, why):
            self._active.push(queued.pod.uid, queued)
            self._incoming("active", why)
            self._ready.set()

    def _passes(self, queued: QueuedPod, why: str) -> bool:
        """Whether no PreEnqueue plugin keeps the pod; one that is kept is in the pool."""
        status = self._plugins.gate(queued.pod, queued.gating_plugin)
        queued.gating_plugin = "" if status.ok else status.plugin
        if not status.ok:
            queued.unschedulable_plugins |= {status.plugin}
            self._pool.add(queued)
            self._incoming("gated", why)
        return status.ok

    def _take(self, uid: str) -> QueuedPod | None:
        """Take a pod from wherever it waits."""
        for heap in (self._active, self._backoff, self._errors):
            queued = heap.remove(uid)
            if queued is not None:
                return queued
        return self._pool.remove(uid)

    def _sooner(self, first: QueuedPod, second: QueuedPod) -> bool:
        """Pods whose backoff ends in the same second keep the order of the active queue."""
        expiries = self._options.expiry(first), self._options.expiry(second)
        if expiries[0] != expiries[1]:
            return expiries[0] < expiries[1]
        return self._plugins.less(first, second)


def _place_in_pool(queued: QueuedPod) -> str:
    return "gated" if queued.gating_plugin else "unschedulable"


async def _in_slices(flush: Callable[[], int]) -> None:
    """Flush until nothing is left, with the event loop's other work in between."""
    moved = flush()
    while moved:
        await asyncio.sleep(0)
        moved = flush()
