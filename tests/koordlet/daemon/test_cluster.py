"""The whole daemon in a cluster: fake host, scripted API server, simulated time."""

import asyncio
import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from koord.api.eviction import EvictionOutcome
from koord.api.qos import KubeQoS
from koord.component.http.exposition import Exposition
from koord.kube.client import (
    CONFIG_MAPS,
    DEVICES,
    EVENTS,
    NODE_METRICS,
    NODE_SLOS,
    NODE_TOPOLOGIES,
    NODES,
    PODS,
)
from koord.kube.errors import ConfigError
from koord.util.stop import Stop
from koordlet.daemon import run
from koordlet.daemon.cluster import NotAllowed
from koordlet.daemon.settings import load_settings
from koordlet.plugin import ExtensionPlugin, FeatureSpec, PluginRegistry
from koordlet.plugin.testing import FakeHost, SimulatedClock, make_pod
from koordlet.reporter.loop import node_phase
from koordlet.server.app import FAMILIES
from koordlet.statesinformer.informer import StatesInformer
from koordlet_plugins.eviction.memory import MemoryEvict
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.certificates import Authority
from tests.support.kube.daemon_flags import host_flags, kubeconfig
from tests.support.kube.faults import answer, drop, hang, refuse
from tests.support.kube.inline_executor import InlineExecutor
from tests.support.kube.kubelet import Kubelet, make_kubelet, rbac
from tests.support.kube.loopback_network import network_is_quiet
from tests.support.kube.own_metrics import passes_of

METRICS, SLOS, TOPOLOGIES, ALL_NODES, ALL_PODS, CONFIGS = (
    resource.collection()
    for resource in (NODE_METRICS, NODE_SLOS, NODE_TOPOLOGIES, NODES, PODS, CONFIG_MAPS)
)
REVIEWS = {
    "tokenreviews": "authentication.k8s.io",
    "subjectaccessreviews": "authorization.k8s.io",
}
UID = "11111111-2222-3333-4444-555555555555"
MIB = 2**20
BY_A_MANAGER = {"manager": "koordinator-manager", "fieldsV1": {"f:spec": {}}}
BY_NAME = ("n1", "slo-controller-config", "koordinator-manager")  # all that is ever asked for


class Probe(ExtensionPlugin):
    """A plugin that keeps its client."""

    def setup(self, client: Any, metric_cache: Any, states_informer: Any) -> None:
        self.client, self.states = client, states_informer

    async def run(self, stop: Stop) -> None:
        await stop.wait()


class Node:
    """A daemon on a host with one busy pod, and an API server."""

    def __init__(self, directory: Path, server: ApiServer, built: Any) -> None:
        self.built = built
        self.server, self.clock = server, SimulatedClock()
        self.host = FakeHost(directory / "host", cpus=4)
        self.run_dir = directory / "run"
        self.kubeconfig = directory / "kubeconfig"
        self.pod = self.host.add_pod(UID, KubeQoS.BURSTABLE)
        self.pod.group.use_memory(100 * MIB)
        self.pod_runs = True
        self.probe = Probe()
        self.shipped: dict[str, ExtensionPlugin] = {}  # plugins of ours, of gates that exist
        self._exposition = Exposition(FAMILIES, clock=self.clock)
        self._task: asyncio.Task[None] | None = None

    async def start(self, *args: str) -> None:
        """Start, and wait for the first sampling pass."""
        asyncio.get_running_loop().set_default_executor(InlineExecutor())
        self.kubeconfig.write_text(kubeconfig(self.server.url, self.server.token))
        self.settings = load_settings(
            [
                f"--kubeconfig={self.kubeconfig}",
                "--addr=127.0.0.1:0",
                f"--run-dir={self.run_dir}",
                *host_flags(self.host.paths),
                "--node-name=n1",
                "--disable-query-kubelet-config",
                "--kubelet-sync-interval=0",
                *args,
            ],
            {},
            clock=self.clock,
            metrics=self._exposition.internal,
            discover=self._discover,
            laid_out=True,
        )
        self._stop = Stop(self.clock)
        work = run.run_daemon(self.settings, self._exposition, self.clock, stop=self._stop)
        self._task = asyncio.create_task(work, name="daemon")
        await self.clock.until(lambda: self._passes() >= 1 or self._task.done())

    async def seconds(self, count: int) -> None:
        """Let time pass; each second the pod works and one sampling pass is made of it."""
        for _ in range(count):
            self.host.use_cpu(1.5, system=0.5, idle=2.0)
            if self.pod_runs:
                for group in (*self.pod.containers.values(), self.pod.group):
                    group.use_cpu(0.25)
            wanted = self._passes() + 1
            await self.clock.advance(1)
            await self.clock.until(lambda wanted=wanted: self._passes() >= wanted)
            for _ in range(3):  # the network takes no simulated time
                await network_is_quiet()
                await self.clock.settle()

    @property
    def states(self) -> StatesInformer:
        """What the daemon knows."""
        found: StatesInformer = self.built.states
        return found

    def end_pod(self) -> None:
        """Let the pod's processes and cgroups be gone."""
        self.pod_runs = False
        self.pod.remove()

    async def until(self, holds: Callable[[], object], most: int = 120) -> None:
        """Let seconds pass until something holds."""
        for _ in range(most):
            if holds():
                return
            await self.seconds(1)
        raise AssertionError(f"not so after {most} simulated seconds")

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Status and text of an HTTP response."""
        address = (await self.ctl("status"))["address"]
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"http://{address}{path}") as found,
        ):
            return found.status, await found.text()

    async def stop(self) -> None:
        if self._task is not None:
            self._stop.set()
            task, self._task = self._task, None
            await asyncio.wait_for(task, 60)

    async def ctl(self, path: str) -> Any:
        connector = aiohttp.UnixConnector(str(self.run_dir / "ctl.sock"))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(f"http://koordlet/{path}") as response,
        ):
            return await response.json()

    def status(self) -> dict[str, Any] | None:
        """What the cluster knows of this node."""
        return self.server.objects.get(METRICS, "n1").get("status")

    def _passes(self) -> float:
        return passes_of(self._exposition.internal)

    def _discover(self, registry: PluginRegistry) -> list[str]:
        view = registry.from_source("test", "1.0")
        view.register_qos_ext_plugin("Probe", FeatureSpec(), self.probe)
        for name, plugin in self.shipped.items():
            view.register_qos_ext_plugin(name, None, plugin)
        return []


def jwt(claims: Any) -> str:
    """A token as the kubelet gives it to a pod."""
    return f"head.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode()}.signature"


def agent_pod(
    name: str, image: str, *, namespace: str = "koordinator-system", **spec: Any
) -> dict[str, Any]:
    """A running pod of a DaemonSet of its own, as Koordinator labels it."""
    owner = {"kind": "DaemonSet", "name": name, "uid": f"of-{name}", "controller": True}
    return {
        "metadata": {
            "namespace": namespace,
            "name": name,
            "uid": name,
            "labels": {"koord-app": "koordlet"},
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "koordlet", "image": image}], **spec},
        "status": {
            "phase": "Running",
            "qosClass": "Burstable",
            "containerStatuses": [{"name": "koordlet", "state": {"running": {}}}],
        },
    }


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """The cluster of this node: Node, NodeMetric, NodeSLO and one pod."""
    server = ApiServer(token="secret")
    server.objects.create(
        ALL_NODES,
        {"metadata": {"name": "n1"}, "status": {"capacity": {"cpu": "4", "memory": "16Gi"}}},
    )
    metadata = {"name": "n1", "managedFields": [BY_A_MANAGER]}
    policy = {"reportIntervalSeconds": 30}
    server.objects.create(METRICS, {"metadata": metadata, "spec": {"metricCollectPolicy": policy}})
    burst = {"cpuBurstPercent": 300}
    server.objects.create(SLOS, {"metadata": metadata, "spec": {"cpuBurstStrategy": burst}})
    server.objects.create(
        ALL_PODS,
        {
            "metadata": {"namespace": "shop", "name": "web", "uid": UID},
            "spec": {"nodeName": "n1", "containers": [{"name": "app"}]},
            "status": {
                "phase": "Running",
                "qosClass": "Burstable",
                "containerStatuses": [{"name": "app", "containerID": "containerd://c1"}],
            },
        },
    )
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def node(tmp_path: Path, server: ApiServer, built: Any) -> AsyncIterator[Node]:
    node = Node(tmp_path, server, built)
    yield node
    await node.stop()


async def test_a_busy_pod_is_reported(node: Node, server: ApiServer) -> None:
    """By the names that the cluster has for it, within seconds of the start."""
    await node.start()
    await node.seconds(4)

    status = node.status()
    assert status["nodeMetric"]["nodeUsage"]["resources"]["cpu"] == "2"
    [pod] = status["podsMetric"]
    assert (pod["namespace"], pod["name"], pod["qos"]) == ("shop", "web", "LS")
    assert pod["podUsage"]["resources"] == {"cpu": "250m", "memory": "100Mi"}
    assert node.states.node_slo().cpu_burst.cpu_burst_percent == 300
    assert not (node.run_dir / "nodemetric.json").exists()


@pytest.fixture
async def kubelet(tmp_path: Path, server: ApiServer) -> AsyncIterator[Kubelet]:
    """The kubelet that the Node names. It knows the pod by another name than the API server."""
    kubelet = make_kubelet(Authority(tmp_path))
    [known] = server.objects.all(ALL_PODS, "")
    kubelet.pods = [known | {"metadata": known["metadata"] | {"name": "fresh"}}]
    await kubelet.start()
    item = server.objects.get(ALL_NODES, "n1")
    server.objects.replace(ALL_NODES, item | {"status": item["status"] | kubelet.status})
    yield kubelet
    await kubelet.stop()


async def test_pods_come_from_the_kubelet(
    node: Node, server: ApiServer, kubelet: Kubelet, tmp_path: Path
) -> None:
    """The API server is not asked for them; our token goes where the CA vouches for the server."""
    await node.start("--kubelet-sync-interval=10s", f"--kubelet-ca-file={tmp_path / 'ca.crt'}")
    await node.seconds(6)

    assert [pod["name"] for pod in node.status()["podsMetric"]] == ["fresh"]
    assert (await node.ctl("status"))["problems"] == {}
    assert {rbac(entry) for entry in kubelet.requests} == {("get", "nodes/pods")}
    assert [entry.path for entry in server.requests if entry.path.startswith(ALL_PODS)] == []


async def test_a_kubelet_of_an_unknown_ca_is_not_asked(
    node: Node, server: ApiServer, kubelet: Kubelet
) -> None:
    """Pods come from the API server, and health says what to do about it."""
    await node.start("--kubelet-sync-interval=10s")
    await node.seconds(6)

    assert [pod["name"] for pod in node.status()["podsMetric"]] == ["web"]
    assert kubelet.requests == []
    problem = (await node.ctl("status"))["problems"]["source pod list"]
    assert "pods come from the API server" in problem
    assert "--kubelet-ca-file" in problem


async def test_one_write_an_interval_and_no_read_beside_the_watches(
    node: Node, server: ApiServer
) -> None:
    """Every request is about this node alone."""
    await node.start()
    await node.until(lambda: server.objects.all(TOPOLOGIES) and node.status())
    await node.seconds(5)
    begun = len(server.requests)
    await node.seconds(90)

    assert {request.verb for request in server.requests[begun:]} == {"patch"}
    assert 2 <= len(server.requests[begun:]) <= 3  # at an interval of 30 s, or up to 37
    for request in server.requests:
        name = request.json["metadata"]["name"] if request.verb == "create" else request.path
        assert request.query.get("fieldSelector", name).endswith((*BY_NAME, "n1/status"))


async def test_without_koord_manager_the_node_asks_itself_for_reports(
    node: Node, server: ApiServer
) -> None:
    """As the ConfigMap says; who does it shows in the status."""
    server.objects.delete(METRICS, "n1")
    server.objects.delete(SLOS, "n1")
    colocation = {"enable": True, "metricReportIntervalSeconds": 45}
    burst = {"clusterStrategy": {"cpuBurstPercent": 500}}
    server.objects.create(CONFIGS, {
        "metadata": {"name": "slo-controller-config", "namespace": "koordinator-system"},
        "data": {
            "colocation-config": json.dumps(colocation), "cpu-burst-config": json.dumps(burst)
        },
    })  # fmt: skip
    await node.start()
    await node.seconds(6)

    assert node.status()["podsMetric"]
    assert node.states.node_metric_spec().report_interval == 45
    assert node.states.node_slo().cpu_burst.cpu_burst_percent == 500
    state = "kept: no koord-manager is seen"
    status = await node.ctl("status")
    assert status["manager_duties"] == {"NodeMetric": state, "NodeSLO": state}
    assert status["problems"] == {}


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        (["--manager-duties=off"], []),
        (["--manager-duties=on"], ["NodeMetric", "NodeSLO"]),
        (["--nodeslo-file=/tmp/slo.yaml"], ["NodeMetric"]),
        (["--enable-node-metric-report=false"], ["NodeSLO"]),
        (["--node-file=/tmp/node.yaml"], []),
    ],
)
async def test_duties_that_there_are(
    node: Node, server: ApiServer, flags: list[str], kept: list[str]
) -> None:
    """None that are switched off, or for an object that is not used here."""
    await node.start(*flags, "--config-namespace=elsewhere", "--slo-config-name=own")
    await node.seconds(2)

    assert list((await node.ctl("status"))["manager_duties"]) == kept
    configs = [request for request in server.requests if "configmaps" in request.path]
    assert bool(configs) == (flags == ["--manager-duties=on"])
    assert all("/elsewhere/" in request.path for request in configs)


async def test_the_daemon_measures_while_the_server_is_away(node: Node, server: ApiServer) -> None:
    """It starts, measures what it finds, says what it lacks, and catches up."""
    await server.stop()
    await node.start()
    await node.seconds(20)
    status = await node.ctl("status")
    assert (status["mode"], status["health"], status["pods"]) == ("cluster", "unhealthy", 1)
    assert "not known yet: node and pods" in status["problems"]["states"]
    assert "source node" in status["problems"]
    [series] = (await node.ctl("metrics/pod_cpu_usage"))["series"]
    assert series["count"] >= 19

    await server.start()
    await node.seconds(60)
    [pod] = node.status()["podsMetric"]
    assert pod["podUsage"]["resources"]["cpu"] == "250m"
    assert (await node.ctl("status"))["problems"] == {}


async def test_reports_go_on_after_the_server_was_away(node: Node, server: ApiServer) -> None:
    """What is lost is lost; no report is stamped anew, none is older than its interval."""
    await node.start()
    await node.seconds(5)
    await server.stop()
    await node.seconds(200)
    assert "reporter" in (await node.ctl("status"))["problems"]

    await server.start()
    await node.seconds(75)  # the longest pause of a watch
    assert node.status()["updateTime"] >= "2023-11-14T22:16:50Z"
    assert (await node.ctl("status"))["problems"] == {}


async def test_a_crd_that_was_removed_and_is_back(node: Node, server: ApiServer) -> None:
    """The agent makes its NodeMetric again and reports to it within half a minute."""
    await node.start("--manager-duties=on")
    await node.seconds(8)
    assert node.status()
    server.objects.delete(METRICS, "n1")
    server.script(*[refuse(404)] * 999, path=METRICS)
    await node.seconds(90)
    assert (await node.ctl("status"))["health"] == "degraded"

    server.unscript()
    end = node.clock.wall()

    def reported() -> bool:
        metrics = server.objects.all(METRICS)
        return bool(metrics) and "status" in metrics[0]

    await node.until(reported, 30)
    assert datetime.fromisoformat(node.status()["updateTime"]).timestamp() >= int(end)
    await node.seconds(20)
    assert (await node.ctl("status"))["problems"] == {}


async def test_a_node_that_was_renamed(node: Node, server: ApiServer) -> None:
    """Under its old name all that it owned is gone: it measures on, says why, writes nothing."""
    await node.start()
    await node.seconds(8)
    owned = {METRICS: "n1", SLOS: "n1", TOPOLOGIES: "n1", ALL_PODS: "shop/web"}
    for collection, key in {ALL_NODES: "n1", **owned}.items():
        server.objects.delete(collection, key)
    server.objects.create(ALL_NODES, {"metadata": {"name": "n2"}})
    await node.seconds(10)
    writes = len(server.asked("patch")) + len(server.asked("create"))
    await node.seconds(40)

    assert len(server.asked("patch")) + len(server.asked("create")) == writes
    status = await node.ctl("status")
    assert status["health"] == "degraded"
    assert "wanted a Node named n1, found none" in status["problems"]["source node"]
    assert "wanted a NodeMetric object named n1" in status["problems"]["reporter"]
    [series] = (await node.ctl("metrics/node_cpu_usage"))["series"]
    assert series["count"] >= 50


async def test_restarted_agents_wait_for_their_turn(node: Node, server: ApiServer) -> None:
    """The cluster has a fresh status; so a fleet that restarts does not report at once."""
    metric = server.objects.get(METRICS, "n1")
    fresh = {"updateTime": "2023-11-14T22:13:15Z", "nodeMetric": {}}
    server.objects.replace(METRICS, metric | {"status": fresh})
    wait = (node_phase("n1") * 30 - node.clock.wall()) % 30
    await node.start()
    await node.seconds(int(wait) - 1)
    assert node.status() == fresh

    await node.seconds(4)
    assert node.status()["podsMetric"]


async def test_problems_of_a_nodeslo_are_reported_in_the_cluster(
    node: Node, server: ApiServer
) -> None:
    """As an event on the object, beside /healthz; the last good value stays."""
    await node.start()
    await node.seconds(2)
    bad = {"cpuBurstPercent": "much"}
    server.objects.replace(SLOS, {"metadata": {"name": "n1"}, "spec": {"cpuBurstStrategy": bad}})
    await node.seconds(5)

    [event] = server.objects.all(EVENTS.collection())
    assert event["involvedObject"]["kind"] == "NodeSLO"
    assert "cpuBurstPercent: wanted a whole number" in event["message"]
    assert event["source"] == {"component": "koordlet-NodeSLO", "host": "n1"}
    code, text = await node.get("/healthz")
    assert code == 200
    assert "degraded: source nodeslo: nodeSLO.spec.cpuBurstStrategy.cpuBurstPercent: wanted" in text
    assert node.states.node_slo().cpu_burst.cpu_burst_percent == 300


async def test_problems_of_the_config_map_are_reported_in_the_cluster(
    node: Node, server: ApiServer
) -> None:
    """As an event on the Node whose objects it is for, beside /healthz."""
    server.objects.delete(SLOS, "n1")
    config = {"name": "slo-controller-config", "namespace": "koordinator-system"}
    bad = {"clusterStrategy": {"cpuBurstPercent": "much"}}
    data = {"cpu-burst-config": json.dumps(bad)}
    server.objects.create(CONFIGS, {"metadata": config, "data": data})
    await node.start()
    await node.seconds(8)

    said = "slo-controller-config.cpu-burst-config.clusterStrategy.cpuBurstPercent: wanted a whole"
    [event] = server.objects.all(EVENTS.collection())
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "n1",
                                       "uid": "n1"}  # fmt: skip
    assert (event["reason"], event["type"]) == ("ConfigRejected", "Warning")
    assert said in event["message"]
    code, text = await node.get("/healthz")
    assert (code, said in text) == (200, True)
    assert node.states.node_slo().cpu_burst.cpu_burst_percent == 1000


async def test_the_doctor_tries_whether_other_nodes_can_be_written(
    node: Node, server: ApiServer
) -> None:
    """It reports that nothing keeps the agent from it, and has changed nothing by that."""
    await node.start()
    await node.seconds(2)
    server.objects.create(NODE_METRICS.collection(), {"metadata": {"name": "other"}})
    before = server.objects.get(NODE_METRICS.collection(), "other")

    found = {each["name"]: each for each in await node.ctl("doctor")}

    row = found["own node's objects only"]
    assert (row["area"], row["supported"], row["needed_by"]) == ("cluster", False, [])
    assert "NodeMetric of other was allowed" in row["detail"]
    assert "deploy/admission.yaml" in row["fix"]
    assert server.objects.get(NODE_METRICS.collection(), "other") == before
    row = found["schedulers alone give pods CPUs and devices"]
    assert (row["supported"], row["needed_by"]) == (False, [])
    assert "pod-allocations" in row["fix"]
    [asked] = server.asked("create", "/api/v1/namespaces/default/pods")
    assert asked.query == {"dryRun": "All"}


async def test_plugins_share_the_client(node: Node, server: ApiServer) -> None:
    """With the same user, connections and limits."""
    without = "--feature-gates=NodeTopologyReport=false,Probe=true"
    await node.start("--kube-api-qps=0.5", "--kube-api-burst=11", without)
    await node.seconds(1)
    gets = asyncio.gather(*(node.probe.client.get("/api/v1/nodes/n1") for _ in range(20)))
    await node.seconds(10)
    assert 3 <= len(server.asked("get")) <= 8  # what the daemon itself has left of the burst

    while not gets.done():
        await node.seconds(1)
    assert [found["metadata"]["name"] for found in await gets] == ["n1"] * 20
    assert node.settings.flags.inert_set() == []


async def test_strangers_need_the_cluster_s_word(
    node: Node, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To see more than metrics and health; whoever is on the node does not."""
    await node.start("--auth-token-audiences=koordlet")
    await node.seconds(4)
    assert (await node.get("/nodemetric"))[0] == 200

    monkeypatch.setattr("koord.component.http.guard.peer", lambda _: "10.0.0.9")
    assert (await node.get("/nodemetric"))[0] == 401
    assert {(await node.get(path))[0] for path in ("/metrics", "/livez", "/readyz")} == {200}

    user = {"authenticated": True, "audiences": ["koordlet"], "user": {"username": "anna"}}
    verdicts = {"tokenreviews": user, "subjectaccessreviews": {"allowed": True}}
    for kind, status in verdicts.items():
        body = json.dumps({"status": status}).encode()
        server.script(answer(body, 201), method="POST", path=f"/apis/{REVIEWS[kind]}/v1/{kind}")
    code, text = await node.get("/nodemetric", Authorization="Bearer annas")
    assert (code, json.loads(text)["status"]) == (200, node.status())

    code, text = await node.get("/nodemetric", Authorization="Bearer bens")  # nothing is scripted
    assert code == 503
    assert "tokens cannot be checked" in (await node.ctl("status"))["problems"]["tokens"]


class TestTopology:
    """The report of this node's CPUs to the cluster."""

    def annotation(self, server: ApiServer, key: str) -> Any:
        """What an annotation says; None while there is no object."""
        for found in server.objects.all(TOPOLOGIES):
            return json.loads(found["metadata"]["annotations"][key])
        return None

    async def test_it_is_reported_once(self, node: Node, server: ApiServer) -> None:
        """And again when a pod has got CPUs of its own."""
        await node.start()
        await node.until(lambda: server.objects.all(TOPOLOGIES))
        await node.seconds(6)
        [found] = server.objects.all(TOPOLOGIES)
        assert found["topologyPolicies"] == ["None"]
        [zone] = found["zones"]
        assert [(each["name"], each["allocatable"]) for each in zone["resources"]] == [
            ("cpu", "4"),
            ("hugepages-1Gi", "0"),
            ("hugepages-2Mi", "0"),
            ("memory", "16Gi"),
        ]
        assert len(server.asked("create", TOPOLOGIES)) == 1

        pod = server.objects.get(ALL_PODS, "shop/web")
        status = {"scheduling.koordinator.sh/resource-status": '{"cpuset":"1"}'}
        pod["metadata"]["annotations"] = status
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
        server.objects.replace(ALL_PODS, pod)
        pools = [{"socket": 0, "node": 0, "cpuset": "0,2-3"}]
        await node.until(
            lambda: self.annotation(server, "node.koordinator.sh/cpu-shared-pools") == pools
        )
        await node.seconds(6)
        assert len(server.asked("patch", TOPOLOGIES)) == 1

    async def test_the_gate_may_be_switched(self, node: Node, server: ApiServer) -> None:
        """Off, no request is sent to the cluster; this daemon knows its topology all the same."""
        await node.start("--feature-gates=NodeTopologyReport=false")
        await node.until(lambda: node.states.node_topology())
        await node.seconds(6)
        assert [each for each in server.requests if TOPOLOGIES in each.path] == []
        assert node.states.node_topology().ls_pools[0].cpus == {0, 1, 2, 3}

        node.settings.gates.replace_map({})
        await node.until(lambda: server.objects.all(TOPOLOGIES))

        node.settings.gates.replace_map({"NodeTopologyReport": False})
        await node.seconds(2)
        asked = len(server.asked("watch", TOPOLOGIES))
        server.objects.delete(TOPOLOGIES, "n1")
        await node.seconds(8)
        assert server.objects.all(TOPOLOGIES) == []
        assert len(server.asked("watch", TOPOLOGIES)) == asked

        node.settings.gates.replace_map({})
        await node.until(lambda: server.objects.all(TOPOLOGIES))
        await node.seconds(2)
        assert (await node.ctl("status"))["problems"] == {}

    async def test_huge_pages_are_reported_if_they_are_wanted(
        self, node: Node, server: ApiServer
    ) -> None:
        """By their gate."""
        pages = "sys/bus/node/devices/node0/hugepages/hugepages-1048576kB/nr_hugepages"
        node.host.write(pages, "2\n")
        await node.start("--feature-gates=HugePageReport=true")
        await node.until(lambda: server.objects.all(TOPOLOGIES))
        [zone] = server.objects.all(TOPOLOGIES)[0]["zones"]
        amounts = {each["name"]: each["allocatable"] for each in zone["resources"]}
        assert (amounts["hugepages-1Gi"], amounts["memory"]) == ("2Gi", "14Gi")

    async def test_what_the_kubelet_says_counts(
        self, node: Node, server: ApiServer, tmp_path: Path
    ) -> None:
        """Its policy, and the CPUs that it has given to a pod; nothing is reported before."""
        kubelet = Kubelet(config={"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"})
        await kubelet.start()
        kubelet.script(*[refuse(403, "Forbidden")] * 3, path="/configz")
        found = server.objects.get(ALL_NODES, "n1")
        server.objects.replace(ALL_NODES, found | {"status": found["status"] | kubelet.status})
        await node.start(
            "--disable-query-kubelet-config=false",
            "--kubelet-insecure-tls",
            f"--kubelet-read-only-port={kubelet.port}",
        )
        await node.until(lambda: kubelet.requests)
        await node.seconds(2)
        assert server.objects.all(TOPOLOGIES) == []
        problem = (await node.ctl("status"))["problems"]["source node topology"]
        assert "configz: refused with 403" in problem

        node.host.write(
            "kubelet/cpu_manager_state", '{"policyName":"static","entries":{"p":{"c":"3"}}}'
        )
        policy = {"policy": "static", "reservedCPUs": "0"}
        key = "kubelet.koordinator.sh/cpu-manager-policy"
        await node.until(lambda: self.annotation(server, key) == policy)
        pools = self.annotation(server, "node.koordinator.sh/cpu-shared-pools")
        assert pools == [{"socket": 0, "node": 0, "cpuset": "0-2"}]
        assert self.annotation(server, "node.koordinator.sh/pod-cpu-allocs") == [
            {"uid": "p", "cpuset": "3", "managedByKubelet": True}
        ]
        await node.seconds(2)
        assert (await node.ctl("status"))["problems"] == {}
        await kubelet.stop()


async def test_a_pod_that_gives_itself_cpus_has_none(node: Node, server: ApiServer) -> None:
    """The pool stays whole; a log line, an event on the pod, a metric, and explain say why."""
    [pod] = server.objects.all(ALL_PODS)
    status = {"scheduling.koordinator.sh/resource-status": '{"cpuset":"0-2"}'}
    pod["metadata"] |= {"annotations": status, "labels": {"koordinator.sh/qosClass": "LSR"}}
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "100m"}}
    server.objects.replace(ALL_PODS, pod)
    await node.start()
    await node.until(lambda: server.objects.all(EVENTS.collection()))

    [event] = server.objects.all(EVENTS.collection())
    assert (event["reason"], event["type"]) == ("AllocationRefused", "Warning")
    assert "resource-status: it gives 3 CPUs of its own (0-2)" in event["message"]
    await node.until(lambda: node.states.node_topology())
    assert [pool.cpus for pool in node.states.node_topology().ls_pools] == [{0, 1, 2, 3}]
    [refused] = (await node.ctl("explain?pod=shop/web"))["refusedAllocations"]
    assert refused["reason"].endswith("its containers request 100 thousandths of a CPU")
    await node.seconds(30)
    assert len(server.objects.all(EVENTS.collection())) == 1
    _, metrics = await node.get("/internal-metrics")
    assert 'koordlet_allocations_refused_total{annotation="resource-status"} 1.0' in metrics


async def test_memory_eviction(node: Node, server: ApiServer) -> None:
    """From the NodeSLO and a full host to the pod's end, with event, metrics and explanation."""
    strategy = {"enable": True, "memoryEvictThresholdPercent": 80}
    spec = {"resourceUsedThresholdWithBE": strategy}
    server.objects.replace(SLOS, server.objects.get(SLOS, "n1") | {"spec": spec})
    [pod] = server.objects.all(ALL_PODS)
    pod["metadata"]["labels"] = {"koordinator.sh/qosClass": "BE"}
    server.objects.replace(ALL_PODS, pod)
    node.shipped["MemoryEvict"] = MemoryEvict()
    node.host.use_memory(14 * 2**30)
    node.host.set_pressure("memory", 30.0)
    await node.start("--feature-gates=BEMemoryEvict=true,NodeTopologyReport=false")
    await node.until(lambda: server.asked("create", "/api/v1/namespaces/shop/pods/web/eviction"))
    await node.until(lambda: not server.objects.all(ALL_PODS))
    node.end_pod()
    node.host.use_memory(11 * 2**30)
    await node.until(lambda: server.objects.all(EVENTS.collection()))

    [event] = server.objects.all(EVENTS.collection())
    assert (event["reason"], event["involvedObject"]["name"]) == ("evictPodSuccess", "web")
    assert "koordlet feature BEMemoryEvict, kill pod: web, node memory 87 %" in event["message"]
    for _ in range(60):
        [decision] = (await node.ctl("explain?pod=shop/web"))["decisions"]
        if decision["freed"]:
            break
        await node.seconds(1)
    assert decision["outcome"] == "evicted"
    assert decision["inputs"]["used_percent"] == 87
    assert [each.partition(" ")[0] for each in decision["candidates"]] == ["shop/web"]
    assert (decision["freed"]["end"], decision["freed"]["freed_memory"]) == ("gone", 3 * 2**30)
    _, text = await node.get("/metrics")
    assert 'koordlet_pod_eviction{node="n1",reason="evicted"} 1.0' in text
    assert 'outcome="evicted",plugin="MemoryEvict",reason="BEMemoryEvict"} 1.0' in text
    assert 'koordlet_plugin_memory_evict_victims_total{end="gone"} 1.0' in text


EVICTION = "/api/v1/namespaces/shop/pods/web/eviction"


@pytest.fixture
def process(node: Node) -> Iterator["subprocess.Popen[bytes]"]:
    """A real process in the pod's cgroup."""
    process = subprocess.Popen(["sleep", "300"])
    node.pod.containers["c1"].set_processes(process.pid)
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (refuse(400, "BadRequest"), EvictionOutcome.FAILED),
        (refuse(401, "Unauthorized"), EvictionOutcome.FAILED),
        (refuse(403, "Forbidden"), EvictionOutcome.NOT_ALLOWED),
        (refuse(404, "NotFound"), EvictionOutcome.GONE),
        (answer(b"404 page not found", 404), EvictionOutcome.FAILED),
        (refuse(409, "Conflict"), EvictionOutcome.FAILED),
        (refuse(422, "Invalid"), EvictionOutcome.FAILED),
        (refuse(429, "TooManyRequests"), EvictionOutcome.RATE_LIMITED),
        (refuse(500, "InternalError"), EvictionOutcome.FAILED),
        (refuse(503, "ServiceUnavailable"), EvictionOutcome.FAILED),
        (answer(b"<html>Welcome</html>", 200), EvictionOutcome.FAILED),
        (drop, EvictionOutcome.FAILED),
        (hang, EvictionOutcome.FAILED),
    ],
    ids=lambda value: "" if callable(value) else str(value),
)
async def test_only_a_yes_of_the_api_server_lets_a_pod_be_killed(
    node: Node,
    server: ApiServer,
    process: "subprocess.Popen[bytes]",
    fault: Any,
    outcome: EvictionOutcome,
) -> None:
    """An API server that refuses, fails or is silent is no way around disruption budgets."""
    server.script(fault, fault, fault, method="POST", path=EVICTION)
    await node.start("--evict-fallback=kill")
    await node.seconds(2)
    pod = node.states.pod(UID)
    eviction = asyncio.ensure_future(node.probe.evict(pod, reason="memory 92 %"))
    await node.until(eviction.done)
    insisted = await node.probe.kill_overdue(pod, reason="memory 92 %")

    assert (await eviction).outcome is outcome
    assert insisted.outcome is EvictionOutcome.IGNORED
    assert process.poll() is None


@pytest.mark.parametrize(
    ("flags", "outcome"),
    [
        ([], EvictionOutcome.IGNORED),
        (["--evict-fallback=kill"], EvictionOutcome.KILLED),
        (["--evict-fallback=kill", "--only-evict-by-api=true"], EvictionOutcome.IGNORED),
    ],
)
async def test_who_runs_on_after_a_yes_is_killed_only_where_that_is_asked_for(
    node: Node,
    server: ApiServer,
    process: "subprocess.Popen[bytes]",
    flags: list[str],
    outcome: EvictionOutcome,
) -> None:
    """After the grace period; Koordinator's flag forbids it in any case."""
    await node.start(*flags)
    await node.seconds(2)
    pod = node.states.pod(UID)
    eviction = asyncio.ensure_future(node.probe.evict(pod, reason="memory 92 %", grace_seconds=3))
    await node.until(eviction.done)
    assert (await eviction).outcome is EvictionOutcome.EVICTED
    await node.seconds(3)
    assert process.poll() is None

    insisted = asyncio.ensure_future(node.probe.kill_overdue(pod, reason="memory 92 %"))
    if outcome is EvictionOutcome.KILLED:
        await node.clock.until(lambda: process.poll() is not None)
        node.pod.containers["c1"].set_processes()
    await node.until(insisted.done)

    assert (await insisted).outcome is outcome
    assert (process.poll() is None) == (outcome is EvictionOutcome.IGNORED)


async def test_a_plugin_evicts_through_the_api_server(node: Node, server: ApiServer) -> None:
    """Told on the pod, counted, explained, audited; a restart remembers the budget."""
    log_dir = node.run_dir.parent / "audit"
    await node.start(
        "--evict-budget-per-hour=1",
        "--feature-gates=AuditEvents=true,AuditEventsHTTPHandler=true",
        f"--audit-log-dir={log_dir}",
    )
    await node.seconds(2)
    pod = node.states.pod(UID)
    eviction = asyncio.ensure_future(node.probe.evict(pod, reason="memory 92 %", grace_seconds=5))
    await node.seconds(2)

    assert (await eviction).outcome is EvictionOutcome.EVICTED
    assert server.objects.all(ALL_PODS) == []
    [request] = server.asked("create", "/api/v1/namespaces/shop/pods/web/eviction")
    assert request.json["deleteOptions"] == {
        "preconditions": {"uid": UID},
        "gracePeriodSeconds": 5,
    }
    [event] = server.objects.all(EVENTS.collection())
    assert event["reason"] == "evictPodSuccess"
    assert event["message"].endswith("feature Probe, kill pod: web, memory 92 %")
    assert event["source"] == {"component": "koordlet-qosManager", "host": "n1"}
    found = await node.ctl("explain?pod=shop/web")
    assert found["evictionBudget"] == {"perHour": 1, "used": 1}
    assert [each["outcome"] for each in found["decisions"]] == ["evicted"]
    status, line = await node.get("/events")
    assert (status, json.loads(line)["reason"], json.loads(line)["name"]) == (200, "evicted", "web")
    assert [event["namespace"] for event in (await node.ctl("audit"))["events"]] == ["shop"]

    await node.stop()
    again = Node(node.run_dir.parent, server, node.built)
    again.clock = node.clock
    await again.start("--evict-budget-per-hour=1")
    await again.seconds(2)
    other = await again.probe.evict(make_pod("other"), reason="memory 92 %")
    problems = (await again.ctl("status"))["problems"]
    await again.stop()
    assert other.outcome is EvictionOutcome.OVER_BUDGET
    assert "1 pods were evicted in the past hour" in problems["evictions"]


async def test_a_plugin_can_end_pods_in_no_other_way(node: Node, server: ApiServer) -> None:
    """Its client refuses what would leave no record."""
    await node.start("--feature-gates=Probe=true")
    await node.seconds(1)
    with pytest.raises(NotAllowed, match=r"use self\.evict\(\)"):
        await node.probe.client.delete("/api/v1/namespaces/shop/pods/web")


async def test_dry_run_is_switched_while_it_runs(
    node: Node, server: ApiServer, tmp_path: Path
) -> None:
    """By the config file; a plugin that is not installed changes nothing and is named."""
    config = tmp_path / "koordlet.yaml"
    config.write_text("dry-run: Probe\n")
    await node.start(f"--config={config}")
    await node.seconds(2)
    pod = node.states.pod(UID)
    assert (await node.probe.evict(pod, reason="r")).outcome is EvictionOutcome.WOULD_EVICT
    assert (await node.ctl("explain"))["dryRun"] == ["Probe"]

    config.write_text("dry-run: [Prob]\n")
    await node.seconds(3)
    assert "the nearest is 'Probe'" in (await node.ctl("status"))["problems"]["config"]
    assert (await node.ctl("explain"))["dryRun"] == ["Probe"]

    config.write_text("dry-run: false\nevict-budget-per-hour: 7\n")
    await node.seconds(3)
    assert (await node.ctl("explain"))["evictionBudget"]["perHour"] == 7
    eviction = asyncio.ensure_future(node.probe.evict(pod, reason="r"))
    await node.seconds(1)
    assert (await eviction).outcome is EvictionOutcome.EVICTED


async def test_a_file_for_reports_is_written_in_a_cluster_too(
    node: Node, server: ApiServer, tmp_path: Path
) -> None:
    """If it is asked for."""
    path = tmp_path / "report.json"
    await node.start(f"--node-metric-file={path}")
    await node.seconds(4)

    assert json.loads(path.read_text())["status"] == node.status()


async def test_a_cluster_that_cannot_be_found_stops_the_start(tmp_path: Path, node: Node) -> None:
    """With one sentence that says what to do."""
    exposition = Exposition(FAMILIES)
    settings = load_settings(
        ["--standalone=false", f"--run-dir={tmp_path / 'run'}",
         f"--proc-root-dir={node.host.paths.proc}",
         f"--cgroup-root-dir={node.host.paths.cgroup}"],
        {},
        clock=node.clock,
        metrics=exposition.internal,
        discover=lambda _: [],
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"--standalone=false: wanted an API server.*kubeconfig"):
        await run.run_daemon(settings, exposition, node.clock, stop=Stop(node.clock))


def test_standalone_imports_nothing_of_the_cluster() -> None:
    """Its memory is for what it does."""
    code = (
        "import sys, koordlet.daemon.run, koordlet.cli.koordlet\n"
        "print([name for name in sys.modules if name.startswith('koord.kube')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout == "[]\n"


def test_devices_are_imported_where_their_gate_is_on() -> None:
    """A node without them pays nothing for their code."""
    code = (
        "import sys, koordlet.daemon.run, koordlet.cli.koordlet, koordlet.daemon.cluster\n"
        "ours = [name for name in sys.modules if name.startswith('koordlet')]\n"
        "print(*(name for name in ours if 'nvml' in name or 'device' in name or 'podres' in name))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert set(done.stdout.split()) <= {"koordlet.host.cgroups.keyed_files"}


async def test_devices_of_files_are_reported(node: Node, server: ApiServer) -> None:
    """Made, changed and taken away as the files say; switching the gate off leaves them."""
    files = node.run_dir / "xpu-device-infos"
    files.mkdir(parents=True)
    xpu = {"vendor": "huawei", "model": "910B", "uuid": "x1", "minor": 0}
    (files / "a.json").write_text(json.dumps([xpu]))
    await node.start("--feature-gates=Accelerators=true")
    await node.seconds(10)
    found = server.objects.get(DEVICES.collection(), "n1")
    assert found["metadata"]["labels"]["node.koordinator.sh/gpu-vendor"] == "huawei"
    assert [each["id"] for each in found["spec"]["devices"]] == ["x1"]
    writes = [entry.verb for entry in server.requests if "devices" in entry.path]
    assert writes.count("create") == 1

    (files / "a.json").write_text(json.dumps([xpu | {"status": {"healthy": False}}]))
    await node.seconds(10)
    [device] = server.objects.get(DEVICES.collection(), "n1")["spec"]["devices"]
    assert device["health"] is False
    (files / "a.json").write_text("[{")
    await node.seconds(10)
    assert server.objects.get(DEVICES.collection(), "n1")["spec"]["devices"] == [device]
    problems = (await node.ctl("status"))["problems"]
    assert any("wanted JSON" in reason for reason in problems.values())
    (files / "a.json").unlink()
    await node.seconds(10)
    assert server.objects.get(DEVICES.collection(), "n1")["spec"]["devices"] == []
    assert "NVML" not in str((await node.ctl("status"))["problems"])


async def test_another_agent_on_the_node_is_left_to_do_its_work(
    node: Node, server: ApiServer
) -> None:
    """Ours measures and shows what it would report; when the other is gone, it reports."""
    files = {"comm": "koordlet\n", "cmdline": "/koordlet\0--v=4\0"}
    files["status"] = "Name:\tkoordlet\n" + "\t".join(["Uid:", *[str(os.geteuid())] * 4])
    files["status"] += "\nNSpid:\t77\n"
    for name, text in files.items():
        node.host.write(f"proc/77/{name}", text)
    await node.start()
    await node.seconds(5)
    status = await node.ctl("status")
    assert status["observe_only"] == "Koordinator's koordlet runs here (process 77)"
    assert "stop it, or have this one act" in status["problems"]["other agent"]
    eviction = await node.probe.evict(make_pod("other"), reason="r")
    assert eviction.outcome is EvictionOutcome.WOULD_EVICT
    assert json.loads((await node.get("/nodemetric"))[1])["status"]["podsMetric"]
    assert server.objects.all(TOPOLOGIES) == []
    await node.seconds(1)
    assert server.objects.all(EVENTS.collection()) == []
    assert "koordlet_observe_only 1.0" in (await node.get("/metrics"))[1]
    assert server.asked("patch", METRICS) == []

    shutil.rmtree(node.host.paths.proc / "77")
    await node.seconds(85)  # to be sure that it is gone, and until the next report is due
    assert node.status()["podsMetric"]
    assert (await node.ctl("status"))["problems"] == {}
    [request, *_] = server.asked("patch", METRICS)
    assert request.query["fieldManager"] == "koordlet-reporter"


async def test_force_reports_beside_another_agent(node: Node, server: ApiServer) -> None:
    """And reports it, but not as a failure."""
    server.token = jwt({"kubernetes.io": {"pod": {"name": "koordlet-1", "uid": "own"}}})
    own, other = agent_pod("own", "ours/koordlet:2"), agent_pod("other", "theirs/koordlet:1")
    server.objects.create(ALL_PODS, own)
    server.objects.create(ALL_PODS, other)
    await node.start("--force")
    await node.seconds(4)

    status = await node.ctl("status")
    assert (status["observe_only"], status["health"]) == ("", "ok")
    found = "koordinator-system/other runs another koordlet (theirs/koordlet:1)"
    assert found in status["problems"]["other agent"]
    assert node.status()["podsMetric"]


@pytest.mark.parametrize(
    ("spec", "flags", "observes"),
    [
        ({}, [], False),
        ({"hostPID": True}, [], True),
        ({}, ["--other-agent-namespaces=shop"], True),
    ],
)
async def test_a_tenant_cannot_switch_the_agent_off(
    node: Node, server: ApiServer, spec: dict[str, Any], flags: list[str], observes: bool
) -> None:
    """By the name and labels of a pod in a namespace of its own."""
    server.token = jwt({"kubernetes.io": {"pod": {"name": "koordlet-1", "uid": "own"}}})
    server.objects.create(ALL_PODS, agent_pod("own", "ours/koordlet:2"))
    tenants = agent_pod("other", "theirs/koordlet:1", namespace="shop", **spec)
    server.objects.create(ALL_PODS, tenants)
    await node.start(*flags)
    await node.seconds(4)

    assert bool((await node.ctl("status"))["observe_only"]) is observes


async def test_whoever_reports_in_our_place_is_left_to_it(node: Node, server: ApiServer) -> None:
    """Also an agent that cannot be seen on the node."""
    await node.start()
    for minute in range(3):
        metric = server.objects.get(METRICS, "n1")
        wrote = {"manager": "koordlet", "subresource": "status", "time": f"{minute}"}
        server.objects.replace(
            METRICS, metric | {"metadata": metric["metadata"] | {"managedFields": [wrote]}}
        )
        await node.seconds(8)
    await node.seconds(10)
    writes = len(server.asked("patch", METRICS))
    assert "koordlet writes the status" in (await node.ctl("status"))["observe_only"]

    await node.seconds(35)
    assert len(server.asked("patch", METRICS)) == writes
