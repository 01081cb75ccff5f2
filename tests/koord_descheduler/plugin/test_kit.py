"""The kit for plugin authors: a fake cluster, and plugins that run on it."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from koord.component.config.field_errors import InvalidConfig
from koord.kube.errors import Conflict, NotFound, TooManyRequests
from koord.plugin.args import FieldError, invalid, takes_args
from koord_descheduler.framework.profile import ProfileError
from koord_descheduler.plugin import (
    Action,
    BalancePlugin,
    ClusterNode,
    ClusterPod,
    DeschedulePlugin,
    EvictOptions,
    Evictor,
    Handle,
    PodDecision,
    Status,
    fits,
)
from koord_descheduler.plugin.testing import (
    FakeCluster,
    PluginHarness,
    ProfileHarness,
    RecordingEvictor,
    ScriptedServer,
    SimulatedClock,
    fake_services,
    make_pod,
)

GI = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class BusyArgs:
    """Arguments of Busy."""

    above: float = 2.0  # cores

    def validate(self) -> Iterator[FieldError]:
        if self.above <= 0:
            yield invalid(("above",), self.above, "wanted more than 0 cores")


@takes_args(BusyArgs)
class Busy(BalancePlugin):
    """Moves the pods of nodes that use more than so many cores, and says so."""

    def __init__(self, args: BusyArgs, handle: Handle) -> None:
        self.args, self.handle = args, handle

    async def balance(self, nodes: Sequence[ClusterNode]) -> Status | None:
        services, evictor = self.handle.services, self.handle.evictor()
        found = []
        for node in nodes:
            report = services.cluster.reports.get(node.name)
            if report is None or report.usage is None or report.usage.cores <= self.args.above:
                continue
            for pod in self.handle.list_pods_on_node(node.name, evictor.filter):
                done = await evictor.evict(pod, EvictOptions(reason=f"{node.name} is busy"))
                found.append(
                    PodDecision(
                        profile=self.handle.profile,
                        plugin=self.name,
                        pod=pod.key,
                        node=node.name,
                        action=Action.EVICT if done else Action.REFUSED,
                        reason="busy",
                    )
                )
        services.decisions.publish(lambda: found)
        return None


class OverApi(Evictor):
    """Evicts by the API server."""

    def __init__(self, args: Any, handle: Handle) -> None:
        self.client = handle.services.client

    def filter(self, pod: ClusterPod) -> bool:
        return pod.namespace != "kube-system"

    async def evict(self, pod: ClusterPod, options: EvictOptions) -> bool:
        body = {"deleteOptions": {"preconditions": {"uid": pod.uid}}}
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction"
        answer = await self.client.post(path, body)
        return answer["status"] == "Success"


@pytest.fixture
def cluster() -> FakeCluster:
    """Two nodes, one of which is busy."""
    cluster = FakeCluster()
    cluster.node("n1", cpu=4, memory="8Gi", system={"cpu": "250m", "memory": "1Gi"})
    cluster.node("n2", cpu=4, memory="8Gi")
    cluster.pod("a", "n1", cpu="500m", uses={"cpu": 2, "memory": "1Gi"})
    cluster.pod("b", "n1", cpu="500m", uses={"cpu": "500m"})
    cluster.pod("old", "n1", phase="Succeeded", uses={"cpu": 9})
    return cluster


async def test_a_cycle_hands_back_evictions_and_decisions(cluster: FakeCluster) -> None:
    """By the reports of the cluster; what was evicted is gone after it, and in the next report."""
    cluster.report()
    async with PluginHarness(Busy, cluster, protected=["default/b"]) as harness:
        result = await harness.cycle()

        assert (result.nodes, result.errors) == (2, [])
        assert result.evictions == {"test": {"Busy": 1}}
        [evicted] = harness.evicted
        assert evicted.key == "default/a"
        assert evicted.options == EvictOptions(plugin_name="Busy", reason="n1 is busy")
        assert [(each.pod, each.action) for each in harness.decisions.pods()] == [
            ("default/a", Action.EVICT)
        ]
        assert cluster.state.pod("default/a") is None
        assert harness.metric("descheduler_cycle_duration_seconds_count") == 1

        [report] = cluster.report("n1")
        assert report.usage is not None
        assert report.usage.cores == 0.75
        assert (await harness.cycle()).evictions == {}


async def test_an_eviction_may_fail(cluster: FakeCluster) -> None:
    """The pods stay, and are asked for again."""
    cluster.report()
    async with PluginHarness(Busy, cluster, refused=["default/a", "default/b"]) as harness:
        for _ in range(2):
            assert (await harness.cycle()).evictions == {}
        assert [each.action for each in harness.decisions.pods()] == [Action.REFUSED] * 2
        assert harness.evicted == []
        labels = {"result": "error", "strategy": "Busy", "namespace": "default", "node": "n1"}
        assert harness.metric("descheduler_pods_evicted", **labels) == 4


async def test_arguments_are_read_as_in_a_file(cluster: FakeCluster) -> None:
    """Defaults, and all faults."""
    async with PluginHarness(Busy, cluster) as harness:
        assert harness.subject.args == BusyArgs()  # type: ignore[attr-defined]
    async with PluginHarness(Busy, cluster, args={"above": 3.5}) as harness:
        assert harness.subject.args == BusyArgs(above=3.5)  # type: ignore[attr-defined]
    with pytest.raises(InvalidConfig, match="wanted more than 0 cores"):
        PluginHarness(Busy, cluster, args={"above": 0})
    with pytest.raises(InvalidConfig, match="abvoe"):
        PluginHarness(Busy, cluster, args={"abvoe": 1})


async def test_settings_of_the_whole_descheduler_hold(cluster: FakeCluster) -> None:
    """Limits and dry-run; in dry-run all pods stay."""
    cluster.report()
    async with PluginHarness(Busy, cluster, maxNoOfPodsToEvictTotal=1) as harness:
        assert (await harness.cycle()).evictions == {"test": {"Busy": 1}}
    async with PluginHarness(Busy, cluster, dryRun=True) as harness:
        assert (await harness.cycle()).evictions == {"test": {"Busy": 1}}
        assert harness.evicted == []
    assert cluster.state.pod("default/b") is not None


async def test_an_evictor_is_asked_as_plugins_do(cluster: FakeCluster) -> None:
    """Filters first; the server decides by the cluster's budgets, by the pod's uid."""
    pod = cluster.pod("web", "n1", labels={"app": "web"})
    system = cluster.pod("dns", "n1", namespace="kube-system")
    cluster.budget("web", {"app": "web"}, allowed=1)
    async with PluginHarness(OverApi, cluster) as harness:
        assert not await harness.evict(system)
        assert await harness.evict(pod, EvictOptions(reason="test"))
        assert not await harness.evict(pod)  # the budget allows no second one
        assert [each.key for each in harness.server.evicted] == ["default/web"]
        assert [call.where for call in harness.server.calls] == [
            "POST /api/v1/namespaces/default/pods/web/eviction"
        ] * 2
        await harness.cycle()
        assert cluster.state.pod("default/web") is None
        assert not await harness.evict(pod)


async def test_the_server_refuses_as_the_real_one_does(cluster: FakeCluster) -> None:
    """A budget, another pod of that name, no such pod; a test adds answers of its own."""
    server = ScriptedServer(cluster)
    client = fake_services(cluster, server=server).client
    path = "/api/v1/namespaces/default/pods/a/eviction"
    with pytest.raises(Conflict):
        await client.post(path, {"deleteOptions": {"preconditions": {"uid": "another"}}})
    cluster.budget("all", {}, allowed=0)
    with pytest.raises(TooManyRequests):
        await client.post(path, {})
    with pytest.raises(NotFound):
        await client.post(path.replace("/a/", "/nobody/"), {})
    with pytest.raises(NotFound):
        await client.get("/version")
    server.answer(lambda call: {"major": "1"} if call.path == "/version" else None)
    assert await client.get("/version") == {"major": "1"}
    assert server.evicted == []


async def test_profiles_of_a_file_run_in_their_order(cluster: FakeCluster) -> None:
    """With the same evictor in both, an instance for each."""
    cluster.report()
    evictor = {"disabled": [{"name": "*"}], "enabled": [{"name": "RecordingEvictor"}]}
    plugins = {"balance": {"enabled": [{"name": "Busy"}]}, "evict": evictor, "filter": evictor}
    quiet = {"matchLabels": {"kubernetes.io/hostname": "n2"}}
    config = {
        "apiVersion": "descheduler/v1alpha2",
        "kind": "DeschedulerConfiguration",
        "profiles": [
            {"name": "first", "nodeSelector": quiet, "plugins": plugins},
            {"name": "second", "plugins": plugins},
        ],
    }
    async with ProfileHarness(config, cluster, {"Busy": Busy}) as harness:
        assert (await harness.cycle()).evictions == {"second": {"Busy": 2}}
        first, second = (harness.plugin("RecordingEvictor", name) for name in ("first", "second"))
        assert isinstance(first, RecordingEvictor)
        assert isinstance(second, RecordingEvictor)
        assert (len(first.evicted), len(second.evicted)) == (0, 2)
        assert await harness.evict(make_pod("c"), profile="first")
        assert len(harness.evicted) == 3


async def test_a_plugin_runs_where_its_class_can_or_where_the_test_says(
    cluster: FakeCluster,
) -> None:
    """A function may make anything, so it needs to be said."""

    class Both(DeschedulePlugin, BalancePlugin):
        def __init__(self, args: Any, handle: Handle) -> None:
            self.rounds: list[str] = []

        async def deschedule(self, nodes: Sequence[ClusterNode]) -> None:
            self.rounds.append("deschedule")

        async def balance(self, nodes: Sequence[ClusterNode]) -> None:
            self.rounds.append("balance")

    async with PluginHarness(Both, cluster) as harness:
        await harness.cycle()
        assert harness.subject.rounds == ["deschedule", "balance"]  # type: ignore[attr-defined]
    async with PluginHarness(
        lambda args, handle: Both(args, handle), cluster, name="Made", points=["balance"]
    ) as harness:
        await harness.cycle()
        assert harness.subject.rounds == ["balance"]  # type: ignore[attr-defined]


async def test_what_keeps_a_profile_from_running_is_raised(cluster: FakeCluster) -> None:
    """A factory that fails; a cluster that is too small is in the result, as in the daemon."""

    class Broken(BalancePlugin):
        def __init__(self, args: Any, handle: Handle) -> None:
            raise ValueError("no")

        async def balance(self, nodes: Sequence[ClusterNode]) -> None: ...

    with pytest.raises(ProfileError, match="no"):
        async with PluginHarness(Broken, cluster):
            pass
    async with PluginHarness(Busy, FakeCluster()) as harness:
        [error] = (await harness.cycle()).errors
    assert "wanted 2 ready nodes" in error


async def test_time_passes_when_the_test_says_so(cluster: FakeCluster) -> None:
    """A plugin that waits goes on once the clock was advanced."""

    class Slow(BalancePlugin):
        def __init__(self, args: Any, handle: Handle) -> None:
            self.clock = handle.services.clock

        async def balance(self, nodes: Sequence[ClusterNode]) -> None:
            await self.clock.sleep(30.0)

    async with PluginHarness(Slow, cluster) as harness:
        cycle = asyncio.create_task(harness.cycle())
        await harness.clock.advance(30.0)
        assert (await cycle).seconds == 30.0


def test_a_report_says_what_pods_and_system_use(cluster: FakeCluster) -> None:
    """Or what the test says, whatever the pods do; times are simulated ones."""
    [report, _] = cluster.report()
    assert report.update_time == cluster.clock.wall()
    assert report.usage is not None
    assert (report.usage.cores, report.usage.memory_bytes) == (2.75, 2 * GI)
    assert report.system_usage is not None
    assert (report.system_usage.cores, report.system_usage.memory_bytes) == (0.25, GI)
    assert {(pod.name, pod.usage.cores) for pod in report.pods} == {("a", 2.0), ("b", 0.5)}

    [old] = cluster.report("n1", at=1000.0, usage={"cpu": 4, "memory": 0}, p95={"cpu": 3})
    assert old.update_time == 1000.0
    assert old.usage is not None
    assert old.usage.cores == 4.0
    assert cluster.state.reports["n1"] is old


def test_objects_are_those_that_the_descheduler_reads(cluster: FakeCluster) -> None:
    """Workloads own pods, taints and requests count, any kind can be applied and removed."""
    deployment = cluster.workload("Deployment", "web", replicas=3)
    replicas = cluster.workload("ReplicaSet", "web-1", replicas=3, owner=deployment)
    pod = cluster.pod("web-1-x", "n1", owner=replicas, cpu=3, priority=5, created=100.0)
    assert cluster.state.workloads.of(pod) == deployment
    assert (pod.priority, pod.created) == (5, 100.0)

    taint = {"key": "gone", "value": "", "effect": "NoSchedule"}
    cluster.node("n3", cpu=8, taints=[taint], allocatable={"example.com/gpu": 2})
    free = cluster.pod("free", cpu=3, spec={"tolerations": [{"operator": "Exists"}]})
    view = cluster.state.view()
    rows = {name: view.row(name) for name in ("n1", "n2", "n3")}
    assert [bool(fits(free, view).mask[rows[name]]) for name in rows] == [False, True, True]
    bare = cluster.pod("bare", cpu=3)
    assert not fits(bare, cluster.state.view()).mask[rows["n3"]]

    cluster.priority_class("high", 1000)
    cluster.apply({"kind": "Namespace", "metadata": {"name": "shop", "labels": {"a": "b"}}})
    cluster.apply({"kind": "Pod", "metadata": {"name": "c", "namespace": "shop"}})
    assert cluster.state.pod("shop/c") is not None
    cluster.delete("Pod", "shop/c")
    assert cluster.state.pod("shop/c") is None
    assert cluster.state.priority_classes["high"].value == 1000


def test_a_cluster_can_have_a_clock_of_the_test() -> None:
    """Reports have its time."""
    cluster = FakeCluster(SimulatedClock(wall=1_800_000_000.0))
    cluster.node("n1")
    [report] = cluster.report()
    assert report.update_time == 1_800_000_000.0
