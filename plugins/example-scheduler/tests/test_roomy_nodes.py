"""RoomyNodes, tested with the kit: no cluster, no waiting."""

import pytest
from koord_roomy_nodes.roomy_nodes import RoomyNodes

from koord_scheduler.plugin import Action, ClusterEvent, EventResource
from koord_scheduler.plugin.testing import (
    FakeCluster,
    PluginHarness,
    assert_forms_agree,
    fake_cluster,
    make_node,
    make_pod,
)

NODE_ADDED = ClusterEvent(EventResource.NODE, Action.ADD)


@pytest.fixture
def cluster() -> FakeCluster:
    """A node that is half full, one with two places left, and one for no pods at all."""
    cluster = fake_cluster()
    for name, most in (("half", 20), ("full", 12), ("none", 0)):
        cluster.node(name, pods=most)
    for number in range(10):
        cluster.pod(f"a{number}", "half")
        cluster.pod(f"b{number}", "full")
    return cluster


async def test_nodes_with_spare_room_are_scored_by_it(cluster: FakeCluster) -> None:
    async with PluginHarness(RoomyNodes, cluster, args={"spare": 1}, weight=2) as harness:
        decided = harness.decide(make_pod("web"))

        assert decided.node == "half"
        assert decided.scores == {"RoomyNodes": {"half": 2 * 50, "full": 2 * 16}}
        assert decided.rejections == {"none": "node(s) had no spare room for pods"}


async def test_a_pod_takes_room_and_stays_pending_without(cluster: FakeCluster) -> None:
    async with PluginHarness(RoomyNodes, cluster, args={"spare": 9}) as harness:
        assert (await harness.schedule(make_pod("web"))).node == "half"

        second = await harness.schedule(make_pod("late"))
        assert second.node is None
        assert second.status.message == (
            "0/3 nodes are available: 3 node(s) had no spare room for pods."
        )


@pytest.mark.parametrize("spare", [0, 1, 2, 10, 100])
async def test_the_forms_agree(cluster: FakeCluster, spare: int) -> None:
    async with PluginHarness(RoomyNodes, cluster, args={"spare": spare}) as harness:
        assert_forms_agree(harness.subject, make_pod("web"), cluster.state.view())


async def test_only_a_node_with_room_helps(cluster: FakeCluster) -> None:
    async with PluginHarness(RoomyNodes, cluster) as harness:
        large, small = make_node("large", pods=6), make_node("small", pods=5)
        assert harness.is_retried_after(make_pod("web"), NODE_ADDED, None, large)
        assert not harness.is_retried_after(make_pod("web"), NODE_ADDED, None, small)


async def test_the_vector_form_pays() -> None:
    async with PluginHarness(RoomyNodes) as harness:
        costs = await harness.costs(make_pod("web"), nodes=500)
        assert costs["filter_all"] < costs["filter"]
        assert costs["score_all"] < costs["score"]


@pytest.mark.parametrize("args", [{"spare": -1}, {"spare": 101}, {"spear": 1}])
def test_bad_args(args: dict[str, int]) -> None:
    with pytest.raises(Exception, match=r"spare: .*wanted 0 to 100 pods|spear"):
        PluginHarness(RoomyNodes, args=args)
