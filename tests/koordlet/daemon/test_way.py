"""The way of a NodeSLO from the watch event to a cfs quota: the files in which functions run."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from koord.api.qos import KubeQoS
from koord.component.http.exposition import Exposition
from koord.component.plugins.discovery import discover
from koord.kube.client import NODE_METRICS, NODE_SLOS, NODES, PODS
from koord.util.stop import Stop
from koordlet.daemon.run import run_daemon
from koordlet.daemon.settings import load_settings
from koordlet.features import GATES
from koordlet.plugin.testing import FakeHost, SimulatedClock
from koordlet.server.app import FAMILIES
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.daemon_flags import host_flags, kubeconfig
from tests.support.kube.inline_executor import InlineExecutor
from tests.support.kube.loopback_network import network_is_quiet
from tests.support.kube.object_store import Object
from tests.support.kube.own_metrics import passes_of
from tests.support.ways import NODE_SLO, Way, threads_recorded, walk

GATE = "BECPUSuppress"
OFF = ",".join(f"{gate}=false" for gate, spec in GATES.items() if spec.default)


def node_slo(percent: int) -> Object:
    """Best-effort pods get what others leave of so many percent of the node's CPU."""
    strategy = {
        "enable": True,
        "cpuSuppressPolicy": "cfsQuota",
        "cpuSuppressThresholdPercent": percent,
    }
    return {"metadata": {"name": "n1"}, "spec": {"resourceUsedThresholdWithBE": strategy}}


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """The cluster of this node."""
    server = ApiServer()
    capacity = {"capacity": {"cpu": "4", "memory": "16Gi"}}
    server.objects.create(NODES.collection(), {"metadata": {"name": "n1"}, "status": capacity})
    server.objects.create(NODE_METRICS.collection(), {"metadata": {"name": "n1"}, "spec": {}})
    server.objects.create(NODE_SLOS.collection(), node_slo(80))
    pod = {
        "metadata": {"namespace": "default", "name": "batch", "uid": "batch"},
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
        "status": {"phase": "Running", "qosClass": "BestEffort"},
    }
    server.objects.create(PODS.collection(), pod)
    await server.start()
    yield server
    await server.stop()


async def test_a_node_slo_passes_the_files_of_its_way(tmp_path: Path, server: ApiServer) -> None:
    """The plugin that writes it alone, after some rounds, between two sampling passes."""
    asyncio.get_running_loop().set_default_executor(InlineExecutor())
    clock, host = SimulatedClock(), FakeHost(tmp_path / "host", cpus=4)
    host.add_pod("batch", KubeQoS.BEST_EFFORT)
    quota = host.paths.cgroup / "cpu/kubepods/besteffort/cpu.cfs_quota_us"
    access = tmp_path / "kubeconfig"
    access.write_text(kubeconfig(server.url))
    exposition = Exposition(FAMILIES, clock=clock)
    flags = [
        f"--kubeconfig={access}",
        "--addr=127.0.0.1:0",
        f"--run-dir={tmp_path / 'run'}",
        "--node-name=n1",
        "--kubelet-sync-interval=0",
        "--manager-duties=off",
        f"--feature-gates={OFF}",
        "--be-suppress-fast-interval=0",
        *host_flags(host.paths),
    ]
    settings = load_settings(
        flags, {}, clock=clock, metrics=exposition.internal, discover=discover, laid_out=True
    )
    way, stop = Way("KernelValues.write"), Stop(clock)
    with threads_recorded(way):
        task = asyncio.create_task(run_daemon(settings, exposition, clock, stop=stop))
        for passes in range(1, 20):
            await clock.until(lambda most=passes: passes_of(exposition.internal) >= most)
            await network_is_quiet()
            if passes == 10:  # rounds begin between passes, in the middle of each second
                await clock.advance(0.5)
                settings.gates.set_from_map({GATE: True})
                await network_is_quiet()
            host.use_cpu(1.5, system=0.5, idle=2.0)
            await clock.advance(0.5 if passes == 10 else 1.0)
        await clock.until(lambda: passes_of(exposition.internal) >= 20)
        await network_is_quiet()
        assert quota.read_text() == "120000\n"
        await walk(
            way,
            clock,
            lambda: server.objects.replace(NODE_SLOS.collection(), node_slo(70)),
            seconds=0.6,
        )
        assert quota.read_text() == "80000\n"
        stop.set()
        await asyncio.wait_for(task, 60)

    way.check(NODE_SLO)
