"""The command `koord-descheduler plan` on a live cluster: it lists, and writes nothing."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from koord.api.annotations import RESOURCE_STATUS
from koord.api.nodetopology import CPU_MANAGER_POLICY, CPU_TOPOLOGY
from koord.controlplane.offline import ClusterReadError, read_cluster
from koord.kube.kubeconfig import find_config
from koord_descheduler.cli.descheduler import main
from koord_descheduler.cli.plan import main as plan
from tests.support.clusters import node, pod
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.daemon_flags import kubeconfig
from tests.support.kube.faults import refuse

CONFIG: dict[str, Any] = {
    "apiVersion": "descheduler/v1alpha2",
    "kind": "DeschedulerConfiguration",
    "deschedulingInterval": "10s",
    "profiles": [
        {
            "name": "p",
            "plugins": {
                "balance": {"enabled": [{"name": "FragmentationAware"}]},
                **{
                    point: {"disabled": [{"name": "*"}], "enabled": [{"name": "DefaultEvictor"}]}
                    for point in ("evict", "filter")
                },
            },
        }
    ],
}


@pytest.fixture
def argv(server: ApiServer, tmp_path: Path) -> list[str]:
    (tmp_path / "kubeconfig").write_text(kubeconfig(server.url))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    config = f"--config={tmp_path / 'config.json'}"
    return [f"--kubeconfig={tmp_path / 'kubeconfig'}", config, "-o", "json"]


async def test_a_live_cluster_is_planned_without_a_write(
    server: ApiServer, argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    server.objects.create("/api/v1/nodes", node("n1"))
    server.objects.create("/api/v1/nodes", node("n2"))
    uneven = pod("big", "n1", requests={"cpu": "3"})
    owners = [{"kind": "ReplicaSet", "name": "big", "uid": "u", "controller": True}]
    uneven["metadata"]["ownerReferences"] = owners
    server.objects.create("/api/v1/pods", uneven)

    assert await asyncio.to_thread(plan, argv) == 0

    report = json.loads(capsys.readouterr().out)
    assert [(one["pod"], one["action"], one["candidates"]) for one in report["pods"]] == [
        ("default/big", "evict", ["n2"])
    ]
    assert "input" not in report
    assert all(request.verb in ("list", "watch") for request in server.requests)


TAINT = {"key": "broken", "effect": "NoSchedule"}
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies"


def bound_pod() -> dict[str, Any]:
    """A pod with 4 CPUs of its own."""
    made = pod("bound", "n1", requests={"cpu": "4"})
    made["metadata"]["annotations"] = {RESOURCE_STATUS: json.dumps({"cpuset": "0-3"})}
    owners = [{"kind": "ReplicaSet", "name": "bound", "uid": "u", "controller": True}]
    made["metadata"]["ownerReferences"] = owners
    return made


def topology(name: str, reserved: str) -> dict[str, Any]:
    """A node of 8 CPUs, of which the kubelet keeps some."""
    detail = [{"id": cpu, "core": cpu, "socket": 0, "node": 0} for cpu in range(8)]
    texts = {CPU_TOPOLOGY: {"detail": detail}, CPU_MANAGER_POLICY: {"reservedCPUs": reserved}}
    annotations = {key: json.dumps(value) for key, value in texts.items()}
    return {"metadata": {"name": name, "annotations": annotations}}


@pytest.fixture(params=["DefaultEvictor", "MigrationController"])
def taints_argv(request: pytest.FixtureRequest, argv: list[str], tmp_path: Path) -> list[str]:
    """Pods leave nodes with a taint that they do not tolerate, if they fit elsewhere."""
    evictor, everything = request.param, [{"name": "*"}]
    plugins: dict[str, Any] = {
        point: {"disabled": everything, "enabled": [{"name": evictor}]}
        for point in ("evict", "filter")
    }
    plugins["deschedule"] = {"enabled": [{"name": "RemovePodsViolatingNodeTaints"}]}
    more: dict[str, Any] = {}
    if evictor == "MigrationController":
        more = {"defaultJobMode": "EvictDirectly", "maxUnavailablePerWorkload": 1}
        more |= {"maxMigratingPerWorkload": 1, "skipCheckExpectedReplicas": True}
    args = [{"name": evictor, "args": {"nodeFit": True, **more}}]
    profiles = [{"name": "p", "plugins": plugins, "pluginConfig": args}]
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "profiles": profiles}))
    return argv


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize(
    ("reserved", "action", "unknown"),
    [("", "evict", 0), ("0-4", "refused", 0), (None, "evict", 1)],
)
async def test_cpus_that_are_free_elsewhere_count_in_a_plan(
    server: ApiServer,
    taints_argv: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    live: bool,
    reserved: str | None,
    action: str,
    unknown: int,
) -> None:
    """By the NodeResourceTopology objects of the API server, or of a dump; None: there are none."""
    nodes = [node("n1", taints=[TAINT]), node("n2")]
    topologies = [] if reserved is None else [topology(name, reserved) for name in ("n1", "n2")]
    workload: dict[str, Any] = {"metadata": {"name": "bound", "namespace": "default", "uid": "u"}}
    workload["spec"] = {"replicas": 2}
    for path, objects in (
        ("/api/v1/nodes", nodes),
        ("/apis/apps/v1/replicasets", [workload]),
        ("/api/v1/pods", [bound_pod()]),
        (TOPOLOGIES, topologies),
    ):
        for one in objects:
            server.objects.create(path, one)
    if not live:
        lists = [
            {"kind": "NodeList", "apiVersion": "v1", "items": nodes},
            {"kind": "PodList", "apiVersion": "v1", "items": [bound_pod()]},
            {"kind": "ReplicaSetList", "apiVersion": "apps/v1", "items": [workload]},
            {
                "kind": "NodeResourceTopologyList",
                "apiVersion": "topology.node.k8s.io/v1alpha1",
                "items": topologies,
            },
        ]
        (tmp_path / "dump.json").write_text("\n".join(json.dumps(one) for one in lists))
        taints_argv = [f"--from={tmp_path / 'dump.json'}", *taints_argv[1:]]

    assert await asyncio.to_thread(plan, taints_argv) == 0

    report = json.loads(capsys.readouterr().out)
    [found] = report["pods"]
    assert (found["pod"], found["action"]) == ("default/bound", action), found["reason"]
    assert ("no such devices or CPUs free" in found["reason"]) == (action == "refused")
    assert len(report["unknown"]) == unknown
    if unknown:
        assert report["unknown"][0].startswith("1 pods have CPUs of their own, and no")


async def test_lists_that_do_not_come_are_named(server: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(kubeconfig(server.url))
    config = find_config(str(tmp_path / "kubeconfig"), {}, home=tmp_path)
    assert config is not None
    server.script(*[refuse(403)] * 100, path="/api/v1/pods")

    with pytest.raises(ClusterReadError, match="not listed yet: pod"):
        await read_cluster(config, "test", print, list_timeout=2.0)


def test_without_a_cluster_a_dump_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))

    assert main(["plan", "--config", str(tmp_path / "config.json")]) == 1
    assert "wanted an API server, or a dump" in capsys.readouterr().err
