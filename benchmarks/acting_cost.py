"""Cost of the daemon while it acts at 150 pods: the gates of Koordinator's figure, and all gates.

All are those that a machine without special hardware can run, whether or not its kernel has all
that they would use. SystemConfig is not among them: it sets values of the whole machine, once.
"""

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.process import Cost, Daemon, own_group, running_daemon
from benchmarks.table import Row
from benchmarks.tree import CONTAINERS_PER_POD, CONTROLLERS, pod_tree
from koordlet.features import GATES

PODS = 150
NETWORK = frozenset({"TCNetworkQoS", "TerwayQoS"})  # need an interface of their own
LEFT_OUT = NETWORK | {"SystemConfig"}
DISK_LIMIT = 1 << 40  # bytes per second: none at all
STRETCHES = 6  # of ten seconds each; the median counts, as others share the machine
_WRITES = re.compile(r"^koordlet_kernel_writes_total\{[^}]*\} (\S+)", re.MULTILINE)
_CLASSES = {"kubepods": "Guaranteed", "burstable": "Burstable", "besteffort": "BestEffort"}


class Variant(NamedTuple):
    """One way to run the daemon."""

    name: str
    gates: Sequence[str]
    budget: tuple[float, float]  # cores, MiB RSS
    koordinator: tuple[float | None, float | None]  # the same, on this kind of host
    controllers: Sequence[str] = CONTROLLERS


VARIANTS = (
    Variant(
        "acting daemon",
        ("CgroupReconcile", "MemoryEvict", "PSICollector"),
        (0.022, 71.0),
        (0.133, 111.0),
    ),
    Variant(
        "all gates",
        tuple(gate for gate in GATES if gate not in LEFT_OUT),
        (0.035, 90.0),
        (None, None),
        (*CONTROLLERS, "blkio"),
    ),
)


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield cores, RSS, and kernel writes a minute in steady state.

    The cost of all gates is also a ratio to the first variant's, as others share the machine.
    """
    first: Cost | None = None
    for variant in VARIANTS:
        cost, writes = _measure(variant, smoke=smoke)
        if first is None:
            theirs = (*variant.koordinator, "Koordinator's koordlet")
        else:
            theirs = (first.cores, first.rss_mib, VARIANTS[0].name)
        yield from _rows(variant, cost, writes, theirs)
        first = first or cost


def _measure(variant: Variant, *, smoke: bool) -> tuple[Cost, float]:
    """Return the cost, of its CPU the median, and kernel writes a minute."""
    with (
        pod_tree(PODS, variant.controllers) as groups,
        own_group() as enter,
        tempfile.TemporaryDirectory(dir="/run") as run_dir,
    ):
        flags = _inputs(Path(run_dir), groups, variant.gates)
        history = [sys.executable, "-m", "benchmarks.history", run_dir, "containerd"]
        subprocess.run(history, check=True, preexec_fn=enter)
        with running_daemon(Path(run_dir), flags, enter=enter) as daemon:
            daemon.wait_until_measuring(PODS)
            time.sleep(5 if smoke else 40)
            written, began = _writes(daemon), time.monotonic()
            costs = [daemon.cost(3.0 if smoke else 10.0) for _ in range(1 if smoke else STRETCHES)]
            minutes = (time.monotonic() - began) / 60
            cores = statistics.median(cost.cores for cost in costs)
            return replace(costs[-1], cores=cores), (_writes(daemon) - written) / minutes


def _rows(
    variant: Variant, cost: Cost, writes: float, theirs: tuple[float | None, float | None, str]
) -> Iterator[Row]:
    name, (cores, rss) = variant.name, variant.budget
    their_cores, their_rss, who = theirs
    yield Row(f"{name} cpu, {PODS} pods", cost.cores, "cores", cores, their_cores, who)
    yield Row(f"{name} RSS, {PODS} pods", cost.rss_mib, "MiB", rss, their_rss, who)
    yield Row(f"{name}: kernel writes when steady", writes, "a minute", 0.0)


def _writes(daemon: Daemon) -> float:
    return sum(map(float, _WRITES.findall(daemon.fetch("/metrics").decode())))


def _inputs(directory: Path, groups: list[str], gates: Sequence[str]) -> list[str]:
    """Write pods and NodeSLO, and return the flags that name them."""
    pods = {"apiVersion": "v1", "kind": "PodList", "items": list(_pods(groups))}
    (directory / "pods.json").write_text(json.dumps(pods))
    (directory / "nodeslo.json").write_text(json.dumps(node_slo()))
    return [
        f"--pods-file={directory / 'pods.json'}",
        f"--nodeslo-file={directory / 'nodeslo.json'}",
        f"--feature-gates={','.join(f'{gate}=true' for gate in gates)}",
        f"--audit-log-dir={directory / 'audit'}",
        "--enable-resctrl-collector=true",
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


def _blocks() -> Iterator[Mapping[str, Any]]:
    """Limits that are none, on a disk of this machine."""
    disks = [path.name for path in Path("/sys/block").iterdir() if (path / "device").exists()]
    limits = {"readBPS": DISK_LIMIT, "writeBPS": DISK_LIMIT}
    for disk in sorted(disks)[:1]:
        yield {"name": f"/dev/{disk}", "type": "device", "ioCfg": limits}


def node_slo() -> Mapping[str, Any]:
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
            "resourceQOSStrategy": {
                "lsClass": {"memoryQOS": memory},
                "beClass": {"blkioQOS": {"enable": True, "blocks": list(_blocks())}},
            },
            "cpuBurstStrategy": {"policy": "auto"},
        },
    }
