"""CrowdedNodes, tested with the kit: no daemon, no cluster, no waiting."""

import pytest
from koord_crowded_nodes.crowded import CrowdedNodes, newest_first, pod_count_of

from koord_descheduler.plugin import Action
from koord_descheduler.plugin.testing import FakeCluster, PluginHarness, make_node, make_pod


@pytest.fixture
def cluster() -> FakeCluster:
    """Two nodes for ten pods each; one is full, the other has one pod."""
    cluster = FakeCluster()
    cluster.node("full", cpu=4, pods=10)
    cluster.node("free", cpu=4, pods=10)
    for number in range(10):
        cluster.pod(f"p{number}", "full", cpu="100m", created=1000.0 + number)
    cluster.pod("q", "free", cpu="100m")
    return cluster


async def test_the_newest_pods_of_a_crowded_node_leave(cluster: FakeCluster) -> None:
    """Evictions stop when the node is no longer crowded."""
    async with PluginHarness(CrowdedNodes, cluster, args={"highPercent": 80}) as harness:
        result = await harness.cycle()
        assert result.errors == []
        assert [(one.key, one.options.reason) for one in harness.evicted] == [
            ("default/p9", "full has 10 of 10 pods"),
            ("default/p8", "full has 10 of 10 pods"),
        ]
        assert {one.node: one.verdict for one in harness.decisions.nodes()} == {
            "full": "crowded",
            "free": "roomy",
        }
        assert {one.candidates for one in harness.decisions.pods()} == {("free",)}
        assert (await harness.cycle()).evictions == {}


async def test_no_more_leave_than_there_is_room_for(cluster: FakeCluster) -> None:
    """Neither in the cycle's bound, nor on the other node."""
    async with PluginHarness(
        CrowdedNodes, cluster, args={"highPercent": 10, "mostPods": 3}
    ) as harness:
        await harness.cycle()
        assert harness.evicted == []  # with one pod the other node is at its mark
    async with PluginHarness(
        CrowdedNodes, cluster, args={"highPercent": 50, "mostPods": 3}
    ) as harness:
        await harness.cycle()
        assert len(harness.evicted) == 3


async def test_a_pod_that_fits_nowhere_else_stays(cluster: FakeCluster) -> None:
    """The next one is asked; what it does not say has a reason."""
    cluster.pod("p9", "full", cpu=1, created=2000.0, spec={"nodeSelector": {"gpu": "yes"}})
    async with PluginHarness(CrowdedNodes, cluster) as harness:
        await harness.cycle()
        assert [one.key for one in harness.evicted] == ["default/p8"]
        assert {one.pod: one.action for one in harness.decisions.pods()} == {
            "default/p9": Action.STAY,
            "default/p8": Action.EVICT,
        }


async def test_a_pod_that_cannot_be_evicted_takes_no_room(cluster: FakeCluster) -> None:
    """The next one is asked."""
    async with PluginHarness(CrowdedNodes, cluster, refused=["default/p9"]) as harness:
        await harness.cycle()
        assert [one.key for one in harness.evicted] == ["default/p8"]


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        ({"highPercent": 0}, "wanted 0 to 100 percent"),
        ({"highPercent": 101}, "wanted 0 to 100 percent"),
        ({"mostPods": 0}, "wanted at least 1 pod"),
        ({"mostpods": 1}, "mostpods"),
    ],
)
def test_bad_args(args: dict[str, float], fault: str) -> None:
    """A bad file is rejected as a whole, by name."""
    with pytest.raises(Exception, match=fault):
        PluginHarness(CrowdedNodes, FakeCluster(), args=args)


def test_the_count() -> None:
    """A node is crowded above the mark, not at it; a node that holds no pods cannot be crowded."""
    node = make_node("n", pods=10)
    counts = {pods: pod_count_of(node, pods, 90.0) for pods in (8, 9, 10)}
    assert [count.surplus for count in counts.values() if count] == [-1, 0, 1]
    assert pod_count_of(make_node("n", pods=0), 3, 90.0) is None


def test_the_order() -> None:
    """Newest first; ties by name, so that the result is always the same."""
    pods = [make_pod("b", created=1.0), make_pod("c", created=2.0), make_pod("a", created=1.0)]
    assert [pod.name for pod in newest_first(pods)] == ["c", "a", "b"]
