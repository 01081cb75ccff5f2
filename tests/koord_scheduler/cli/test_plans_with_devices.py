"""place and simulate on a cluster with NodeResourceTopology and Device objects."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koord_scheduler.command import main
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.daemon_flags import kubeconfig
from tests.support.kube.faults import refuse
from tests.support.scheduler.devices import d8
from tests.support.scheduler.numa import topology_object

Json = dict[str, Any]
STATUS = "scheduling.koordinator.sh/resource-status"
SPEC = "scheduling.koordinator.sh/resource-spec"
ALLOCATED = "scheduling.koordinator.sh/device-allocated"
Planned = Callable[..., Json]
ENABLED = [{"name": name} for name in ("NodeNUMAResource", "DeviceShare")]
CONFIG = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "profiles": [
        {"schedulerName": "koord-scheduler", "plugins": {"multiPoint": {"enabled": ENABLED}}}
    ],
}


def node(name: str) -> Json:
    amounts = {"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "8"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def pod(name: str, requests: Json, on: str = "", **annotations: object) -> Json:
    meta = {
        "name": name,
        "namespace": "default",
        "labels": {"koordinator.sh/qosClass": "LSR"},
        "annotations": {
            {"status": STATUS, "spec": SPEC, "allocated": ALLOCATED}[key]: json.dumps(value)
            for key, value in annotations.items()
        },
    }
    container = {"name": "main", "resources": {"requests": requests}}
    spec = {"schedulerName": "koord-scheduler", "priority": 9500, "containers": [container]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**meta, "uid": name},
        "spec": {**spec, "nodeName": on} if on else spec,
        "status": {"phase": "Running" if on else "Pending"},
    }


@pytest.fixture
def plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Planned:
    """Run a command for pods on a dump; return its response."""

    def run(command: str, objects: list[Json], *pods: Json, output: str = "json") -> Any:
        dump, wanted, config = (tmp_path / name for name in ("dump.json", "pods.json", "c.json"))
        dump.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": objects}))
        wanted.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": list(pods)}))
        config.write_text(json.dumps(CONFIG))
        argv = [command, str(wanted), "--from", str(dump), "--config", str(config)]
        assert main([*argv, "-o", output]) == 0
        text = capsys.readouterr().out
        return json.loads(text) if output == "json" else text

    return run


def test_place_shows_the_cpus_that_a_pod_would_have(plan: Planned) -> None:
    """Those of running pods are not given again."""
    running = pod("old", {"cpu": "4"}, "n1", status={"cpuset": "0-3"})
    report = plan("place", [node("n1"), topology_object("n1"), running], pod("new", {"cpu": "4"}))
    assert report["node"] == "n1"
    assert json.loads(report["annotations"][STATUS])["cpuset"] == "8-11"
    assert report["input"]["objects"]["NodeResourceTopology.topology.node.k8s.io"] == 1
    assert report["input"]["skipped"] == {}


def test_place_says_why_a_pod_gets_no_cpus(plan: Planned) -> None:
    """One thread of each core is taken, so no core is whole."""
    running = pod("old", {"cpu": "8"}, "n1", status={"cpuset": "0,2,4,6,8,10,12,14"})
    new = pod("new", {"cpu": "2"}, spec={"requiredCPUBindPolicy": "FullPCPUs"})
    report = plan("place", [node("n1"), topology_object("n1"), running], new)
    assert report["node"] is None
    assert report["advice"][0].startswith(
        "2 CPUs of whole cores are requested, and at most 0 are free on one node"
    )


def test_place_shows_the_devices_that_a_pod_would_have(plan: Planned) -> None:
    report = plan("place", [node("d8"), d8()], pod("new", {"nvidia.com/gpu": "2"}))
    devices = json.loads(report["annotations"][ALLOCATED])["gpu"]
    assert [one["minor"] for one in devices] == [0, 1]


def test_a_simulation_gives_each_pod_its_own(plan: Planned) -> None:
    pods = [pod(f"p{at}", {"nvidia.com/gpu": "3"}) for at in range(3)]
    report = plan("simulate", [node("d8"), d8()], *pods)
    given = [
        {one["minor"] for one in json.loads(each["annotations"][ALLOCATED])["gpu"]}
        for each in report["pods"]
        if each["node"]
    ]
    assert len(given) == 2
    assert not given[0] & given[1]
    assert report["pending"] == 1


def test_tables_show_what_pods_would_have(plan: Planned) -> None:
    objects = [node("n1"), topology_object("n1")]
    assert '"cpuset":"0-3"' in plan("place", objects, pod("new", {"cpu": "4"}), output="table")
    assert '"cpuset":"0-3"' in plan("simulate", objects, pod("new", {"cpu": "4"}), output="table")


async def live(server: ApiServer, tmp_path: Path, command: str, *pods: Json) -> tuple[Json, str]:
    """Run a command for pods on the cluster of an API server; return its response, and stderr."""
    wanted, config, access = (tmp_path / name for name in ("pods.json", "c.json", "kubeconfig"))
    wanted.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": list(pods)}))
    config.write_text(json.dumps(CONFIG))
    access.write_text(kubeconfig(server.url))
    options = ("--kubeconfig", access, "--config", config, "-o", "json")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "koord_scheduler.command", command, wanted, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    found: Json = json.loads(out)
    return found, err.decode()


TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies"
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"


@pytest.mark.parametrize("command", ["place", "simulate"])
async def test_a_live_cluster_has_custom_resources_too(
    server: ApiServer, tmp_path: Path, command: str
) -> None:
    """As from a dump of it: CPUs and devices that are free."""
    server.objects.create("/api/v1/nodes", node("d8"))
    running = pod("old", {"cpu": "4"}, "d8", status={"cpuset": "0-3"})
    server.objects.create("/api/v1/pods", running)
    server.objects.create(TOPOLOGIES, topology_object("d8"))
    server.objects.create(DEVICES, d8())
    new = pod("new", {"cpu": "4", "nvidia.com/gpu": "2"})
    report, warnings = await live(server, tmp_path, command, new)
    found = report if command == "place" else report["pods"][0]
    assert found["node"] == "d8"
    assert json.loads(found["annotations"][STATUS])["cpuset"] == "8-11"
    given = json.loads(found["annotations"][ALLOCATED])["gpu"]
    assert [one["minor"] for one in given] == [0, 1]
    assert warnings == ""


async def test_a_kind_that_a_live_cluster_does_not_have_is_named(
    server: ApiServer, tmp_path: Path
) -> None:
    server.objects.create("/api/v1/nodes", node("n1"))
    server.objects.create(TOPOLOGIES, topology_object("n1"))
    server.script(*[refuse(404, "NotFound", "no such kind")] * 9, method="GET", path=DEVICES)
    report, warnings = await live(server, tmp_path, "place", pod("new", {"cpu": "4"}))
    assert json.loads(report["annotations"][STATUS])["cpuset"] == "0-3"
    assert "devices" in warnings
    assert "DeviceShare" in warnings
