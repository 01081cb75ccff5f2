"""Pods on their way through the scheduler, with LoadAwareScheduling in the profile."""

from collections import Counter

from koord.cluster.kinds import NODE_METRIC
from koord.controlplane.testing import make_report
from koord_scheduler.plugin import Handle
from koord_scheduler_plugins.load_aware import LoadAwareScheduling
from tests.support.scheduler.load_aware import make_args
from tests.support.scheduler.loop import Loop

TOO_HOT = "0/2 nodes are available: 2 node(s) cpu usage exceed threshold"


def report(loop: Loop, node: str, cpu: int) -> None:
    """As the watch brings it."""
    usage = {"cpu": cpu, "memory": 0}
    loop.state.put(NODE_METRIC, make_report(node, at=loop.clock.wall(), usage=usage))


async def started(**cpus: int) -> Loop:
    """Nodes of 100 cores that use so many, and no other plugin that chooses."""
    loop = Loop()
    handle = Handle(profile="p", services=loop.services, filters=lambda: None)  # type: ignore[arg-type, return-value]
    plugin = LoadAwareScheduling(make_args(), handle)
    points = {point: {"LoadAware": plugin} for point in ("preFilter", "filter", "score", "reserve")}
    for name, cpu in cpus.items():
        loop.api.add_node(name, cpu="100")
        report(loop, name, cpu)
    await loop.build(**points)
    await loop.start()
    return loop


async def test_equal_pods_spread_by_what_nodes_use() -> None:
    """Each that is assumed counts for the next one: 40 cores for 8 pods of 4, 85 % of each."""
    loop = await started(a=20, b=34)
    keys = [loop.api.add_pod(f"p{at}", cpu="4") for at in range(8)]
    await loop.settle()
    assert Counter(map(loop.where, keys)) == {"a": 6, "b": 2}
    await loop.end()


async def test_a_pod_waits_for_a_node_that_cools_down() -> None:
    """The report is the event that brings it back, no timer."""
    loop = await started(a=70, b=80)
    key = loop.api.add_pod("web", cpu="1")
    await loop.settle()
    assert loop.where(key) == ""
    assert [message.startswith(TOO_HOT) for _, _, message in loop.events] == [True]
    report(loop, "b", 75)
    await loop.advance(30)
    assert loop.where(key) == ""
    report(loop, "b", 30)
    await loop.advance(30)
    assert loop.where(key) == "b"
    await loop.end()
