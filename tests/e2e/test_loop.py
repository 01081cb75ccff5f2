"""The whole loop on one machine: a busy pod on real cgroups, NodeMetric, plan, job, eviction; and a
pod in its place, which the scheduler binds to the other node.

What is made up: the second node and its report, the ReplicaSet's controller, and the kubelet, which
ends the pod's process. tests/cluster has all of these.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from koord.api import podmigrationjob
from koord.api.quantity import Quantity
from koord.kube.client import NODE_METRICS, PODS, ApiClient, Resource
from tests.support.kube.daemon_flags import kubeconfig
from tests.support.node.cgroup_trees import Tree, tree_of, unusable
from tests.support.processes.control_plane import events, running_descheduler, running_scheduler
from tests.support.programs import REPOSITORY
from tests.support.real_apiserver.accounts import SYSTEM, Accounts
from tests.support.real_apiserver.cluster_objects import READY, SHOP, ClusterObjects
from tests.support.real_apiserver.control_plane import ControlPlane
from tests.support.real_apiserver.recorder import Recorder

JOBS = Resource(podmigrationjob.API_VERSION, podmigrationjob.PLURAL)
SCRIPT = REPOSITORY / "docs/examples/busy-pod.sh"
TIMEOUT = 120.0  # real seconds; a report comes every 30
CORES = 256  # of this machine, so it is said: all of it is a few percent
TWICE = 2 * (os.cpu_count() or 1)  # the same: all of it is half
ELSEWHERE = 10  # times as many has the other node, where the pod fits whatever the threshold is
POLICY = {"aggregateDurationSeconds": 60, "reportIntervalSeconds": 30}


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    """A cgroup root of our own: what else runs on this machine is no pod."""
    if reason := unusable():
        pytest.skip(reason)
    with tree_of(tmp_path / "cgroup") as tree:
        yield tree


@pytest.fixture
def busy_pod(tree: Tree, busy: str) -> Iterator["subprocess.Popen[str]"]:
    """The pod of the documentation, which works."""
    environ = {**os.environ, "CGROUP_ROOT": str(tree.paths.cgroup), "POD_UID": busy}
    with subprocess.Popen([SCRIPT], stdout=subprocess.PIPE, text=True, env=environ) as script:
        assert script.stdout is not None
        assert script.stdout.readline().startswith("process")
        yield script
        if script.poll() is None:
            script.send_signal(signal.SIGINT)


@pytest.fixture
async def nodes(client: ApiClient, node_name: str) -> AsyncIterator[list[str]]:
    """This machine, and one that has nothing to do."""
    names = [f"{node_name}-here", f"{node_name}-there"]
    for name in names:
        body = {"apiVersion": NODE_METRICS.api_version, "kind": "NodeMetric",
                "metadata": {"name": name}, "spec": {"metricCollectPolicy": POLICY}}  # fmt: skip
        found = await client.create(NODE_METRICS.collection(), body)
    nothing = {"resources": {"cpu": "10m", "memory": "100Mi"}}
    status = {
        "updateTime": datetime.fromtimestamp(time.time(), UTC).isoformat(),
        "nodeMetric": {"nodeUsage": nothing, "systemUsage": nothing},
    }
    path = NODE_METRICS.object(names[1], subresource="status")
    await client.replace_status(path, found["metadata"]["uid"], status)
    yield names
    for name in names:
        await client.delete(NODE_METRICS.object(name))


@pytest.fixture
def cores() -> int:
    """Of this machine, so it is said."""
    return CORES


@dataclass
class Workload:
    """A ReplicaSet and its pods, which request nothing."""

    objects: ClusterObjects
    owner: dict[str, Any]

    async def add_pod(self, name: str, node: str) -> str:
        """Return the uid of a pod that runs on a node."""
        spec = {"nodeName": node, "containers": [{"name": "busy", "image": "busy"}]}
        statuses = [{"name": "busy", "containerID": "containerd://busy"}]
        status = {**READY, "phase": "Running", "containerStatuses": statuses}
        made = await self.objects.add_pod(name, spec, status, **self._metadata())
        uid: str = made["metadata"]["uid"]
        return uid

    async def add_waiting(self, name: str) -> None:
        """What the ReplicaSet's controller makes in the place of a pod that was evicted."""
        await self.objects.add_pod(name, {"schedulerName": "koord-scheduler"}, **self._metadata())

    def _metadata(self) -> dict[str, Any]:
        return {"labels": {"app": "web"}, "ownerReferences": [self.owner]}


@pytest.fixture
async def workload(
    objects: ClusterObjects, nodes: list[str], cores: int, own_plane: ControlPlane
) -> Workload:
    """One pod on the other node."""
    for name, count in zip(nodes, (cores, ELSEWHERE * cores), strict=True):
        room = {"cpu": str(count), "memory": "256Gi", "pods": "110"}
        await objects.add_node(name, {**READY, "capacity": room})
    workload = Workload(objects, await objects.add_replica_set("web", 2))
    await workload.add_pod("second", nodes[1])
    return workload


@pytest.fixture
async def busy(workload: Workload, nodes: list[str]) -> str:
    """The uid of the pod on our node, which is to be busy."""
    return await workload.add_pod("busy", nodes[0])


@dataclass
class Tokens:
    """Those of the daemons, with their roles."""

    agent: str
    descheduler: str
    scheduler: str


@pytest.fixture
async def tokens(accounts: Accounts, workload: Workload, nodes: list[str]) -> Tokens:
    return Tokens(
        await accounts.agent(nodes[0], "pods-from-api-server"),
        await accounts.descheduler(),
        await accounts.scheduler(),
    )


def between(status: dict[str, Any], cores: int) -> float:
    """The threshold, in percent, that the node is below only without half of what the pod uses.

    So the node is hot by its pod, whatever else this machine does.
    """
    used = {
        "node": status["nodeMetric"]["nodeUsage"],
        "pod": status["podsMetric"][0]["podUsage"],
    }
    milli = {name: Quantity.parse(usage["resources"]["cpu"]).milli for name, usage in used.items()}
    return (milli["node"] - milli["pod"] / 2) / (cores * 1000) * 100


def configuration(high: float) -> dict[str, Any]:
    version = "descheduler/v1alpha2"
    load = {"apiVersion": version, "kind": "LowNodeLoadArgs",
            "highThresholds": {"cpu": high}, "lowThresholds": {"cpu": high / 2},
            "anomalyCondition": {"consecutiveAbnormalities": 1}}  # fmt: skip
    migration = {"apiVersion": version, "kind": "MigrationControllerArgs",
                 "defaultJobMode": "EvictDirectly", "evictionPolicy": "Eviction"}  # fmt: skip
    return {
        "apiVersion": version,
        "kind": "DeschedulerConfiguration",
        "deschedulingInterval": "1s",
        "leaderElection": {"resourceNamespace": SYSTEM},
        "healthzBindAddress": "127.0.0.1:0",
        "metricsBindAddress": "127.0.0.1:0",
        "profiles": [
            {
                "name": "loop",
                "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
                "pluginConfig": [
                    {"name": "LowNodeLoad", "args": load},
                    {"name": "MigrationController", "args": migration},
                ],
            }
        ],
    }


@asynccontextmanager
async def running_koordlet(
    directory: Path, tree: Tree, server: str, node: str, token: str
) -> AsyncIterator[None]:
    """The agent of this machine; it measures, and changes nothing."""
    config, log = directory / "koordlet.kubeconfig", directory / "koordlet.log"
    config.write_text(kubeconfig(server, token))
    with log.open("ab") as output:
        agent = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "koordlet.cli.koordlet",
            f"--kubeconfig={config}", f"--node-name={node}", f"--run-dir={directory / 'run'}",
            f"--cgroup-root-dir={tree.paths.cgroup}", "--addr=127.0.0.1:0", "--dry-run=true",
            "--manager-duties=off", "--kubelet-sync-interval=0",
            "--disable-query-kubelet-config", "--feature-gates=NodeTopologyReport=false",
            stderr=output, env={**os.environ, "agent_mode": "hostMode"},
        )  # fmt: skip
    try:
        yield
    finally:
        agent.terminate()
        ended = await asyncio.wait_for(agent.wait(), 60)
        sys.stderr.write(log.read_text())
    assert ended == 0


async def reported(client: ApiClient, node: str, after: str = "") -> dict[str, Any]:
    """The status of a NodeMetric that is newer than that time."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            found = await client.get(NODE_METRICS.object(node))
            status: dict[str, Any] = found.get("status") or {}
            if status.get("updateTime", "") > after:
                return status
            await asyncio.sleep(0.2)


async def test_a_busy_pod_is_measured_reported_planned_and_evicted(
    tmp_path: Path, tree: Tree, busy_pod: "subprocess.Popen[str]", recorder: Recorder,
    tokens: Tokens, workload: Workload, client: ApiClient, nodes: list[str], cores: int,
) -> None:  # fmt: skip
    """From the kernel's counters to the API server's eviction; the next report is without it."""
    async with running_koordlet(tmp_path, tree, recorder.url, nodes[0], tokens.agent):
        first = await reported(client, nodes[0])
        [measured] = first["podsMetric"]
        assert (measured["namespace"], measured["name"]) == ("shop", "busy")

        config = configuration(between(first, cores))
        async with running_descheduler(tmp_path, recorder.url, config, token=tokens.descheduler):
            async with asyncio.timeout(TIMEOUT):
                while not _evicted(recorder):  # noqa: ASYNC110 - the process has no event to await
                    await asyncio.sleep(0.1)
            busy_pod.send_signal(signal.SIGINT)  # the kubelet's part
            await asyncio.to_thread(busy_pod.wait, 60)
            last = first["updateTime"]
            while (second := await reported(client, nodes[0], last)).get("podsMetric"):
                last = second["updateTime"]

        assert _evicted(recorder) == ["busy"]
        [job] = [
            podmigrationjob.read_job(item) for item in (await client.list(JOBS.collection())).items
        ]
        assert (job.pod.key, job.phase) == ("shop/busy", "Succeeded")
        [ended] = [each for each in events(tmp_path, "cycle.ended") if each["evictions"]]
        assert ended["evictions"] == {"loop": {"LowNodeLoad": 1}}


@pytest.mark.parametrize("cores", [TWICE])
@pytest.mark.skipif(TWICE > 32, reason="one busy pod is not much on so many cores")
async def test_the_pod_in_its_place_goes_to_the_cool_node(
    tmp_path: Path, tree: Tree, busy_pod: "subprocess.Popen[str]", recorder: Recorder,
    tokens: Tokens, workload: Workload, client: ApiClient, nodes: list[str], cores: int,
) -> None:  # fmt: skip
    """By the report of the node that is hot still: nothing else keeps the pod from it."""
    async with running_koordlet(tmp_path, tree, recorder.url, nodes[0], tokens.agent):
        threshold = between(await reported(client, nodes[0]), cores)
        scheduler = running_scheduler(
            tmp_path, recorder.url, load_aware(int(threshold)), token=tokens.scheduler
        )
        descheduler = running_descheduler(
            tmp_path, recorder.url, configuration(threshold), token=tokens.descheduler
        )
        async with asyncio.timeout(2 * TIMEOUT), scheduler, descheduler:
            while not _evicted(recorder):  # noqa: ASYNC110 - the process has no event to await
                await asyncio.sleep(0.1)
            await workload.add_waiting("busy-again")
            while not (node := await _node_of(client, "busy-again")):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    assert node == nodes[1]
    assert events(tmp_path, "scheduler.ready", "scheduler")


def load_aware(threshold: int) -> dict[str, Any]:
    """The default plugins, and LoadAwareScheduling with this threshold in percent of CPU."""
    version = "kubescheduler.config.k8s.io/v1"
    args = {"apiVersion": version, "kind": "LoadAwareSchedulingArgs",
            "usageThresholds": {"cpu": max(threshold, 1)}}  # fmt: skip
    profile = {
        "schedulerName": "koord-scheduler",
        "plugins": {"multiPoint": {"enabled": [{"name": "LoadAwareScheduling"}]}},
        "pluginConfig": [{"name": "LoadAwareScheduling", "args": args}],
    }
    return {
        "apiVersion": version,
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"resourceNamespace": SYSTEM},
        "profiles": [profile],
    }


async def _node_of(client: ApiClient, name: str) -> str:
    """The node that the API server has a pod on; "": none."""
    found = await client.get(PODS.object(name, namespace=SHOP))
    return str(found["spec"].get("nodeName") or "")


def _evicted(recorder: Recorder) -> list[str]:
    asked = [each.path for each in recorder.asked("create") if each.path.endswith("/eviction")]
    return [path.split("/")[-2] for path in asked]
