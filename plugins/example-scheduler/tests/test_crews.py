"""Crews: all pods of one are bound, or none, whatever happens meanwhile."""

import asyncio
import json
from typing import Any

import pytest
from koord_roomy_nodes.crews import CREWS, LABEL, Crew, Crews, CrewSort

from koord_scheduler.plugin import (
    ClusterPod,
    CycleState,
    Handle,
    PreBindPlugin,
    QueuedPod,
    Status,
)
from koord_scheduler.plugin.koordinator import PluginRequest
from koord_scheduler.plugin.testing import FakeCluster, PluginHarness, fake_cluster, make_pod

MEMBER = {LABEL: "rowers"}


def crew(size: object = 2) -> dict[str, Any]:
    return {"metadata": {"namespace": "default", "name": "rowers"}, "spec": {"size": size}}


def member(name: str, **facts: Any) -> ClusterPod:
    return make_pod(name, labels=MEMBER, phase="Pending", **facts)


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = fake_cluster()
    cluster.node("n1")
    return cluster


class FailsFor(PreBindPlugin):
    """A later plugin, which fails for the pod "bad"."""

    def __init__(self, args: object, handle: Handle) -> None: ...

    async def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        return Status.failed("no disk") if pod.name == "bad" else None


async def test_pods_are_tried_when_their_crew_is_whole(cluster: FakeCluster) -> None:
    """The last one of them wakes the others."""
    async with PluginHarness(Crews, cluster) as harness:
        first = cluster.pod("a", labels=MEMBER, phase="Pending")
        assert harness.gate(first).message == "crew default/rowers does not exist"
        harness.informers.apply(CREWS, crew())
        assert harness.gate(first).message == "crew default/rowers has 1 of 2 pods"
        assert harness.activated == []
        second = cluster.pod("b", labels=MEMBER, phase="Pending")
        assert harness.activated == [first.uid]
        assert harness.gate(first).ok
        assert harness.gate(second).ok
        assert harness.gate(make_pod("other")).ok


async def test_all_are_bound_when_the_last_one_has_a_node(cluster: FakeCluster) -> None:
    async with PluginHarness(Crews, cluster) as harness:
        harness.informers.apply(CREWS, crew())
        waiting = asyncio.ensure_future(harness.schedule(member("a")))
        await asyncio.sleep(0)
        assert harness.bound == {}
        last = await harness.schedule(member("b"))
        assert ((await waiting).node, last.node) == ("n1", "n1")
        assert harness.bound == {"default/a": "n1", "default/b": "n1"}


async def test_a_pod_that_waits_too_long_gives_its_node_back(cluster: FakeCluster) -> None:
    async with PluginHarness(Crews, cluster, args={"wait": "30s"}) as harness:
        harness.informers.apply(CREWS, crew())
        waiting = asyncio.ensure_future(harness.schedule(member("a")))
        await asyncio.sleep(0)
        await harness.clock.advance(31)
        done = await waiting
        assert (done.node, done.status.plugin) == (None, "Crews")
        assert "after waiting 30s" in done.status.message
        assert harness.bound == {}


async def test_when_one_loses_its_node_the_others_do_not_wait_on(cluster: FakeCluster) -> None:
    """Here because it is rejected while it waits, as when it is deleted."""
    async with PluginHarness(Crews, cluster) as harness:
        harness.informers.apply(CREWS, crew(3))
        first = asyncio.ensure_future(harness.schedule(member("a")))
        second = asyncio.ensure_future(harness.schedule(member("b")))
        await asyncio.sleep(0)
        harness.services.waiting.reject("uid-default-a", "the pod is being deleted")
        assert (await first).node is None
        done = await second
        assert (done.node, done.status.plugin) == (None, "Crews")
        assert done.status.message == "pod a of the crew has lost its node"


async def test_a_binding_that_fails_leaves_the_plugin_as_it_was(cluster: FakeCluster) -> None:
    async with PluginHarness(Crews, cluster, extra_plugins={"FailsFor": FailsFor}) as harness:
        harness.informers.apply(CREWS, crew(1))
        assert (await harness.schedule(member("bad"))).node is None
        assert await answer(harness) == {"size": 1, "pods": 1, "placed": 0}
        cluster.delete("Pod", "default/bad")
        assert await answer(harness) == {"size": 1, "pods": 0, "placed": 0}


async def test_a_crew_that_needs_fewer_pods_has_them_tried(cluster: FakeCluster) -> None:
    async with PluginHarness(Crews, cluster) as harness:
        pod = cluster.pod("a", labels=MEMBER, phase="Pending")
        assert not harness.is_retried_by(pod, "Crews", CREWS, crew(2))
        assert not harness.is_retried_by(make_pod("b"), "Crews", CREWS, crew(1))
        harness.informers.apply(CREWS, crew(2))
        assert harness.is_retried_by(pod, "Crews", CREWS, crew(1))


@pytest.mark.parametrize("size", [0, -1, 1001, "2", None, [], {}, 10**30, True])
async def test_an_absurd_crew_leaves_the_last_good_one(cluster: FakeCluster, size: object) -> None:
    async with PluginHarness(Crews, cluster) as harness:
        plugin = harness.subject
        assert isinstance(plugin, Crews)
        harness.informers.apply(CREWS, crew())
        harness.informers.apply(CREWS, crew(size))
        assert dict(plugin.crews.objects) == {"default/rowers": Crew("default/rowers", 2)}


async def test_the_status_says_how_many_were_placed(cluster: FakeCluster) -> None:
    """Written beside the cycles; again if the server did not take it."""
    async with PluginHarness(Crews, cluster) as harness:
        plugin = harness.subject
        assert isinstance(plugin, Crews)
        harness.informers.apply(CREWS, crew(1))
        assert (await harness.schedule(member("a"))).node == "n1"
        await plugin.reports.write()  # not found
        harness.server.answer(lambda call: {})
        await plugin.reports.write()
        await plugin.reports.write()
        path = "/apis/example.com/v1/namespaces/default/crews/rowers/status"
        assert [call.path for call in harness.server.calls] == [path] * 2
        assert json.loads(harness.server.calls[-1].body or b"") == {"status": {"placed": 1}}


async def answer(harness: PluginHarness) -> object:
    """Return what the plugin's endpoint says of the crew."""
    plugin = harness.subject
    assert isinstance(plugin, Crews)
    [endpoint] = plugin.endpoints()
    parameters = endpoint.match("GET", "/crew/default/rowers")
    assert parameters is not None
    return await endpoint.answer(PluginRequest(parameters=parameters))


def test_members_are_next_to_each_other_in_the_queue() -> None:
    pods = [make_pod("z"), member("a"), make_pod("y"), member("b"), member("c", priority=9)]
    queued = [QueuedPod(pod=pod, timestamp=float(at)) for at, pod in enumerate(pods)]
    found: list[QueuedPod] = []
    for one in queued:
        at = sum(CrewSort().less(other, one) for other in found)
        found.insert(at, one)
    assert [one.pod.name for one in found] == ["c", "z", "y", "a", "b"]


@pytest.mark.parametrize("wait", ["0s", "16m"])
def test_bad_args(wait: str) -> None:
    with pytest.raises(Exception, match=r"wait: .*wanted 1s to 15m"):
        PluginHarness(Crews, args={"wait": wait})
