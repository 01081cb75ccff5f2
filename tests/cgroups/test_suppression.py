"""The real process on real cgroups: best-effort pods give way, and everything is restored."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koordlet.host import resources as r
from koordlet.host.files import Descriptors
from koordlet.host.host import Host

BE_GROUP, LS, BE = (
    "kubepods/besteffort",
    "kubepods/burstable/podls/c",
    "kubepods/besteffort/podbe/c",
)
BUDGET = 20  # percent of two cores: less than what the burner wants, whatever else runs here
BURN = """
import threading
def burn():
    while True: pass
threading.Thread(target=burn, daemon=True).start()
"""
NODE = {"kind": "Node", "metadata": {"name": "n1"}, "status": {"capacity": {"cpu": "2"}}}


class Node:
    """A node with a busy best-effort pod, on which nothing else seems to run."""

    def __init__(self, tree: Any, directory: Path, koordlet: Callable[..., Any]) -> None:
        self._directory = directory
        self._host = Host(tree.paths, Descriptors(0))
        self.best_effort, self.sensitive = tree.make(BE), tree.make(LS)
        self.best_effort.run(BURN)
        (directory / "node.json").write_text(json.dumps(NODE))
        self.set_slo(enable=True)
        self.daemon = koordlet(
            "--standalone",
            f"--cgroup-root-dir={tree.paths.cgroup}",
            f"--proc-root-dir={self._idle_proc()}",
            f"--node-file={directory / 'node.json'}",
            f"--nodeslo-file={directory / 'slo.json'}",
        )
        self.daemon.wait_ready()

    def set_slo(self, *, enable: bool, policy: str = "cfsQuota") -> None:
        section = {
            "enable": enable,
            "cpuSuppressPolicy": policy,
            "cpuSuppressThresholdPercent": BUDGET,
        }
        draft = self._directory / "draft"
        draft.write_text(json.dumps({"spec": {"resourceUsedThresholdWithBE": section}}))
        draft.rename(self._directory / "slo.json")

    def read(self, resource: r.Resource[Any], group: str = BE_GROUP) -> Any:
        return self._host.read(resource, group)

    def supports(self, resource: r.Resource[Any]) -> bool:
        return self._host.supports(resource, BE_GROUP)

    def best_effort_share(self, seconds: float) -> float:
        """Which part of the pods' CPU time the best-effort pod gets."""
        before = [self.read(r.CPU_USAGE, group) for group in (BE, LS)]
        time.sleep(seconds)
        best_effort, sensitive = (
            self.read(r.CPU_USAGE, group) - used
            for group, used in zip((BE, LS), before, strict=True)
        )
        return float(best_effort / (best_effort + sensitive))

    def _idle_proc(self) -> Path:
        """/proc, but with processors that seem idle."""
        proc = self._directory / "proc"
        proc.mkdir()
        for entry in Path("/proc").iterdir():
            if entry.name != "stat":
                (proc / entry.name).symlink_to(entry)
        (proc / "stat").write_text(Path("/proc/stat").read_text())
        return proc


@pytest.fixture
def node(tree: Any, tmp_path: Path, koordlet: Callable[..., Any]) -> Node:
    return Node(tree, tmp_path, koordlet)


def test_a_busy_best_effort_pod_gives_way_and_recovers(node: Node) -> None:
    """Quota shrinks, the other pod gets the CPU; afterwards there is no quota any more."""
    node.daemon.until(lambda: node.read(r.CPU_QUOTA) == 40_000)
    node.sensitive.run(BURN)
    node.daemon.until(lambda: node.read(r.CPU_QUOTA) <= 5_000)
    squeezed = node.best_effort_share(0.5)
    assert node.read(r.CPU_THROTTLE).nr_throttled > 0
    node.set_slo(enable=False)
    node.daemon.until(lambda: node.read(r.CPU_QUOTA) == -1)
    assert squeezed < 0.2 < node.best_effort_share(0.5)

    node.set_slo(enable=True)
    node.daemon.until(lambda: node.read(r.CPU_QUOTA) <= 5_000)
    node.daemon.stop()
    assert node.read(r.CPU_QUOTA) == -1


def test_cpusets_follow_and_come_back(node: Node) -> None:
    """The smallest set is two CPUs, which is all that this node has: nothing breaks there."""
    before = [node.read(r.CPUSET_CPUS, group) for group in (BE_GROUP, BE)]
    node.set_slo(enable=True, policy="cpuset")
    node.daemon.until(lambda: node.read(r.CPU_QUOTA) == -1)
    values = node.daemon.ctl("explain")["values"]
    assert {value["resource"] for value in values} <= {"cpuset_cpus_wanted"}
    assert {value["state"] for value in values} <= {"in force"}
    node.daemon.stop()
    assert [node.read(r.CPUSET_CPUS, group) for group in (BE_GROUP, BE)] == before


def test_idle_groups(node: Node) -> None:
    """The pod's group is idle as long as the policy says so."""
    pod = BE.rpartition("/")[0]
    if not node.supports(r.CPU_IDLE):
        pytest.skip("needs a kernel with cpu.idle")
    node.set_slo(enable=True, policy="cpuIdle")
    node.daemon.until(lambda: node.read(r.CPU_IDLE, pod) == 1)
    assert node.read(r.CPU_QUOTA) == -1
    node.daemon.stop()
    assert node.read(r.CPU_IDLE, pod) == 0
