"""What strangers looked for in the test kit: all nodes, candidates, nominations, informers."""

from typing import Any

import pytest

from koord.plugin.kube import ApiResource, Change
from koord_scheduler.plugin import (
    ClusterPod,
    CycleState,
    FilterPlugin,
    Handle,
    NodeInfo,
    PostFilterPlugin,
    PostFilterResult,
    PreFilterPlugin,
    PreFilterResult,
    Status,
    View,
)
from koord_scheduler.plugin.testing import FakeCluster, PluginHarness, fake_cluster, make_pod

LICENCES = ApiResource("example.com/v1", "licences")


class OnlyFilter(FilterPlugin):
    """Node a is full, node b will never do."""

    def __init__(self, args: object, handle: Handle) -> None:
        self.handle = handle

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        if node.name == "a":
            return Status.unschedulable("full")
        return Status.unresolvable("never") if node.name == "b" else None


class Names(OnlyFilter, PreFilterPlugin):
    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> PreFilterResult:
        return PreFilterResult(frozenset(("a", "c")))


class Evicts(OnlyFilter, PostFilterPlugin):
    async def post_filter(self, *_: Any) -> PostFilterResult:
        return PostFilterResult("a", victims=(make_pod("victim", node="a"),))


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = fake_cluster()
    for name in "abcd":
        cluster.node(name, cpu=4, pods=1)
    return cluster


async def test_a_plugin_with_filter_alone_is_asked_about_all_nodes(cluster: FakeCluster) -> None:
    """In the daemon the first feasible node would end the search."""
    async with PluginHarness(OnlyFilter, cluster) as harness:
        decided = harness.decide(make_pod("web"))

    assert (decided.node, decided.feasible) == ("c", ("c", "d"))
    assert decided.rejections == {"a": "full", "b": "never"}
    assert decided.filtered == ("a", "b", "c", "d")
    assert decided.candidates == ("a",)


async def test_the_nodes_that_pre_filter_names_are_shown(cluster: FakeCluster) -> None:
    async with PluginHarness(Names, cluster) as harness:
        decided = harness.decide(make_pod("web"))

    assert (decided.filtered, decided.feasible) == (("a", "c"), ("c",))


async def test_what_post_filter_evicts_is_shown(cluster: FakeCluster) -> None:
    for name in "cd":
        cluster.delete("Node", name)
    async with PluginHarness(Evicts, cluster) as harness:
        scheduled = await harness.schedule(make_pod("web"))

    assert (scheduled.nominated, [pod.name for pod in scheduled.victims]) == ("a", ["victim"])
    assert scheduled.decided.candidates == ("a",)


@pytest.mark.parametrize("later", [False, True])
async def test_a_nomination_in_the_status_of_a_pod_counts(
    cluster: FakeCluster, later: bool
) -> None:
    """Of one that is there from the start, and of one that comes: both are beside who asks."""
    nominated = {"nominatedNodeName": "c"}
    if not later:
        cluster.pod("first", phase="Pending", status=nominated)
    async with PluginHarness(OnlyFilter, cluster) as harness:
        if later:
            cluster.pod("first", phase="Pending", status=nominated)
        nominator = harness.services.nominator
        assert [pod.name for pod in nominator.pods_of("c")] == ["first"]
        own = make_pod("web", phase="Pending", status={"nominatedNodeName": "d"})
        assert harness.decide(own).filtered == ("d",)
        assert nominator.node_of(own.key) is None

        cluster.delete("Pod", "default/first")
        assert nominator.pods_of("c") == ()


class Follows(OnlyFilter):
    """Knows the licences that there are."""

    def __init__(self, args: object, handle: Handle) -> None:
        super().__init__(args, handle)
        self.changes: list[str] = []
        self.known = handle.services.informers.informer(LICENCES)
        self.known.add_handler(self._changed)

    def _changed(self, change: Change[Any]) -> None:
        self.changes.append(f"{change.kind.value} {change.key}")


async def test_objects_of_a_kind_of_ones_own_are_given_by_the_test(cluster: FakeCluster) -> None:
    """Before the plugin is made and after it; the plugin learns of each as from a cluster."""
    harness = PluginHarness(Follows, cluster)
    harness.informers.apply(LICENCES, {"metadata": {"name": "gold"}, "seats": 1})
    async with harness:
        harness.informers.apply(LICENCES, {"metadata": {"name": "gold"}, "seats": 2})
        harness.informers.apply(LICENCES, {"metadata": {"namespace": "x", "name": "y"}})
        plugin = harness.subject
        assert isinstance(plugin, Follows)
        assert plugin.known.synced
        assert plugin.known.objects["gold"]["seats"] == 2
        harness.informers.delete(LICENCES, "x/y")
        harness.informers.delete(LICENCES, "x/y")
        assert list(plugin.known.objects) == ["gold"]

    assert plugin.changes == [
        "added gold", "synced ", "modified gold", "added x/y", "deleted x/y",
    ]  # fmt: skip


async def test_the_scheduler_of_the_handle_works(cluster: FakeCluster) -> None:
    """As a plugin with pods of its own uses it; pods are retried by the services."""
    waiting = cluster.pod("waits", phase="Pending")
    async with PluginHarness(OnlyFilter, cluster) as harness:
        plugin = harness.subject
        assert isinstance(plugin, OnlyFilter)
        scheduler = plugin.handle.scheduler()
        plugin.handle.services.activate(["x", waiting.uid])
        assert harness.activated == ["x", waiting.uid]

        own = make_pod("own", node="c", cpu=4)
        scheduler.put_own_pod(own)
        assert scheduler.pod(own.key) == own
        scheduler.remove_own_pod(own.key)
        assert scheduler.pod(own.key) is None
        assert not scheduler.is_assumed(waiting.uid)

        forgotten: list[str] = []
        plugin.handle.services.forgotten.register(lambda pod: forgotten.append(pod.name))
        assert not scheduler.forget_pod(waiting)
        assert forgotten == ["waits"]
