"""An attempt that takes too much computing is ended, and holds up no other namespace."""

from typing import Any

import pytest

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.util.timebudget import TimeBudget, in_time
from koord_scheduler.framework.interfaces import PostFilterPlugin, PreFilterPlugin
from koord_scheduler.framework.status import CycleState, NodeStatuses, PostFilterResult, Status
from tests.support.scheduler.loop import Loop


class Computing:
    """Seconds of computing, as plugins say that they take."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Slow(PreFilterPlugin):
    """Looks at a thousand terms, a tenth of a second each, of pods whose name says so."""

    def __init__(self, computing: Computing) -> None:
        self.computing = computing
        self.tried: list[str] = []

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        self.tried.append(pod.name)
        if pod.name.startswith("slow"):
            for _ in in_time(range(1000)):
                self.computing.seconds += 0.1
        return None


class SlowToMakeRoom(PostFilterPlugin):
    """The same, where no node is feasible."""

    def __init__(self, computing: Computing) -> None:
        self.computing = computing

    async def post_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View, statuses: NodeStatuses
    ) -> PostFilterResult:
        for _ in in_time(range(1000)):
            self.computing.seconds += 0.1
        return PostFilterResult(None, Status.unschedulable())


async def built(**plugins: Any) -> tuple[Loop, Slow]:
    computing = Computing()
    slow = Slow(computing)
    loop = await Loop().build(
        preFilter={"Slow": slow},
        postFilter={"SlowToMakeRoom": SlowToMakeRoom(computing)},
        budget=lambda: TimeBudget(1.0, computing),
        **plugins,
    )
    loop.api.add_node("a")
    loop.api.deliver()
    await loop.start()
    return loop, slow


async def test_an_attempt_is_ended_and_the_pod_waits_longer_each_time() -> None:
    """5 s, then twice as long up to 5 minutes, whatever happens. The event says so."""
    loop, slow = await built()
    key = loop.api.add_pod("slow")
    await loop.settle()
    began, tried = loop.clock.monotonic(), []
    for second in range(1200):
        seen = len(slow.tried)
        loop.api.change(key, metadata={"labels": {"second": str(second)}})
        if second % 100 == 0:
            loop.api.add_node(f"n{second}")
        await loop.advance(1.0)
        if len(slow.tried) > seen:
            tried.append(loop.clock.monotonic() - began)
    pauses = [after - before for before, after in zip([0.0, *tried], tried, strict=False)]
    assert pauses == pytest.approx([5, 10, 20, 40, 80, 160, 300, 300], abs=1.0)
    [*_, (name, reason, message)] = loop.events
    assert (name, reason) == ("slow", "FailedScheduling")
    assert message.startswith("ended after 1.6 s of computing, tried again in 300 s: ")
    assert "wanted an end within 1 s of computing" in message
    [condition] = loop.api.pods[key]["status"]["conditions"]
    assert condition["message"] == message
    count = loop.exposition.get_sample_value("scheduler_attempts_cut_total", {"profile": "p"})
    assert count == len(slow.tried) == 9
    await loop.end()


async def test_making_room_belongs_to_the_attempt() -> None:
    """PostFilter has what the search has left of the budget."""
    loop, _ = await built()
    key = loop.api.add_pod("large", cpu="100")
    await loop.settle()
    [(_, _, message)] = loop.events
    assert message.startswith("ended after 1.6 s of computing, tried again in 5 s: 0/1 nodes")
    assert loop.place(key) == "backoff"
    await loop.end()


async def test_other_namespaces_go_first() -> None:
    """Pods of a namespace whose attempts take long wait while others do, then go on."""
    loop, slow = await built()
    for number in range(3):
        loop.api.add_pod(f"slow{number}")
    key = loop.api.add_pod("plain", namespace="other")
    await loop.settle()
    assert "plain" in slow.tried[:2]
    assert len(slow.tried) == 4
    assert loop.where(key)
    await loop.end()
