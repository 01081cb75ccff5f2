"""The queue, on simulated time."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.facts import ClusterPod
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop
from koord_scheduler.framework.interfaces import (
    EnqueueExtensions,
    Plugin,
    PreEnqueuePlugin,
    QueueSortPlugin,
)
from koord_scheduler.framework.profile import Enqueueing, ProfileError
from koord_scheduler.framework.status import Status
from koord_scheduler.framework.types import (
    POD_DELETED,
    WILDCARD,
    Action,
    ClusterEvent,
    HintedEvent,
    QueuedPod,
    QueueingHint,
)
from koord_scheduler.queue import BackoffOptions, SchedulingQueue
from tests.support.scheduler.framework import Binder, FirstCome, Kit, make_pod

NODE_ADDED = ClusterEvent("Node", Action.ADD)
NODE_LABEL = ClusterEvent("Node", Action.UPDATE_NODE_LABEL)
LABEL = ClusterEvent("UnschedulablePod", Action.UPDATE_POD_LABEL)


class Priority(QueueSortPlugin):
    """The highest priority first, then the oldest."""

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        ranks = [(-(each.pod.priority or 0), each.timestamp) for each in (first, second)]
        return ranks[0] < ranks[1]


class Wants(EnqueueExtensions, PreEnqueuePlugin):
    """Registers what a test says; rejects pods before they enter by what gates has."""

    def __init__(self, *events: HintedEvent, gates: Iterable[str] = ()) -> None:
        self.events = events
        self.gates = set(gates)
        self.asked: list[str] = []

    def events_to_register(self) -> Iterable[HintedEvent]:
        return self.events

    def pre_enqueue(self, pod: ClusterPod) -> Status | None:
        self.asked.append(pod.name)
        return Status.unschedulable("gated") if pod.name in self.gates else None


class World:
    """A queue, and what its plugins answer."""

    def __init__(self, kit: Kit, queue: SchedulingQueue) -> None:
        self.clock: SimulatedClock = kit.clock
        self.kit = kit
        self.queue = queue

    def add(self, *names: str, **spec: Any) -> None:
        for name in names:
            self.queue.add(pod(name, **spec))

    def fail(self, name: str, *plugins: str, pending: Iterable[str] = ()) -> QueuedPod:
        """Pop a pod, which must be this one, and have its attempt fail."""
        queued = self.queue.pop_now()
        assert queued is not None
        assert queued.pod.name == name
        self.queue.requeue(queued, unschedulable_plugins=plugins, pending_plugins=pending)
        return queued

    def place(self, name: str) -> str:
        return self.queue.place_of(pod(name).uid)

    def popped(self) -> list[str]:
        names = []
        while (queued := self.queue.pop_now()) is not None:
            names.append(queued.pod.name)
            self.queue.done(queued.pod.uid)
        return names


def pod(name: str, **spec: Any) -> ClusterPod:
    return make_pod(name, schedulerName="p", **spec)


async def world(
    plugins: Mapping[str, Plugin] | None = None,
    *,
    sort: Plugin | None = None,
    backoff: BackoffOptions | None = None,
) -> World:
    kit = Kit()
    profile = await kit.profile(preEnqueue=plugins or {}, queueSort={"Sort": sort or Priority()})
    nominator = kit.services.nominator
    queue = SchedulingQueue(Enqueueing([profile]), nominator, kit.clock, backoff)
    return World(kit, queue)


def hint(answer: Any) -> Callable[[ClusterPod, object, object], QueueingHint]:
    def ask(pod: ClusterPod, old: object, new: object) -> QueueingHint:
        if isinstance(answer, Exception):
            raise answer
        value: QueueingHint = answer
        return value

    return ask


async def test_the_highest_priority_goes_first_then_the_oldest() -> None:
    """By the QueueSort plugin."""
    made = await world()
    for name, priority in [("a", 1), ("b", 9), ("c", 1), ("d", 9)]:
        made.add(name, priority=priority)
        made.clock.tick(0.5)
    assert made.queue.pending == {"active": 4, "backoff": 0, "unschedulable": 0, "gated": 0}
    assert made.popped() == ["b", "d", "a", "c"]


async def test_pop_waits_for_a_pod() -> None:
    """And returns as soon as there is one."""
    made = await world()
    task = asyncio.create_task(made.queue.pop())
    await made.clock.settle()
    assert not task.done()
    made.add("a")
    await made.clock.settle()
    assert task.result().pod.name == "a"
    assert made.place("a") == "inFlight"
    assert (task.result().attempts, task.result().first_attempt) == (1, made.clock.monotonic())


@pytest.mark.parametrize(
    ("options", "count", "wanted"),
    [
        (BackoffOptions(), 1, 1),
        (BackoffOptions(), 2, 2),
        (BackoffOptions(), 3, 4),
        (BackoffOptions(), 4, 8),
        (BackoffOptions(), 5, 10),
        (BackoffOptions(), 1000, 10),
        (BackoffOptions(initial=3, most=5), 2, 5),
        (BackoffOptions(most=0), 3, 0),
        (BackoffOptions(), 0, 0),
    ],
)
def test_the_backoff_doubles(options: BackoffOptions, count: int, wanted: float) -> None:
    """From 1 s to 10 s; of errors, if the last attempt ended in one."""
    rejected = QueuedPod(pod=pod("a"), timestamp=7.75, unschedulable_count=count)
    failed = QueuedPod(
        pod=pod("a"), timestamp=7.75, unschedulable_count=9, consecutive_errors=count
    )
    assert options.wait(rejected) == wanted
    if count:
        assert options.wait(failed) == wanted
    assert options.expiry(rejected) == (int(7.75 + wanted) if wanted else 7.75)


async def test_a_rejected_pod_waits_for_an_event_of_its_plugins() -> None:
    """Not for one that only others have registered."""
    events = {"A": Wants(HintedEvent(NODE_ADDED)), "B": Wants(HintedEvent(NODE_LABEL))}
    made = await world(events)
    made.add("a")
    made.fail("a", "A")
    assert made.place("a") == "unschedulable"
    assert made.queue.on_cluster_event(NODE_LABEL) == 0
    assert made.queue.on_cluster_event(NODE_ADDED) == 1
    assert made.place("a") == "backoff"


@pytest.mark.parametrize(
    ("answer", "pending", "place"),
    [
        (QueueingHint.QUEUE, False, "backoff"),
        (QueueingHint.SKIP, False, "unschedulable"),
        (ValueError("broken"), False, "backoff"),
        (QueueingHint.QUEUE, True, "active"),
        (QueueingHint.SKIP, True, "unschedulable"),
        (ValueError("broken"), True, "active"),
    ],
)
async def test_a_hint_decides(answer: Any, pending: bool, place: str) -> None:
    """An error counts as Queue; a plugin that had answered Pending skips the backoff."""
    made = await world({"A": Wants(HintedEvent(NODE_ADDED, hint(answer)))})
    made.add("a")
    made.fail("a", *(() if pending else ("A",)), pending=("A",) if pending else ())
    made.queue.on_cluster_event(NODE_ADDED, None, "node")
    assert made.place("a") == place


async def test_a_hint_gets_the_pod_and_the_object_before_and_after() -> None:
    """As they were given to the queue."""
    seen: list[tuple[object, ...]] = []

    def note(pod: ClusterPod, old: object, new: object) -> QueueingHint:
        seen.append((pod.name, old, new))
        return QueueingHint.SKIP

    made = await world({"A": Wants(HintedEvent(NODE_ADDED, note))})
    made.add("a")
    made.fail("a", "A")
    made.queue.on_cluster_event(NODE_ADDED, 1, 2)
    assert seen == [("a", 1, 2)]


async def test_a_plugin_that_registers_nothing_is_helped_by_everything() -> None:
    """So is one that nobody has made, as an extender; an empty list means nothing helps."""
    made = await world({"Silent": Wants()})
    made.add("a", "b")
    made.fail("a", "Silent")
    made.fail("b", "Extender")
    made.queue.on_cluster_event(NODE_LABEL)
    assert made.place("a") == "unschedulable"
    assert made.place("b") == "backoff"


async def test_a_pod_whose_backoff_has_passed_is_active_at_once() -> None:
    """The event is late."""
    made = await world({"A": Wants(HintedEvent(NODE_ADDED))})
    made.add("a")
    made.fail("a", "A")
    made.clock.tick(1.5)
    made.queue.on_cluster_event(NODE_ADDED)
    assert made.place("a") == "active"


async def test_a_wildcard_event_moves_all_or_the_one_that_it_names() -> None:
    """After their backoff, whatever the hints say."""
    never = Wants(HintedEvent(NODE_ADDED, hint(QueueingHint.SKIP)))
    made = await world({"A": never})
    made.add("a", "b", "c")
    for name in ("a", "b", "c"):
        made.fail(name, "A")
    assert made.queue.on_cluster_event(WILDCARD, only=pod("b").uid) == 1
    assert [made.place(name) for name in "abc"] == ["unschedulable", "backoff", "unschedulable"]
    assert made.queue.on_cluster_event(WILDCARD) == 2


async def test_backoffs_are_flushed_at_whole_seconds() -> None:
    """In the order of the active queue."""
    made = await world()
    stop = Stop(made.clock)
    task = asyncio.create_task(made.queue.run(stop))
    made.clock.tick(0.25)
    made.add("low", priority=1)
    made.fail("low", "Extender")
    made.clock.tick(0.25)
    made.add("high", priority=2)
    made.fail("high", "Extender")
    made.queue.on_cluster_event(NODE_ADDED)
    assert made.queue.pending["backoff"] == 2
    await made.clock.advance(0.25)
    assert made.queue.pending["active"] == 0
    await made.clock.advance(0.25)
    assert made.queue.pending["active"] == 2
    assert made.popped() == ["high", "low"]
    stop.set()
    await task


async def test_pop_takes_from_backoff_when_nothing_is_active() -> None:
    """But never a pod whose attempt ended in an error."""
    made = await world()
    made.add("failed", "rejected")
    made.fail("failed")
    made.fail("rejected", "Extender")
    made.queue.on_cluster_event(NODE_ADDED)
    assert [made.place("failed"), made.place("rejected")] == ["backoff", "backoff"]
    assert made.popped() == ["rejected"]
    made.clock.tick(1.0)
    assert made.queue.flush_backoff() == 1
    assert made.popped() == ["failed"]


async def test_errors_and_rejections_are_counted_apart() -> None:
    """A rejection ends a row of errors."""
    made = await world(backoff=BackoffOptions(most=0))
    made.add("a")
    queued = made.fail("a")
    queued = made.fail("a")
    assert (queued.consecutive_errors, queued.unschedulable_count, queued.attempts) == (2, 0, 2)
    queued = made.fail("a", "Extender")
    assert (queued.consecutive_errors, queued.unschedulable_count, queued.attempts) == (0, 1, 3)


async def test_without_backoff_an_error_is_active_at_once() -> None:
    """podMaxBackoffSeconds: 0."""
    made = await world(backoff=BackoffOptions(most=0))
    made.add("a")
    made.fail("a")
    assert made.place("a") == "active"


async def test_the_pool_is_emptied_of_what_waits_for_five_minutes() -> None:
    """It is looked at every 30 s."""
    made = await world({"Silent": Wants()})
    stop = Stop(made.clock)
    task = asyncio.create_task(made.queue.run(stop))
    made.add("a")
    made.fail("a", "Silent")
    await made.clock.advance(300.0)
    assert made.place("a") == "unschedulable"
    await made.clock.advance(31.0)
    assert made.place("a") == "active"
    stop.set()
    await task


async def test_a_gated_pod_stays_in_the_pool_until_its_plugin_lets_it_in() -> None:
    """Only events that the gating plugin registered ask again, that plugin first."""
    gate = Wants(HintedEvent(LABEL), gates=["a"])
    other = Wants(HintedEvent(NODE_ADDED))
    made = await world({"Other": other, "Gate": gate})
    made.add("a")
    assert made.place("a") == "gated"
    assert made.queue.pending == {"active": 0, "backoff": 0, "unschedulable": 0, "gated": 1}
    asked = len(gate.asked), len(other.asked)
    made.queue.on_cluster_event(NODE_ADDED)
    made.queue.on_cluster_event(WILDCARD)
    assert (len(gate.asked), len(other.asked)) == asked
    assert made.queue.on_cluster_event(LABEL) == 0
    assert (len(gate.asked), len(other.asked)) == (asked[0] + 1, asked[1])
    gate.gates.clear()
    assert made.queue.on_cluster_event(LABEL) == 1
    assert made.place("a") == "active"
    assert made.queue.pending["gated"] == 0


async def test_a_gated_pod_is_not_moved_by_time() -> None:
    """It waits for its plugin."""
    made = await world({"Gate": Wants(HintedEvent(LABEL), gates=["a"])})
    made.add("a")
    made.clock.tick(10_000.0)
    assert made.queue.flush_unschedulable() == 0
    assert made.place("a") == "gated"


async def test_a_gate_counts_at_every_entry() -> None:
    """Also into backoff, from which pop may take a pod."""
    gate = Wants(HintedEvent(LABEL))
    made = await world({"Gate": gate})
    made.add("a")
    queued = made.queue.pop_now()
    assert queued is not None
    gate.gates.add("a")
    made.queue.requeue(queued)
    assert made.place("a") == "gated"


async def test_a_gate_that_fails_keeps_the_pod() -> None:
    """And nothing else happens."""

    class Broken(Wants):
        def pre_enqueue(self, pod: ClusterPod) -> Status | None:
            raise ValueError("broken")

    made = await world({"Gate": Broken(HintedEvent(LABEL))})
    made.add("a")
    assert made.place("a") == "gated"


async def test_what_happens_while_a_pod_is_tried_counts_when_it_fails() -> None:
    """Events since its pop, but none from before."""
    made = await world({"A": Wants(HintedEvent(NODE_ADDED)), "B": Wants(HintedEvent(NODE_LABEL))})
    made.add("a", "b", "c")
    made.queue.on_cluster_event(NODE_ADDED)
    pods = [made.queue.pop_now() for _ in range(3)]
    made.queue.on_cluster_event(NODE_LABEL)
    for queued, plugin in zip(pods, "ABA", strict=True):
        assert queued is not None
        made.queue.requeue(queued, unschedulable_plugins=[plugin])
        if plugin == "B":
            made.queue.on_cluster_event(NODE_ADDED)
    assert [made.place(name) for name in "abc"] == ["backoff", "backoff", "backoff"]
    assert len(made.queue.in_flight) == 0
    assert made.queue.in_flight.events == 0


async def test_events_are_kept_only_while_an_older_pod_is_in_flight() -> None:
    """Each pod has those since its own pop."""
    made = await world({"A": Wants(HintedEvent(NODE_ADDED))})
    flight = made.queue.in_flight
    made.add("a", "b")
    first = made.queue.pop_now()
    made.queue.on_cluster_event(NODE_ADDED)
    second = made.queue.pop_now()
    made.queue.on_cluster_event(NODE_LABEL)
    assert first is not None
    assert second is not None
    assert flight.events == 2
    made.queue.done(first.pod.uid)
    made.queue.done(first.pod.uid)
    assert flight.events == 1
    made.queue.requeue(second, unschedulable_plugins=["A"])
    assert made.place("b") == "unschedulable"
    assert flight.events == 0


async def test_a_failed_binding_helps_as_a_deleted_pod_does() -> None:
    """The event that the cycle reports."""
    made = await world({"A": Wants(HintedEvent(ClusterEvent("Pod", Action.DELETE)))})
    made.add("a")
    made.fail("a", "A")
    assert made.queue.on_cluster_event(POD_DELETED, pod("gone")) == 1


async def test_updates_find_the_pod_wherever_it_is() -> None:
    """A change that helps moves it out of the pool."""
    made = await world({"A": Wants(HintedEvent(LABEL))})
    made.add("a")
    changed = pod("a", labels={"app": "new"})
    made.queue.update(changed, [LABEL])
    made.fail("a", "A")
    made.queue.update(changed, [NODE_LABEL])
    assert made.place("a") == "unschedulable"
    made.queue.update(changed, [LABEL])
    assert made.place("a") == "backoff"
    made.queue.update(changed, [LABEL])
    queued = made.queue.pop_now()
    assert queued is not None
    assert queued.pod is changed
    made.queue.update(pod("new"), [])
    assert made.place("new") == "active"


async def test_a_change_of_a_pod_in_flight_counts_when_it_fails() -> None:
    """It is one of the events since its pop."""
    made = await world({"A": Wants(HintedEvent(LABEL))})
    made.add("a")
    queued = made.queue.pop_now()
    assert queued is not None
    made.queue.add(queued.pod)
    made.queue.update(queued.pod, [LABEL])
    assert made.place("a") == "inFlight"
    made.queue.requeue(queued, unschedulable_plugins=["A"])
    assert made.place("a") == "backoff"


async def test_a_changed_priority_changes_the_order() -> None:
    """The heap is right after an update."""
    made = await world()
    made.add("a", priority=1)
    made.clock.tick(1)
    made.add("b", priority=2)
    made.queue.update(pod("a", priority=3), [])
    assert made.popped() == ["a", "b"]


async def test_a_forgotten_pod_is_nowhere() -> None:
    """Nor nominated; forgetting it again changes nothing."""
    made = await world()
    made.add("a", "b", "c")
    made.fail("a", "Extender")
    made.fail("b")
    made.kit.services.nominator.nominate(pod("a"), "n1")
    for name in ("a", "b", "c", "c"):
        made.queue.forget(pod(name))
    assert set(made.queue.pending.values()) == {0}
    assert len(made.kit.services.nominator) == 0


async def test_activated_pods_go_at_once() -> None:
    """From the pool and from backoff; gates still count."""
    gate = Wants(HintedEvent(LABEL))
    made = await world({"Gate": gate})
    made.add("a", "b", "c")
    made.fail("a", "Gate")
    made.fail("b")
    made.fail("c", "Gate")
    gate.gates.add("c")
    made.queue.activate([pod(name).uid for name in ("a", "b", "c", "gone")])
    assert [made.place(name) for name in "abc"] == ["active", "active", "gated"]


async def test_a_pod_that_is_activated_in_its_attempt_is_retried_after_its_backoff() -> None:
    """Otherwise a gang whose last member comes in these moments would wait for minutes."""
    made = await world({"A": Wants()})
    made.add("a", "b")
    first, second = made.queue.pop_now(), made.queue.pop_now()
    assert first is not None
    assert second is not None
    made.queue.activate([first.pod.uid])
    for queued in (first, second):
        made.queue.requeue(queued, unschedulable_plugins=["A"])
    assert [made.place(name) for name in "ab"] == ["backoff", "unschedulable"]

    made.queue.activate([second.pod.uid])
    again = made.queue.pop_now()
    assert again is not None
    assert again.pod.name == "b"
    made.queue.activate([again.pod.uid])
    made.queue.done(again.pod.uid)
    made.add("b")
    again = made.queue.pop_now()
    assert again is not None
    made.queue.requeue(again, unschedulable_plugins=["A"])
    assert made.place(again.pod.name) == "unschedulable"


async def test_a_pod_that_came_back_by_itself_is_not_queued_twice() -> None:
    """It is where the update has put it."""
    made = await world()
    made.add("a")
    queued = made.queue.pop_now()
    assert queued is not None
    made.queue.done(queued.pod.uid)
    made.add("a")
    made.queue.requeue(queued, unschedulable_plugins=["Extender"])
    assert made.place("a") == "active"
    assert made.popped() == ["a"]


async def test_a_sort_plugin_that_fails_leaves_the_oldest_first() -> None:
    """And the heap whole."""

    class Broken(QueueSortPlugin):
        def less(self, first: QueuedPod, second: QueuedPod) -> bool:
            raise ValueError("broken")

    made = await world(sort=Broken())
    for name in "cab":
        made.add(name)
        made.clock.tick(1)
    assert made.popped() == ["c", "a", "b"]


async def test_all_profiles_have_the_same_queue_sort() -> None:
    """Another one, or events that are none, are refused before anything runs."""
    one = await Kit().profile(queueSort={"A": FirstCome()})
    other = await Kit().profile(queueSort={"B": FirstCome()})
    with pytest.raises(ProfileError, match='wanted the queueSort plugin of profile p, "A"'):
        Enqueueing([one, other])

    bad: Any = Wants("node added")  # type: ignore[arg-type]
    with pytest.raises(ProfileError, match=r'plugin "W": wanted HintedEvent\('):
        Enqueueing([await Kit().profile(preEnqueue={"W": bad}, bind={"B": Binder()})])


Step = tuple[str, int]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["add", "pop", "reject", "error", "done", "event", "all", "forget", "tick", "flush"]
            ),
            st.integers(0, 5),
        ),
        max_size=60,
    )
)
def test_every_pod_is_in_one_place(steps: list[Step]) -> None:
    """Whatever happens, none is lost, and none is tried twice at a time."""
    asyncio.run(_play(steps))


async def _play(steps: list[Step]) -> None:
    made = await world({"A": Wants(HintedEvent(NODE_ADDED)), "B": Wants()})
    queue, flying, known = made.queue, dict[str, QueuedPod](), set[str]()
    for step, at in steps:
        name = f"p{at}"
        uid = pod(name).uid
        if step == "add":
            queue.add(pod(name))
            known.add(uid)
        elif step == "pop" and (queued := queue.pop_now()) is not None:
            assert queued.pod.uid not in flying
            flying[queued.pod.uid] = queued
        elif step == "forget" and uid not in flying:
            queue.forget(pod(name))
            known.discard(uid)
        elif step in ("reject", "error", "done") and flying:
            uid, queued = flying.popitem()
            if step == "done":
                queue.done(uid)
                known.discard(uid)
            else:
                plugins = [("A", "B")[at % 2]] if step == "reject" else []
                queue.requeue(queued, unschedulable_plugins=plugins)
        elif step in ("event", "all"):
            queue.on_cluster_event(NODE_ADDED if step == "event" else WILDCARD)
        elif step == "tick":
            made.clock.tick(at * 100.0)
        elif step == "flush":
            queue.flush_backoff()
            queue.flush_unschedulable()
        assert sum(queue.pending.values()) + len(flying) == len(known)
        assert all(queue.place_of(uid) for uid in known)
        assert len(queue.in_flight) == len(flying)
    made.clock.tick(1000.0)
    queue.flush_unschedulable()
    queue.flush_backoff()
    assert len(made.popped()) + len(flying) == len(known)
