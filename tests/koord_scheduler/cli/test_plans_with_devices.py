"""place and simulate on a dump with NodeResourceTopology and Device objects."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koord_scheduler.command import main
from tests.support.scheduler.devices import d8
from tests.support.scheduler.numa import topology_object

Json = dict[str, Any]
STATUS = "scheduling.koordinator.sh/resource-status"
SPEC = "scheduling.koordinator.sh/resource-spec"
ALLOCATED = "scheduling.koordinator.sh/device-allocated"
Planned = Callable[..., Json]


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
        enabled = [{"name": name} for name in ("NodeNUMAResource", "DeviceShare")]
        profile = {
            "schedulerName": "koord-scheduler",
            "plugins": {"multiPoint": {"enabled": enabled}},
        }
        version = "kubescheduler.config.k8s.io/v1"
        kind = "KubeSchedulerConfiguration"
        config.write_text(json.dumps({"apiVersion": version, "kind": kind, "profiles": [profile]}))
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
