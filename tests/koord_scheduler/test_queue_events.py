"""Events that concern many pods, and many events about one."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from koord.cluster.facts import ClusterPod
from koord.util import timebudget
from koord.util.stop import Stop
from koord_scheduler import activequeue
from koord_scheduler import queue as schedulingqueue
from koord_scheduler.framework.interfaces import EnqueueExtensions, PreEnqueuePlugin
from koord_scheduler.framework.profile import Enqueueing
from koord_scheduler.framework.status import Status
from koord_scheduler.framework.types import Action, ClusterEvent, HintedEvent, QueueingHint
from koord_scheduler.queue import SchedulingQueue
from tests.support.scheduler.framework import Kit, make_pod

NODE_ADDED = ClusterEvent("Node", Action.ADD)
LABELLED = ClusterEvent("Node", Action.UPDATE_NODE_LABEL)
MANY = 1200


class Asks(EnqueueExtensions, PreEnqueuePlugin):
    """Counts the questions; only an event about a node of this name helps."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, object]] = []
        self.gates = False

    def events_to_register(self) -> list[HintedEvent]:
        return [HintedEvent(NODE_ADDED, self.hint)]

    def hint(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        self.asked.append((pod.name, new))
        return QueueingHint.QUEUE if new == "helps" else QueueingHint.SKIP

    def pre_enqueue(self, pod: ClusterPod) -> Status | None:
        return Status.unschedulable("gated") if self.gates else None


class World:
    def __init__(self) -> None:
        self.kit = Kit()
        self.plugin = Asks()
        self.incoming_pod: list[tuple[str, str]] = []
        self.cpu: Callable[[], float] = lambda: 0.0

    async def build(self, pods: int = MANY, *, gates: bool = False) -> "World":
        self.plugin.gates = gates
        profile = await self.kit.profile(preEnqueue={"Asks": self.plugin})
        self.queue = SchedulingQueue(
            Enqueueing([profile]),
            self.kit.services.nominator,
            self.kit.clock,
            incoming=lambda queue, event: self.incoming_pod.append((queue, event)),
            cpu=lambda: self.cpu(),
        )
        for number in range(pods):
            self.queue.add(make_pod(f"w{number}", schedulerName="p"))
        while (queued := self.queue.pop_now()) is not None:
            self.queue.requeue(queued, unschedulable_plugins=["Asks"])
        return self


async def test_hints_of_many_pods_are_asked_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others on the event loop have their turn in between; in the end all were asked."""
    monkeypatch.setattr(timebudget, "real_seconds", count().__next__)
    made = await World().build()
    stop, turns = Stop(made.kit.clock), 0
    running = asyncio.create_task(made.queue.run(stop))
    await made.kit.clock.settle()
    assert made.queue.on_cluster_event(NODE_ADDED, None, "helps") == 0
    while made.queue.pending["unschedulable"]:
        await asyncio.sleep(0)
        turns += 1
    assert turns > MANY / 2
    assert len(made.plugin.asked) == MANY
    assert made.queue.pending["backoff"] == MANY
    stop.set()
    await running


async def test_events_that_came_meanwhile_are_asked_about_together() -> None:
    """One that helps is enough; the excluded pod is asked about the others only."""
    made = await World().build()
    stop = Stop(made.kit.clock)
    made.queue.on_cluster_event(NODE_ADDED, None, "another")
    made.queue.on_cluster_event(NODE_ADDED, None, "helps", without="uid-default-w5")
    running = asyncio.create_task(made.queue.run(stop))
    await made.kit.clock.settle()
    assert made.queue.pending["unschedulable"] == 1
    assert made.queue.place_of("uid-default-w5") == "unschedulable"
    assert len(made.plugin.asked) == 2 * MANY - 1
    assert made.incoming_pod.count(("backoff", "NodeAdd")) == MANY - 1
    stop.set()
    await running


@pytest.mark.parametrize("gates", [False, True])
async def test_too_many_events_move_pods_without_questions(
    gates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be asked in time may help; gates are asked whatever it costs."""
    monkeypatch.setattr(schedulingqueue, "MAX_HINT_CALLS", 3)
    made = await World().build(gates=gates)
    stop = Stop(made.kit.clock)
    made.plugin.gates = False
    for _ in range(4):
        made.queue.on_cluster_event(NODE_ADDED, None, "another")
    running = asyncio.create_task(made.queue.run(stop))
    await made.kit.clock.settle()
    assert len(made.plugin.asked) == (4 * MANY if gates else 0)
    assert made.queue.pending["gated" if gates else "backoff"] == MANY
    stop.set()
    await running


async def test_events_that_no_plugin_has_registered_cost_nothing() -> None:
    """However many pods wait."""
    made = await World().build()
    assert made.queue.on_cluster_event(LABELLED, None, "helps") == 0
    assert made.plugin.asked == []


@pytest.mark.parametrize("bound", ["MAX_REPLAYED_EVENTS", "MAX_EVENTS"])
async def test_a_pod_with_too_many_events_since_its_pop_is_tried_again(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are bounded, as a pod may wait for its permit for a quarter of an hour."""
    monkeypatch.setattr(activequeue if bound == "MAX_EVENTS" else schedulingqueue, bound, 10)
    made = await World().build(0)
    pod: Any = make_pod("w", schedulerName="p")
    made.queue.add(pod)
    queued = made.queue.pop_now()
    assert queued is not None
    for _ in range(20):
        made.queue.on_cluster_event(NODE_ADDED, None, "another")
    assert made.queue.in_flight.events == (10 if bound == "MAX_EVENTS" else 20)
    made.queue.requeue(queued, unschedulable_plugins=["Asks"])
    assert made.queue.place_of(pod.uid) == "backoff"
    assert made.plugin.asked == []
    assert made.queue.in_flight.events == 0
    assert made.incoming_pod == [
        ("active", "UnschedulablePodAdd"),
        ("backoff", "ScheduleAttemptFailure"),
    ]


def test_labels_of_events_are_those_of_the_metric() -> None:
    """Resource and action."""
    assert NODE_ADDED.label == "NodeAdd"
    assert LABELLED.label == "NodeUpdateNodeLabel"
    assert ClusterEvent("PersistentVolume", Action.UPDATE).label == "PersistentVolumeUpdate"


async def test_slow_hints_are_not_asked_for_ever() -> None:
    """A namespace whose pods' hints take long has half a second of them, and then a tenth of the
    time; without a hint any event that the plugin has registered may help. Others are asked on.
    """
    made = World()
    made.cpu = count(step=0.1).__next__  # a hint takes a tenth of a second
    await made.build(pods=20)
    moved = made.queue.on_cluster_event(NODE_ADDED, None, "another")
    assert (len(made.plugin.asked), moved) == (6, 14)
    assert made.incoming_pod.count(("backoff", "NodeAdd")) == 14
    other = make_pod("other", namespace="other", schedulerName="p")
    made.queue.add(other)
    queued = made.queue.pop_now()
    assert queued is not None
    made.queue.requeue(queued, unschedulable_plugins=["Asks"])
    made.queue.on_cluster_event(NODE_ADDED, None, "another")
    assert made.plugin.asked[-1] == ("other", "another")
    assert made.queue.place_of(other.uid) == "unschedulable"
    assert len(made.plugin.asked) == 7


async def test_hints_are_asked_again_when_the_time_is_paid_off() -> None:
    made = World()
    made.cpu = count(step=0.1).__next__
    await made.build(pods=6)
    made.queue.on_cluster_event(NODE_ADDED, None, "another")
    assert (len(made.plugin.asked), made.queue.pending["unschedulable"]) == (6, 6)
    await made.kit.clock.advance(10.0)
    made.queue.on_cluster_event(NODE_ADDED, None, "another")
    assert len(made.plugin.asked) == 12
