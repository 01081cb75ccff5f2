"""The kit's harness: a plugin of a third party, decided and scheduled without a cluster."""

import asyncio
from collections.abc import Hashable
from typing import Any

import pytest

from koord.cluster.state import ClusterState
from koord.plugin.kube import Event, EventType, ObjectRef
from koord_scheduler.plugin import (
    NODE_METRIC,
    Action,
    ClusterEvent,
    ClusterPod,
    CycleState,
    EnqueueExtensions,
    EventResource,
    Handle,
    HintedEvent,
    NodeInfo,
    PermitPlugin,
    PostFilterPlugin,
    PostFilterResult,
    PreBindPlugin,
    PreEnqueuePlugin,
    ReservePlugin,
    ScorePlugin,
    Status,
    UsageReport,
    View,
    Wait,
)
from koord_scheduler.plugin.testing import (
    FakeCluster,
    PluginHarness,
    ProfileHarness,
    fake_cluster,
    make_pod,
)
from tests.support.scheduler.framework import FreeCpu


class Free(FreeCpu):
    def __init__(self, args: Any, handle: Handle) -> None: ...


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = fake_cluster()
    cluster.node("large", cpu=8)
    cluster.node("small", cpu=2)
    cluster.pod("old", "small", cpu=1)
    return cluster


def pending(name: str = "web", **facts: Any) -> ClusterPod:
    return make_pod(name, phase="Pending", **facts)


async def test_a_decision_has_nodes_scores_and_rejections(cluster: FakeCluster) -> None:
    async with PluginHarness(Free, cluster, weight=3) as harness:
        decided = harness.decide(pending(cpu=1))
        assert decided.node == "large"
        assert decided.feasible == ("large", "small")
        assert decided.scores == {"Free": {"large": 300, "small": 150}}
        assert decided.message == ""
        decided = harness.decide(pending(cpu=4))
        assert decided.rejections == {"small": "Insufficient cpu"}
        decided = harness.decide(pending(cpu=9))
        assert decided.node is None
        assert decided.message == "0/2 nodes are available: 2 Insufficient cpu."


async def test_a_pod_is_scheduled_and_takes_room(cluster: FakeCluster) -> None:
    async with PluginHarness(Free, cluster) as harness:
        done = await harness.schedule(pending(cpu=6))
        assert (done.node, done.status.ok) == ("large", True)
        assert harness.bound == {"default/web": "large"}
        placed = cluster.state.pod("default/web")
        assert placed is not None
        assert placed.node == "large"
        assert harness.decide(pending("next", cpu=3)).node is None


class Whole(ReservePlugin, PreBindPlugin, PermitPlugin):
    """Fails where its args say; keeps accounts."""

    def __init__(self, args: Any, handle: Handle) -> None:
        self.fails = args["at"]
        self.waiting = handle.services.waiting
        self.accounts: list[str] = []

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        self.accounts.append(pod.key)
        return Status.unschedulable("no room") if self.fails == "reserve" else None

    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        self.accounts.remove(pod.key)

    def permit(self, state: CycleState, pod: ClusterPod, node_name: str) -> Wait | None:
        return Wait(30.0) if self.fails == "permit" else None

    async def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        return Status.failed("no volume") if self.fails == "pre_bind" else None


@pytest.mark.parametrize(("fails", "message"), [("reserve", "no room"), ("pre_bind", "no volume")])
async def test_what_fails_is_rolled_back(fails: str, message: str, cluster: FakeCluster) -> None:
    async with PluginHarness(Whole, cluster, args={"at": fails}) as harness:
        done = await harness.schedule(pending())
        assert done.node is None
        assert message in done.status.message
        assert done.status.plugin == "Whole"
        assert harness.subject.accounts == []  # type: ignore[attr-defined]
        placed = cluster.state.pod("default/web")
        assert placed is not None
        assert placed.node == ""
        assert harness.bound == {}


async def test_a_permit_that_does_not_come_in_simulated_time(cluster: FakeCluster) -> None:
    async with PluginHarness(Whole, cluster, args={"at": "permit"}) as harness:
        running = asyncio.create_task(harness.schedule(pending()))
        await harness.clock.advance(29.0)
        assert not running.done()
        await harness.clock.advance(2.0)
        assert (await running).node is None
        assert harness.subject.accounts == []  # type: ignore[attr-defined]


class Nominates(FreeCpu, PostFilterPlugin, PreEnqueuePlugin):
    def __init__(self, args: Any, handle: Handle) -> None: ...

    async def post_filter(self, state: Any, pod: Any, nodes: View, statuses: Any) -> Any:
        return PostFilterResult("small")

    def pre_enqueue(self, pod: ClusterPod) -> Status | None:
        return Status.unresolvable("draft") if pod.name == "draft" else None


async def test_gates_and_post_filter(cluster: FakeCluster) -> None:
    async with PluginHarness(Nominates, cluster) as harness:
        assert (await harness.schedule(pending(cpu=9))).nominated == "small"
        assert harness.gate(pending("draft")).message == "draft"
        assert harness.gate(pending("web")).ok


class FreeOfNewNodes(Free, EnqueueExtensions):
    def events_to_register(self) -> list[HintedEvent]:
        return [HintedEvent(ClusterEvent(EventResource.NODE, Action.ADD))]


async def test_an_event_that_the_plugin_did_not_register_helps_nobody(
    cluster: FakeCluster,
) -> None:
    added = ClusterEvent(EventResource.NODE, Action.ADD)
    removed = ClusterEvent(EventResource.ASSIGNED_POD, Action.DELETE)
    async with PluginHarness(Free, cluster) as harness:  # says nothing: everything may help
        assert harness.is_retried_after(pending(), removed)
    async with PluginHarness(FreeOfNewNodes, cluster) as harness:
        assert harness.is_retried_after(pending(), added)
        assert not harness.is_retried_after(pending(), removed)


class Forgetful(ScorePlugin):
    """Its reuse key leaves out what its scores depend on."""

    def __init__(self, args: Any, handle: Handle) -> None:
        self.scores = 1

    def score_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        return self.scores


async def test_a_reuse_key_that_leaves_something_out_is_found(cluster: FakeCluster) -> None:
    async with PluginHarness(Forgetful, cluster) as harness:
        harness.decide(pending())
        harness.subject.scores = 2  # type: ignore[attr-defined]
        with pytest.raises(AssertionError, match="a reuse key leaves out"):
            harness.decide(pending("other"))


class Watches(FreeCpu):
    """Follows NodeMetrics, and reports each as an event."""

    def __init__(self, args: Any, handle: Handle) -> None:
        self.services = handle.services
        handle.services.changes.subscribe(NODE_METRIC, self.changed)

    def changed(self, old: UsageReport | None, new: UsageReport | None) -> None:
        assert new is not None
        assert new.usage is not None
        about = ObjectRef("v1", "Node", new.node)
        text = f"{new.usage.cores:g} cores"
        self.services.events.emit(Event(about, EventType.NORMAL, "Reported", text, "Watches"))


async def test_a_plugin_learns_of_what_was_there_and_of_what_comes(cluster: FakeCluster) -> None:
    cluster.pod("busy", "large", uses={"cpu": 3})
    cluster.report("large")
    async with PluginHarness(Watches, cluster) as harness:
        cluster.pod("busy", "large", uses={"cpu": 5})
        cluster.report("large")
        assert [one.message for one in harness.events] == ["3 cores", "5 cores"]


async def test_costs_have_every_form(cluster: FakeCluster) -> None:
    async with PluginHarness(Free, cluster) as harness:
        found = await harness.costs(pending(cpu=1), nodes=50)
        assert set(found) == {"filter", "filter_all", "score", "score_all"}
        assert all(cost > 0 for cost in found.values())


async def test_the_plugins_that_ship_in_a_profile_of_a_file(cluster: FakeCluster) -> None:
    config = """
        apiVersion: kubescheduler.config.k8s.io/v1
        kind: KubeSchedulerConfiguration
        profiles:
          - schedulerName: own
            plugins:
              score: {enabled: [{name: Free, weight: 5}]}
              bind: {disabled: [{name: DefaultBinder}], enabled: [{name: RecordingBinder}]}
        """
    async with ProfileHarness(config, cluster, {"Free": Free}, installed=True) as harness:
        assert harness.warnings == []
        done = await harness.schedule(pending(cpu=1))
        assert done.node == "large"
        assert {"Free", "NodeResourcesFit"} <= done.decided.scores.keys()


def test_a_cluster_that_knows_nothing_of_assumed_pods_is_refused() -> None:
    with pytest.raises(TypeError, match="wanted a cluster made by fake_cluster"):
        PluginHarness(Free, FakeCluster(state=ClusterState()))
