"""The daemon in the DaemonSet's pod, on the node's real cgroups."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..conftest import burn
from .cluster import NODE, PROGRAM, Agent, Cluster
from .nodepod import NodePod

# Koordinator's own DaemonSet: arguments, and where it mounts what of the host. Left out are
# /etc/localtime, /dev and a directory below /usr, which is this machine's here.
KOORDINATOR_ARGS = (
    "-cgroup-root-dir=/host-cgroup/",
    "-feature-gates=AllAlpha=true,AllBeta=true",
    "-runtime-hooks-network=unix",
    "-runtime-hooks-addr=/host-var-run-koordlet/koordlet.sock",
    "-runtime-hooks-host-endpoint=/var/run/koordlet//koordlet.sock",
    "--logtostderr=true",
    "--v=4",
)
KOORDINATOR_MOUNTS = {
    "/sys/fs/cgroup/": "/host-cgroup/",
    "/sys/fs/": "/host-sys-fs/",
    "/sys/": "/host-sys/",
    "/var/run/": "/host-var-run/",
    "/run/": "/host-run/",
    "/var/run/koordlet/": "/host-var-run-koordlet/",
    "/var/run/koordlet/prediction-checkpoints": "/prediction-checkpoints",
    "/etc/kubernetes/": "/etc/kubernetes/",
    "/etc/runtime/hookserver.d/": "/host-etc-hookserver/",
    "/var/lib/kubelet/": "/var/lib/kubelet",
    "/var/run/koordlet/pod-resources/": "/var/run/koordlet/pod-resources/",
    "/var/run/koordlet/xpu-device-infos/": "/var/run/koordlet/xpu-device-infos/",
}


@pytest.fixture
def node_pod() -> Iterator[NodePod]:
    with NodePod() as pod:
        yield pod


@pytest.fixture
async def cluster(tmp_path: Path, node_pod: NodePod) -> AsyncIterator[Cluster]:
    """An API server that knows the node and its pod."""
    cluster = Cluster(tmp_path, node_pod.uid)
    yield cluster
    await cluster.server.stop()


@pytest.fixture
def start(contain: Any, cluster: Cluster) -> Any:
    """Starts the daemon in a pod, and waits until it is ready."""

    async def start(pod: dict[str, Any], *args: str, **environ: str) -> Agent:
        agent = Agent(contain(pod, *PROGRAM, *args, **cluster.environment, **environ))
        await cluster.serve(agent.container)
        await agent.until(lambda: agent.get("/readyz")[0] == 200)
        return agent

    return start


async def test_it_reports_from_its_pod(
    pod: dict[str, Any], start: Any, cluster: Cluster, node_pod: NodePod
) -> None:
    """Healthy, without a capability, with what pods and node use; a new pod has its windows."""
    [spec] = pod["containers"]
    args = [*spec["args"], "--feature-gates=PSICollector=true", "--psi-collector-interval=1s"]
    veth = node_pod.connect()
    device = veth or next(name for name in os.listdir("/sys/class/net") if name != "lo")
    agent = await start(pod, *args)
    node_pod.process.do(burn(0.5))

    await agent.shows(f"koordlet_pod_cpu_usage_cores{{.*{node_pod.uid}")
    await agent.shows(f"koordlet_node_network_.*{{.*{device}", "koordlet_node_psi{")
    if veth:
        await agent.shows(f"koordlet_pod_network_.*{{.*{node_pod.uid}")
    await agent.until(lambda: cluster.usage("web"))
    await agent.until(lambda: agent.get("/healthz")[0] == 200)
    assert not agent.has(r'koordlet_kernel_reads_total{.*outcome="(failed|hung)".*} [1-9]')
    lacking = [each["name"] for each in agent.lacks("process", "privilege")]
    assert lacking == ["CAP_DAC_OVERRIDE"]  # that is for cgroups of another user than root

    held = agent.samples_held()
    agent.container.stop()
    await cluster.server.stop()
    following = await start(pod, *spec["args"])
    assert following.samples_held() >= held
    following.container.stop()
    assert following.events("daemon.stopped")


async def test_it_measures_and_reports_without_root(
    measure_only: dict[str, Any], start: Any, cluster: Cluster, node_pod: NodePod
) -> None:
    """The component measure-only: healthy, with what pods use, and nothing is missing."""
    [spec] = measure_only["containers"]
    environ = {each["name"]: each["value"] for each in spec["env"] if "value" in each}
    agent = await start(measure_only, *spec["args"], **environ)
    node_pod.process.do(burn(0.5))

    await agent.shows(f"koordlet_pod_cpu_usage_cores{{.*{node_pod.uid}")
    await agent.until(lambda: cluster.usage("web"))
    await agent.until(lambda: agent.get("/healthz")[0] == 200)
    assert not agent.has(r'koordlet_kernel_reads_total{.*outcome="(failed|hung)".*} [1-9]')
    status = agent.ctl("status")  # as `kubectl exec` finds it
    assert status["claims"] == {}
    assert status["run_dir"] == "/dev/shm/koordlet"
    assert agent.lacks("process", "privilege", "cgroup") == []
    agent.container.stop()
    assert agent.events("daemon.stopped")


async def test_the_arguments_and_mounts_of_koordinator_s_daemonset_start_it(
    pod: dict[str, Any], start: Any, cluster: Cluster
) -> None:
    """Unchanged, though without its privileges."""
    pod["volumes"] = [
        {"name": target, "hostPath": {"path": source}}
        for source, target in KOORDINATOR_MOUNTS.items()
    ]
    pod["containers"][0]["volumeMounts"] = [
        {"name": target, "mountPath": target} for target in KOORDINATOR_MOUNTS.values()
    ]

    agent = await start(pod, *KOORDINATOR_ARGS)

    await agent.until(lambda: cluster.usage("web"))
    [started] = agent.events("daemon.started")
    assert (started["node"], started["address"]) == (NODE, ":9316")
    assert started["run_dir"] == "/host-var-run-koordlet"
    agent.container.stop()
