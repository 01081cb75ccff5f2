"""Cost of the daemon while it acts: default gates, memory QoS, eviction and PSI at 150 pods."""

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.process import Cost, Daemon, own_group, running_daemon
from benchmarks.table import Row
from benchmarks.tree import CONTAINERS_PER_POD, pod_tree

PODS = 150
GATES = "CgroupReconcile=true,MemoryEvict=true,PSICollector=true"
KOORDINATOR = (0.133, 111.0)  # cores, MiB RSS on this kind of host
BUDGET = (0.022, 71.0)
STRETCHES = 6  # of ten seconds each; the median counts, as others share the machine
_WRITES = re.compile(r"^koordlet_kernel_writes_total\{[^}]*\} (\S+)", re.MULTILINE)
_CLASSES = {"kubepods": "Guaranteed", "burstable": "Burstable", "besteffort": "BestEffort"}


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield cores, RSS, and kernel writes a minute in steady state."""
    with (
        pod_tree(PODS) as groups,
        own_group() as enter,
        tempfile.TemporaryDirectory(dir="/run") as run_dir,
    ):
        flags = _inputs(Path(run_dir), groups)
        history = [sys.executable, "-m", "benchmarks.history", run_dir]
        subprocess.run(history, check=True, preexec_fn=enter)
        with running_daemon(Path(run_dir), flags, enter=enter) as daemon:
            daemon.wait_until_measuring(PODS)
            time.sleep(5 if smoke else 40)
            written, began = _writes(daemon), time.monotonic()
            costs = [daemon.cost(3.0 if smoke else 10.0) for _ in range(1 if smoke else STRETCHES)]
            minutes = (time.monotonic() - began) / 60
            yield from _rows(costs, (_writes(daemon) - written) / minutes)


def _rows(costs: list[Cost], writes: float) -> Iterator[Row]:
    theirs = "Koordinator's koordlet"
    cores = statistics.median(cost.cores for cost in costs)
    yield Row(f"acting daemon cpu, {PODS} pods", cores, "cores", BUDGET[0], KOORDINATOR[0], theirs)
    rss = costs[-1].rss_mib
    yield Row(f"acting daemon RSS, {PODS} pods", rss, "MiB", BUDGET[1], KOORDINATOR[1], theirs)
    yield Row("kernel writes in steady state", writes, "a minute", 0.0)


def _writes(daemon: Daemon) -> float:
    return sum(map(float, _WRITES.findall(daemon.fetch("/metrics").decode())))


def _inputs(directory: Path, groups: list[str]) -> list[str]:
    """Write pods and NodeSLO, and return the flags that name them."""
    pods = {"apiVersion": "v1", "kind": "PodList", "items": list(_pods(groups))}
    (directory / "pods.json").write_text(json.dumps(pods))
    (directory / "nodeslo.json").write_text(json.dumps(_node_slo()))
    return [
        f"--pods-file={directory / 'pods.json'}",
        f"--nodeslo-file={directory / 'nodeslo.json'}",
        f"--feature-gates={GATES}",
    ]


def _pods(groups: list[str]) -> Iterator[Mapping[str, Any]]:
    for start in range(0, len(groups), 1 + CONTAINERS_PER_POD):
        pod, *containers = groups[start : start + 1 + CONTAINERS_PER_POD]
        parent, _, name = pod.rpartition("/")
        yield _pod(name.removeprefix("pod"), _CLASSES[parent.rpartition("/")[2]], containers)


def _pod(uid: str, qos: str, containers: list[str]) -> Mapping[str, Any]:
    """A pod with limits; one of a best-effort class requests batch resources."""
    best_effort = qos == "BestEffort"
    cpu, memory = ("kubernetes.io/batch-cpu", "kubernetes.io/batch-memory") if best_effort else (
        "cpu", "memory")  # fmt: skip
    amounts = {cpu: "500" if best_effort else "500m", memory: "1Gi"}
    names = [f"c{number}" for number in range(len(containers))]
    return {
        "metadata": {
            "name": f"pod-{uid}",
            "namespace": "default",
            "uid": uid,
            "labels": {"koordinator.sh/qosClass": "BE" if best_effort else "LS"},
        },
        "spec": {
            "containers": [
                {"name": name, "resources": {"requests": amounts, "limits": amounts}}
                for name in names
            ]
        },
        "status": {
            "phase": "Running",
            "qosClass": qos,
            "containerStatuses": [
                {
                    "name": name,
                    "containerID": f"containerd://{group.rpartition('/')[2]}",
                    "state": {"running": {}},
                }
                for name, group in zip(names, containers, strict=True)
            ],
        },
    }


def _node_slo() -> Mapping[str, Any]:
    """Every strategy on, with Koordinator's recommended values."""
    memory = {"enable": True, "minLimitPercent": 50, "throttlingPercent": 80}
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeSLO",
        "metadata": {"name": "node"},
        "spec": {
            "resourceUsedThresholdWithBE": {
                "enable": True,
                "cpuSuppressThresholdPercent": 65,
                "cpuSuppressPolicy": "cfsQuota",
                "memoryEvictThresholdPercent": 95,
            },
            "resourceQOSStrategy": {"lsClass": {"memoryQOS": memory}},
            "cpuBurstStrategy": {"policy": "auto"},
        },
    }
