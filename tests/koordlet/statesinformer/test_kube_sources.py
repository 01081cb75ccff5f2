"""States from the API server: real HTTP to a scripted server, simulated time."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from koord.api.nodemetric import NodeMetricSpec
from koord.kube.client import NODE_METRICS, NODE_SLOS, NODES, PODS, ApiClient
from koord.kube.credentials import ApiConfig
from koord.kube.events import ObjectRef
from koord.kube.transport import Limits, Transport
from koord.util.health import OK, HealthStatus
from koord.util.stop import Alarm, Stop
from koordlet.host.cgroups.tree import CgroupTree
from koordlet.plugin.testing.scripted import SimulatedClock
from koordlet.statesinformer.informer import StatesInformer, StateType
from koordlet.statesinformer.kube_sources import KubeNodeMetric, kube_node, kube_node_slo
from koordlet.statesinformer.pod_lists import KubePods, PodListGuard
from koordlet.statesinformer.pod_source import PodSource
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.faults import refuse
from tests.support.kube.loopback_network import network_is_quiet
from tests.support.nodeslo import FULL_SLO, spoilt

Start = Callable[..., Awaitable[None]]
METRICS, SLOS, ALL_NODES, ALL_PODS = (
    resource.collection() for resource in (NODE_METRICS, NODE_SLOS, NODES, PODS)
)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
async def informer(clock: SimulatedClock) -> StatesInformer:
    return StatesInformer(clock)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server: ApiServer, clock: SimulatedClock) -> AsyncIterator[ApiClient]:
    config = ApiConfig(server=server.url, source="the test")
    client = ApiClient(Transport(config, clock, limits=Limits(qps=0)), clock, draw=lambda: 0.0)
    yield client
    await client.close()


@pytest.fixture
async def start(clock: SimulatedClock) -> AsyncIterator[Start]:
    """Starts sources, which are stopped at the end of the test."""
    stop = Stop(clock)
    async with AsyncExitStack() as stack:

        async def begin(*sources: Any) -> None:
            for source in sources:
                task = asyncio.create_task(source.run(stop))
                stack.push_async_callback(asyncio.wait_for, task, 10)

        yield begin
        stop.set()


@pytest.fixture
def pass_time(clock: SimulatedClock) -> Callable[..., Awaitable[None]]:
    """Let simulated time pass, with real time for the network, until something holds."""

    async def pass_time(until: Callable[[], object], *, step: float = 0.5) -> None:
        for _ in range(1000):
            if until():
                return
            await network_is_quiet()
            await clock.advance(step)
        raise AssertionError(f"not so after {1000 * step:g} simulated seconds")

    return pass_time


def node(name: str = "n1", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": {"cpu": "4", "memory": "16Gi"}},
    }


def metric(policy: Any = None, status: Any = None) -> dict[str, Any]:
    return {
        "metadata": {"name": "n1"},
        "spec": {"metricCollectPolicy": policy or {}},
        **({"status": status} if status else {}),
    }


def slo(**sections: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n1"}, "spec": sections}


def pod(uid: str, *, node: str = "n1", static: str = "", container: str = "") -> dict[str, Any]:
    annotations = {"kubernetes.io/config.hash": static} if static else {}
    statuses = [{"name": "app", "containerID": f"containerd://{container}"}] if container else []
    return {
        "metadata": {"name": uid, "namespace": "shop", "uid": uid, "annotations": annotations},
        "spec": {"nodeName": node, "containers": [{"name": "app"}]},
        "status": {"phase": "Running", "qosClass": "Burstable", "containerStatuses": statuses},
    }


class TestNode:
    """The Node of this node."""

    async def test_only_our_node_is_followed(
        self, server, client, clock, informer, start, pass_time
    ) -> None:
        """By its name, so that the server sends no other; changes come at once."""
        server.objects.create(ALL_NODES, node("n2"))
        server.objects.create(ALL_NODES, node("n1", pool="a"))
        source = kube_node(client, "n1", informer, clock)
        await start(source)
        await clock.until(lambda: informer.node() is not None)
        server.objects.replace(ALL_NODES, node("n1", pool="b"))
        await clock.until(lambda: informer.node().labels == {"pool": "b"})

        assert informer.node().name == "n1"
        assert {request.query["fieldSelector"] for request in server.requests} == {
            "metadata.name=n1"
        }
        assert source.health() == OK

    async def test_a_deleted_or_spoilt_node_stays_as_it_was(
        self, server, client, clock, informer, start, pass_time
    ) -> None:
        """Health names the field."""
        server.objects.create(ALL_NODES, node("n1", pool="a"))
        source = kube_node(client, "n1", informer, clock)
        await start(source)
        await clock.until(lambda: informer.node() is not None)
        server.objects.replace(ALL_NODES, node("n1") | {"status": {"capacity": {"cpu": "many"}}})
        await clock.until(lambda: source.health().status is HealthStatus.DEGRADED)
        assert "node.status.capacity.cpu: wanted a quantity, found many" in source.health().reason

        server.objects.delete(ALL_NODES, "n1")
        await clock.until(lambda: "wanted a Node named n1, found none" in source.health().reason)
        assert informer.node().labels == {"pool": "a"}
        server.objects.create(ALL_NODES, node("n1", pool="b"))
        await clock.until(lambda: source.health() == OK)
        assert informer.node().labels == {"pool": "b"}


class TestNodeSLO:
    """The NodeSLO, merged with Koordinator's defaults."""

    async def test_a_bad_section_keeps_its_last_good_value(
        self, server, client, clock, informer, start
    ) -> None:
        """The others change; log and health name the field until it is mended."""
        server.objects.create(
            SLOS,
            slo(
                resourceUsedThresholdWithBE={"cpuSuppressThresholdPercent": 50},
                cpuBurstStrategy={"cpuBurstPercent": 200},
            ),
        )
        source = kube_node_slo(client, "n1", informer, clock)
        await start(source)
        await clock.until(lambda: informer.node_slo() is not None)
        assert informer.node_slo().threshold.memory_evict_threshold_percent == 70

        with capture_logs() as logs:
            bad = slo(
                resourceUsedThresholdWithBE={"cpuSuppressThresholdPercent": "half"},
                cpuBurstStrategy={"cpuBurstPercent": 300},
            )
            server.objects.replace(SLOS, bad)
            await clock.until(lambda: informer.node_slo().cpu_burst.cpu_burst_percent == 300)
        assert informer.node_slo().threshold.cpu_suppress_threshold_percent == 50
        assert source.health().status is HealthStatus.DEGRADED
        assert "cpuSuppressThresholdPercent" in source.health().reason
        assert [entry["event"] for entry in logs] == ["object.fields_rejected"]

        # Neither a relist nor the end of the watch makes it good.
        server.objects.compact()
        server.end_watches()
        await clock.advance(60)
        assert "cpuSuppressThresholdPercent" in source.health().reason

        server.objects.replace(SLOS, slo())
        await clock.until(lambda: source.health() == OK)
        assert informer.node_slo().threshold.cpu_suppress_threshold_percent == 65

    async def test_a_wrong_type_in_any_field(self, server, client, clock, informer, start) -> None:
        """Its section keeps the last good value, and both /healthz and an event say which field."""
        reported = []
        good = {key: value for key, value in FULL_SLO.items() if key != "extensions"}  # not read
        server.objects.create(SLOS, slo(**good))
        source = kube_node_slo(client, "n1", informer, clock, reported.append)
        await start(source)
        await clock.until(lambda: informer.node_slo() is not None)
        before = dataclasses.replace(informer.node_slo(), spec={})

        for field, spec in spoilt(good, "nodeSLO.spec"):
            server.objects.replace(SLOS, slo() | {"spec": spec})
            said = f"{field}: wanted "
            await clock.until(lambda said=said: said in source.health().reason)
            assert said in reported[-1].message
            assert dataclasses.replace(informer.node_slo(), spec={}) == before
        assert len(reported) > 150

        server.objects.replace(SLOS, slo(**good))
        await clock.until(lambda: source.health() == OK)

    async def test_deletion_leaves_it_in_force(
        self, server, client, clock, informer, start
    ) -> None:
        """As with Koordinator."""
        server.objects.create(SLOS, slo(cpuBurstStrategy={"cpuBurstPercent": 200}))
        await start(kube_node_slo(client, "n1", informer, clock))
        await clock.until(lambda: informer.node_slo() is not None and server.watching)
        server.objects.delete(SLOS, "n1")
        await asyncio.sleep(0.05)

        assert informer.node_slo().cpu_burst.cpu_burst_percent == 200


class TestNodeMetric:
    """The spec to report by, and the object to report to."""

    async def test_no_object_no_target(self, server, client, clock, informer, start) -> None:
        """It is made later, by koord-manager; and again after it was deleted."""
        source = KubeNodeMetric(client, "n1", informer, clock)
        reported = []
        informer.register_callbacks(
            StateType.NODE_METRIC_SPEC, "test", "", lambda *_: reported.append(source.target())
        )
        await start(source, informer)
        await clock.until(lambda: server.watching)
        assert source.target() is None

        server.objects.create(METRICS, metric({"reportIntervalSeconds": 90}))
        await clock.until(lambda: source.target() is not None)
        assert (source.target().uid, source.target().reported_at) == ("uid-1", None)
        assert informer.node_metric_spec().report_interval == 90
        await clock.until(lambda: reported)

        server.objects.delete(METRICS, "n1")
        await clock.until(lambda: source.target() is None)
        assert informer.node_metric_spec().report_interval == 90
        server.objects.create(METRICS, metric({"reportIntervalSeconds": 90}))
        await clock.until(lambda: source.target() is not None)
        await clock.settle()
        assert source.target().uid == "uid-2"
        # The reporter is notified of a new object, also when its spec is that of the old one.
        assert [target.uid for target in reported if target] == ["uid-1", "uid-2"]

    @pytest.mark.parametrize(
        ("status", "reported_at"),
        [
            ({"updateTime": "2023-11-14T22:13:20Z"}, 1_700_000_000.0),
            ({"updateTime": "yesterday"}, None),
            ({"updateTime": 5}, None),
            ("broken", None),
        ],
    )
    async def test_when_it_was_reported(
        self, server, client, clock, informer, start, status, reported_at
    ) -> None:
        """What is wrong with a status does not matter: it is going to be replaced."""
        server.objects.create(METRICS, metric(status=status))
        source = KubeNodeMetric(client, "n1", informer, clock)
        await start(source)
        await clock.until(lambda: source.target() is not None)

        assert source.target().reported_at == reported_at

    async def test_a_spoilt_spec_does_not_end_reports(
        self, server, client, clock, informer, start
    ) -> None:
        """The last good one, or the default, stays in force."""
        server.objects.create(METRICS, metric({"reportIntervalSeconds": "soon"}))
        source = KubeNodeMetric(client, "n1", informer, clock)
        await start(source)
        await clock.until(lambda: source.target() is not None)

        assert informer.node_metric_spec() == NodeMetricSpec()
        assert "reportIntervalSeconds: wanted a whole number" in source.health().reason


class TestEvents:
    """Whoever looks at an object in the cluster sees what this node does not understand of it."""

    async def test_one_event_per_change_of_what_is_wrong(
        self, server, client, clock, informer, start
    ) -> None:
        """A field of a NodeSLO: not at every version, and again when it was good in between."""
        reported = []
        server.objects.create(SLOS, slo())
        await start(kube_node_slo(client, "n1", informer, clock, reported.append))
        await clock.until(lambda: informer.node_slo() is not None and server.watching)
        for turn, percent in enumerate(("much", "much", "more", 200, "more")):
            section = {"cpuBurstPercent": percent}
            extensions = {"turn": turn}
            server.objects.replace(SLOS, slo(cpuBurstStrategy=section, extensions=extensions))
            await clock.until(
                lambda wanted=extensions: informer.node_slo().spec.get("extensions") == wanted
            )

        found = [event.message.partition(";")[0].rpartition(" ")[2] for event in reported]
        assert found == ["much", "more", "more"]
        assert "nodeSLO.spec.cpuBurstStrategy.cpuBurstPercent: wanted" in reported[0].message
        assert {(event.reason, event.type, event.about) for event in reported} == {
            (
                "FieldsRejected",
                "Warning",
                ObjectRef("slo.koordinator.sh/v1alpha1", "NodeSLO", "n1", uid="uid-1"),
            )
        }

    async def test_an_object_that_is_not_understood_at_all(
        self, server, client, clock, informer, start
    ) -> None:
        """It is reported as well; the last good one stays."""
        reported = []
        server.objects.create(ALL_NODES, node("n1") | {"status": {"capacity": {"cpu": "many"}}})
        await start(kube_node(client, "n1", informer, clock, reported.append))
        await clock.until(lambda: reported)

        [event] = reported
        assert (event.reason, event.about.kind, event.component) == (
            "Rejected",
            "Node",
            "koordlet-Node",
        )
        assert "node.status.capacity.cpu: wanted a quantity, found many" in event.message


class TestPods:
    """Pods by watch on spec.nodeName, joined with the cgroup tree."""

    @pytest.fixture
    def base(self, tmp_path: Path) -> Path:
        directory = tmp_path / "cgroup"
        (directory / "kubepods/burstable").mkdir(parents=True)
        return directory

    @pytest.fixture
    async def pods(self, base, client, clock, informer, start) -> KubePods:
        listing = KubePods(client, "n1", PodListGuard(Alarm()), clock)
        await start(listing, PodSource(CgroupTree(base, clock), informer, clock, listing=listing))
        return listing

    async def test_pods_and_their_cgroups(self, server, base, informer, pods, pass_time) -> None:
        """A static pod's cgroup carries the hash of its manifest, not the mirror pod's uid."""
        (base / "kubepods/burstable/podu1/c1").mkdir(parents=True)
        (base / "kubepods/burstable/podhash/c2").mkdir(parents=True)
        server.objects.create(ALL_PODS, pod("u1", container="c1"))
        server.objects.create(ALL_PODS, pod("u2", static="hash", container="c2"))
        server.objects.create(ALL_PODS, pod("u3", node="n2"))
        await pass_time(
            lambda: all((meta := informer.pod(uid)) and meta.containers for uid in ("u1", "u2"))
        )  # before the server answers the tree alone is read: a static pod is its hash there
        assert len(informer.pods()) == 2

        assert informer.pod("u1").containers[0].cgroup == "kubepods/burstable/podu1/c1"
        assert informer.pod("u2").containers[0].cgroup == "kubepods/burstable/podhash/c2"
        assert informer.pod("u2").pod.namespace == "shop"

        server.objects.create(ALL_PODS, pod("u4"))
        server.objects.delete(ALL_PODS, "shop/u1")
        await pass_time(lambda: {meta.uid for meta in informer.pods()} == {"u2", "u4"})
        assert pods.health() == OK

    async def test_pods_are_measured_before_the_server_answers(
        self, server, base, client, clock, informer, start, pass_time
    ) -> None:
        """As the tree shows them, but that is not what is known of them."""
        (base / "kubepods/burstable/podu1/c1").mkdir(parents=True)
        server.script(*[refuse(503)] * 20)
        listing = KubePods(client, "n1", PodListGuard(Alarm()), clock)
        await start(listing, PodSource(CgroupTree(base, clock), informer, clock, listing=listing))
        await pass_time(lambda: informer.pods())
        assert informer.pods()[0].pod.namespace == "unknown"
        assert "pods" in informer.health().reason
        assert listing.health().status is HealthStatus.DEGRADED

        server.objects.create(ALL_PODS, pod("u1", container="c1"))
        await pass_time(lambda: informer.pods()[0].pod.namespace == "shop", step=2)
        assert "pods" not in informer.health().reason
        assert informer.pods()[0].containers[0].name == "app"

    async def test_an_empty_list_is_believed_when_seen_twice(
        self, server, clock, informer, pods, pass_time
    ) -> None:
        """A relist without pods drops none, until the next one says the same."""
        server.objects.create(ALL_PODS, pod("u1"))
        server.objects.create(ALL_PODS, pod("u2"))
        await pass_time(lambda: len(informer.pods()) == 2)
        await clock.until(lambda: server.watching)

        with capture_logs() as logs:
            lose(server, "shop/u1", "shop/u2")
            await pass_time(lambda: pods.health().status is HealthStatus.DEGRADED)
            assert "looking again" in pods.health().reason
            assert len(informer.pods()) == 2
            await pass_time(lambda: informer.pods() == ())
        assert pods.health() == OK
        assert "pods.vanished" in [entry["event"] for entry in logs]

    async def test_an_empty_list_for_a_moment_drops_no_pod(
        self, server, clock, informer, pods, pass_time
    ) -> None:
        """Nor does it make their callbacks run."""
        server.objects.create(ALL_PODS, pod("u1"))
        await pass_time(lambda: len(informer.pods()) == 1)
        await clock.until(lambda: server.watching)
        before = informer.pods()

        [lost] = lose(server, "shop/u1")
        await pass_time(lambda: pods.health().status is HealthStatus.DEGRADED)
        server.objects.create(ALL_PODS, lost)
        await pass_time(lambda: pods.health() == OK)
        await pass_time(lambda: server.watching)

        assert informer.pods() is before

    async def test_pods_whose_end_was_reported_are_gone(
        self, server, clock, informer, pods, pass_time
    ) -> None:
        """The last pod, too: a watch does not err as a list may."""
        server.objects.create(ALL_PODS, pod("u1"))
        await pass_time(lambda: len(informer.pods()) == 1)
        await clock.until(lambda: server.watching)
        server.objects.delete(ALL_PODS, "shop/u1")

        await pass_time(lambda: informer.pods() == ())
        assert len(server.asked("list")) == 1

    async def test_of_pods_with_one_uid_one_counts(self, server, informer, pods, pass_time) -> None:
        """The first by name, and the other one is reported."""
        for name in ("b", "a"):
            twin = pod("u1")
            twin["metadata"]["name"] = name
            server.objects.create(ALL_PODS, twin)
        with capture_logs() as logs:
            await pass_time(lambda: [meta.pod.name for meta in informer.pods()] == ["a"])
        [entry] = [entry for entry in logs if entry["event"] == "source.degraded"]
        assert "pod shop/b.metadata.uid: wanted a uid of its own" in entry["problems"][0]

    async def test_a_bad_pod_costs_only_itself(
        self, server, clock, informer, pods, pass_time
    ) -> None:
        """And health says which."""
        bad = pod("u2")
        bad["spec"]["containers"] = "app"
        server.objects.create(ALL_PODS, pod("u1"))
        server.objects.create(ALL_PODS, bad)
        await pass_time(lambda: len(informer.pods()) == 1)

        await clock.until(lambda: pods.health().status is HealthStatus.DEGRADED)
        assert "pod shop/u2.spec.containers: wanted a list" in pods.health().reason


def lose(server: ApiServer, *keys: str) -> list[dict[str, Any]]:
    """Let pods be missing in the next list, without a watch event; return them."""
    server.silent = True
    lost = [server.objects.delete(ALL_PODS, key) for key in keys]
    server.objects.compact()
    server.end_watches()
    server.silent = False
    return lost
