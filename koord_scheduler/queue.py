"""The scheduling queue: active pods, pods in backoff, and unschedulable pods."""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, takewhile

from koord.cluster.facts import ClusterPod
from koord.util.clock import Clock
from koord.util.stop import Stop
from koord.util.timebudget import Turn
from koord_scheduler.activequeue import (
    HINTS,
    FairHeap,
    InFlight,
    InFlightEvent,
    KeyedHeap,
    NamespaceShares,
)
from koord_scheduler.framework.nominator import Nominator
from koord_scheduler.framework.profile import Enqueueing, RequeueDecision
from koord_scheduler.framework.types import WILDCARD, ClusterEvent, QueuedPod


@dataclass(frozen=True, kw_only=True, slots=True)
class BackoffOptions:
    """Seconds. The wait doubles with each attempt."""

    initial: float = 1.0
    most: float = 10.0  # 0: there is no backoff
    initial_cut: float = 5.0  # after an attempt that was ended for time
    most_cut: float = 300.0

    def wait(self, queued: QueuedPod) -> float:
        """Seconds from the last attempt: by its rejections, or by its errors if they were last, or
        by the attempts that were ended for time.
        """
        if queued.cuts:
            return min(self.initial_cut * 2.0 ** min(queued.cuts - 1, 63), self.most_cut)
        count = queued.consecutive_errors or queued.unschedulable_count
        if not count or not self.most:
            return 0.0
        return min(self.initial * 2.0 ** min(count - 1, 63), self.most)

    def expiry(self, queued: QueuedPod) -> float:
        """Monotonic seconds at which the wait ends: whole ones, so that pods of a second go on
        together, in their order.
        """
        seconds = self.wait(queued)
        return math.floor(queued.timestamp + seconds) if seconds else queued.timestamp


class UnschedulablePods:
    """Pods by uid, in the order of their arrival, and by (profile, plugin) that rejected them."""

    def __init__(self) -> None:
        self._pods: dict[str, QueuedPod] = {}
        self._plugins: dict[tuple[str, str], dict[str, QueuedPod]] = {}
        self._of_pod: dict[str, tuple[tuple[str, str], ...]] = {}
        self._rejected: dict[str, QueuedPod] = {}  # those that are not gated; the oldest first

    @property
    def gated(self) -> int:
        """How many of them a PreEnqueue plugin keeps."""
        return len(self._pods) - len(self._rejected)

    def __len__(self) -> int:
        return len(self._pods)

    def __iter__(self) -> Iterator[QueuedPod]:
        """All of them, the oldest first; nothing may change meanwhile."""
        return iter(self._pods.values())

    @property
    def plugins(self) -> Collection[tuple[str, str]]:
        """Profiles and plugins that have rejected any of them."""
        return tuple(self._plugins)

    def rejected_by(self, profile: str, plugin: str) -> Mapping[str, QueuedPod]:
        """The pods, by uid, that a plugin has rejected."""
        return self._plugins.get((profile, plugin), {})

    def get(self, uid: str) -> QueuedPod | None:
        return self._pods.get(uid)

    def add(self, queued: QueuedPod) -> None:
        """Add a pod; its plugins do not change while it is here."""
        uid, profile = queued.pod.uid, queued.pod.scheduler_name
        names = {queued.gating_plugin} if queued.gating_plugin else queued.rejecting_plugins
        self._pods[uid] = queued
        self._of_pod[uid] = tuple((profile, name) for name in sorted(names))
        if not queued.gating_plugin:
            self._rejected[uid] = queued
        for key in self._of_pod[uid]:
            self._plugins.setdefault(key, {})[uid] = queued

    def remove(self, uid: str) -> QueuedPod | None:
        """Take a pod out; None: it is not here."""
        queued = self._pods.pop(uid, None)
        if queued is None:
            return None
        self._rejected.pop(uid, None)
        for key in self._of_pod.pop(uid):
            pods = self._plugins[key]
            del pods[uid]
            if not pods:
                del self._plugins[key]
        return queued

    def older_than(self, moment: float, most: int) -> list[QueuedPod]:
        """Rejected pods that arrived before that moment, in monotonic seconds; at most so many."""
        older = takewhile(lambda queued: queued.timestamp < moment, self._rejected.values())
        return list(islice(older, most))


FLUSH = 1.0  # seconds; of the backoffs that have ended
UNSCHEDULABLE_FLUSH = 30.0  # seconds
SLICE = 500  # pods that are moved before others on the event loop have their turn
MAX_HINT_CALLS = 64  # events about which many pods are asked one by one
MAX_REPLAYED_EVENTS = 1000  # events since a pod was popped about which it is asked one by one
MAX_IN_UNSCHEDULABLE_PODS = (
    300.0  # seconds that a rejected pod waits for an event, if nothing else is said
)

# Why pods come into a queue, beside cluster events: as kube-scheduler's metric names it.
POD_ADDED = "UnschedulablePodAdd"
ATTEMPT_FAILED = "ScheduleAttemptFailure"
BACKOFF_ENDED = "BackoffComplete"
TIMED_OUT = "UnschedulableTimeout"
ACTIVATED = "ForceActivate"
MANY_EVENTS = "ManyEvents"


class SchedulingQueue:
    """Pods by uid, each in one place: active, in backoff, unschedulable, or in flight.

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
        max_in_unschedulable_pods: float = MAX_IN_UNSCHEDULABLE_PODS,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        """incoming is called with the queue that a pod comes into, and the event that is why.

        max_in_unschedulable_pods: seconds that a rejected pod waits for an event at most.
        cpu: seconds that this thread has computed.
        """
        self._max_in_unschedulable_pods = max_in_unschedulable_pods
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
        self._unschedulable_pods = UnschedulablePods()
        self._flight = InFlight()
        self._woken: set[str] = set()  # uids of pods in flight that plugins want retried
        self._ready = asyncio.Event()
        self._incoming = incoming
        self._later: list[tuple[InFlightEvent, str]] = []  # with the uid that each does not concern
        self._much = asyncio.Event()  # something is for later

    @property
    def pending(self) -> Mapping[str, int]:
        """How many pods there are by queue, as in scheduler_pending_pods."""
        return {
            "active": len(self._active),
            "backoff": len(self._backoff) + len(self._errors),
            "unschedulable": len(self._unschedulable_pods) - self._unschedulable_pods.gated,
            "gated": self._unschedulable_pods.gated,
        }

    @property
    def rejected_by_plugin(self) -> Mapping[tuple[str, str], int]:
        """Return how many unschedulable pods each plugin rejects, by profile and plugin."""
        pool = self._unschedulable_pods
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
        queued = self._unschedulable_pods.get(uid)
        if queued is not None:
            return _key_in_unschedulable_pods(queued)
        return "inFlight" if uid in self._flight else ""

    def some(self, most: int) -> list[tuple[str, QueuedPod]]:
        """At most so many pods that wait, with their places: rejected and gated ones first."""
        pool = ((_key_in_unschedulable_pods(one), one) for one in self._unschedulable_pods)
        backoff = (("backoff", one) for one in chain(self._backoff, self._errors))
        active = (("active", one) for one in self._active)
        return list(islice(chain(pool, backoff, active), most))

    def find(self, uid: str) -> QueuedPod | None:
        """Return a pod that waits; None: it does not wait, for example while it is in flight."""
        for heap in (self._active, self._backoff, self._errors):
            queued = heap.get(uid)
            if queued is not None:
                return queued
        return self._unschedulable_pods.get(uid)

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
        uid, in_flight_event = pod.uid, [InFlightEvent(event, old, pod) for event in events]
        if uid in self._flight:
            for each in in_flight_event:
                self._flight.note(each)
            return
        for heap in (self._active, self._backoff, self._errors):
            queued = heap.remove(uid)
            if queued is not None:
                queued.pod = pod
                heap.push(uid, queued)  # anew: it is ordered by a priority that may have changed
                return
        queued = self._unschedulable_pods.get(uid)
        if queued is None:
            self._activate(QueuedPod(pod=pod, timestamp=self._clock.monotonic()), POD_ADDED)
            return
        queued.pod = pod
        for each in in_flight_event:
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
        self._end_flight(uid)

    def requeue(
        self,
        queued: QueuedPod,
        *,
        unschedulable_plugins: Iterable[str] = (),
        pending_plugins: Iterable[str] = (),
        cut: bool = False,
    ) -> None:
        """Requeue a pod in flight whose attempt failed; without any plugin, that was an error.

        cut: it was ended for time: the pod waits longer each time, whatever events come meanwhile.
        Its facts are those that the caller has given it since, if it was changed meanwhile.
        Events since it was popped count as if they were new.
        """
        uid = queued.pod.uid
        if self.place_of(uid) not in ("inFlight", ""):
            self._end_flight(uid)
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
        decision = self._decision_since_pop(queued)  # the end of the flight forgets these events
        if uid in self._woken:
            decision = max(decision, RequeueDecision.AFTER_BACKOFF)
        self._end_flight(uid)
        self._put(queued, decision, ATTEMPT_FAILED)

    def on_cluster_event(
        self,
        event: ClusterEvent,
        old: object = None,
        new: object = None,
        *,
        only: str | None = None,
        without: str = "",
    ) -> int:
        """Handle a cluster event; return how many pods it has moved at once.

        only: the uid of the one pod that it concerns; None: all. without: the uid of a pod that it
        does not concern.

        Where it concerns many, run moves them soon, in slices.
        """
        one = InFlightEvent(event, old, new)
        # Also when nobody waits: a cycle that runs may reject its pod for what this event mends.
        self._flight.note(one)
        if only is not None:
            queued = self._unschedulable_pods.get(only)
            return int(queued is not None and self._move(queued, one))
        if not len(self._unschedulable_pods):
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
        """Retry pods now, whatever they wait for; gates still count.

        One in flight that fails is retried after its backoff: at once it might go round and round.
        """
        for uid in uids:
            queued = self._take(uid)
            if queued is not None:
                self._activate(queued, ACTIVATED)
            elif uid in self._flight:
                self._woken.add(uid)

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

    def flush_unschedulable(self, most: int = SLICE) -> int:
        """Move pods that have waited for too long for an event, at most so many; return how many.

        Gated ones go on waiting.
        """
        before = self._clock.monotonic() - self._max_in_unschedulable_pods
        timeout = InFlightEvent(WILDCARD, None, None)
        older = self._unschedulable_pods.older_than(before, most)
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

    def _ask_all(self, uid: str, events: Sequence[tuple[InFlightEvent, str]]) -> None:
        """Move an unschedulable pod, if one of the events may help it.

        With too many events to ask about each, any event that a plugin has registered may help.
        """
        queued = self._unschedulable_pods.get(uid)
        if queued is not None and len(events) > MAX_HINT_CALLS and not queued.gating_plugin:
            self._move(queued, InFlightEvent(WILDCARD, None, None), MANY_EVENTS)
            return
        for in_flight_event, without in events:
            queued = self._unschedulable_pods.get(uid)
            if queued is None or (uid != without and self._move(queued, in_flight_event)):
                return

    async def _flush(self, stop: Stop) -> None:
        """Flush at whole seconds."""
        next_pool = self._clock.monotonic() + UNSCHEDULABLE_FLUSH
        while True:
            now = self._clock.monotonic()
            if await stop.sleep(math.floor(now / FLUSH + 1) * FLUSH - now):
                return
            await _in_slices(self.flush_backoff)
            if self._clock.monotonic() >= next_pool:
                next_pool += UNSCHEDULABLE_FLUSH
                await _in_slices(self.flush_unschedulable)

    def _end_flight(self, uid: str) -> None:
        self._flight.end(uid)
        self._woken.discard(uid)

    def _decision_since_pop(self, queued: QueuedPod) -> RequeueDecision:
        if not queued.rejecting_plugins:
            return RequeueDecision.AFTER_BACKOFF
        found, in_flight_event = RequeueDecision.SKIP, self._flight.since_pop(queued.pod.uid)
        if in_flight_event is None or len(in_flight_event) > MAX_REPLAYED_EVENTS:
            return RequeueDecision.AFTER_BACKOFF  # too many to be asked about: one may help
        for each in in_flight_event:
            found = max(found, self._requeue_decision(queued, each))
            if found is RequeueDecision.AT_ONCE:
                break
        return found

    def _concerned(self, events: Iterable[InFlightEvent]) -> list[Mapping[str, QueuedPod]]:
        """Return unschedulable pods by the plugins that rejected them and registered an event."""
        kinds = {one.event for one in events}
        return [
            self._unschedulable_pods.rejected_by(profile, plugin)
            for profile, plugin in self._unschedulable_pods.plugins
            if any(
                event.wildcard or self._plugins.interested(profile, plugin, event)
                for event in kinds
            )
        ]

    def _move(self, queued: QueuedPod, in_flight_event: InFlightEvent, why: str = "") -> bool:
        """Move a pod out of the unschedulable pods if an event may help it; return whether it did.

        why: in the metric; "": the event.
        """
        decision = self._requeue_decision(queued, in_flight_event)
        if decision is RequeueDecision.SKIP:
            return False
        self._unschedulable_pods.remove(queued.pod.uid)
        self._put(queued, decision, why or in_flight_event.event.label)
        return not queued.gating_plugin

    def _requeue_decision(
        self, queued: QueuedPod, in_flight_event: InFlightEvent
    ) -> RequeueDecision:
        """Return the requeue decision for a pod after an event.

        While hints have taken too long for the pods of its namespace, they are not asked: any
        event that a plugin has registered may help.
        """
        namespace = queued.pod.namespace
        without_hints = self._hint_shares.is_over(namespace)
        began = self._cpu()
        decision = self._plugins.requeue_decision(
            queued,
            in_flight_event.event,
            in_flight_event.old,
            in_flight_event.new,
            without_hints=without_hints,
        )
        self._hint_shares.charge(namespace, self._cpu() - began)
        return decision

    def _put(self, queued: QueuedPod, decision: RequeueDecision, why: str) -> None:
        waits = self._options.expiry(queued) > self._clock.monotonic()
        if decision is RequeueDecision.SKIP:
            self._unschedulable_pods.add(queued)
            self._incoming("unschedulable", why)
        elif decision is RequeueDecision.AFTER_BACKOFF and waits:
            if self._passes(queued, why):
                heap = self._errors if queued.consecutive_errors else self._backoff
                heap.push(queued.pod.uid, queued)
                self._incoming("backoff", why)
                self._ready.set()  # pop takes pods in backoff, too, when none is active
        else:
            self._activate(queued, why)

    def _activate(self, queued: QueuedPod, why: str) -> None:
        if self._passes(queued, why):
            self._active.push(queued.pod.uid, queued)
            self._incoming("active", why)
            self._ready.set()

    def _passes(self, queued: QueuedPod, why: str) -> bool:
        """Whether no PreEnqueue plugin gates the pod; a gated pod is unschedulable."""
        status = self._plugins.gate(queued.pod, queued.gating_plugin)
        queued.gating_plugin = "" if status.ok else status.plugin
        if not status.ok:
            queued.unschedulable_plugins |= {status.plugin}
            self._unschedulable_pods.add(queued)
            self._incoming("gated", why)
        return status.ok

    def _take(self, uid: str) -> QueuedPod | None:
        """Take a pod from wherever it waits."""
        for heap in (self._active, self._backoff, self._errors):
            queued = heap.remove(uid)
            if queued is not None:
                return queued
        return self._unschedulable_pods.remove(uid)

    def _sooner(self, first: QueuedPod, second: QueuedPod) -> bool:
        """Pods whose backoff ends in the same second keep the order of the active queue."""
        expiries = self._options.expiry(first), self._options.expiry(second)
        if expiries[0] != expiries[1]:
            return expiries[0] < expiries[1]
        return self._plugins.less(first, second)


def _key_in_unschedulable_pods(queued: QueuedPod) -> str:
    return "gated" if queued.gating_plugin else "unschedulable"


async def _in_slices(flush: Callable[[], int]) -> None:
    """Flush until nothing is left, with the event loop's other work in between."""
    moved = flush()
    while moved:
        await asyncio.sleep(0)
        moved = flush()
