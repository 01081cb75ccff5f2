"""The real process ends a real pod for the node's memory, where there is no API server."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .conftest import MIB, touch
from .test_kill import is_running

VICTIM, NEIGHBOUR = "11111111-aaaa", "22222222-bbbb"
CLASSES = {VICTIM: "BE", NEIGHBOUR: "LS"}
SLO = {"resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 1}}


def group(uid: str) -> str:
    return f"kubepods/besteffort/pod{uid}/{uid[:8] * 8}"


def pod(uid: str) -> dict[str, Any]:
    labels = {"koordinator.sh/qosClass": CLASSES[uid]}
    status = {"name": "app", "containerID": f"containerd://{uid[:8] * 8}"}
    return {
        "metadata": {"namespace": "jobs", "name": CLASSES[uid].lower(), "uid": uid,
                     "labels": labels},
        "spec": {"containers": [{"name": "app"}]},
        "status": {"phase": "Running", "qosClass": "BestEffort", "containerStatuses": [status]},
    }  # fmt: skip


def test_memory_eviction_by_killing(koordlet: Callable[..., Any], tree: Any, tmp_path: Path):
    """Asked for by a flag: the cgroup is empty afterwards, and the neighbour does not notice.

    The node uses more than one percent of its memory, whatever it does.
    """
    victim, neighbour = (tree.make(group(uid)).run(touch(50 * MIB)) for uid in CLASSES)
    pods, slo = tmp_path / "pods.json", tmp_path / "slo.json"
    pods.write_text(json.dumps({"kind": "PodList", "items": [pod(uid) for uid in CLASSES]}))
    slo.write_text(json.dumps({"spec": SLO}))
    daemon = koordlet(
        "--standalone",
        "--feature-gates=BEMemoryEvict=true",
        "--evict-fallback=kill",
        "--memory-evict-signals=usage",
        "--force",
        f"--pods-file={pods}",
        f"--nodeslo-file={slo}",
        f"--cgroup-root-dir={tree.paths.cgroup}",
    )
    daemon.wait_ready()

    def decisions(name: str) -> list[dict[str, Any]]:
        return daemon.ctl(f"explain?pod=jobs/{name}")["decisions"]

    daemon.until(lambda: any(each["freed"] for each in decisions("be")))

    [decision] = decisions("be")
    assert decision["outcome"] == "killed"
    assert decision["message"] == "standalone: there is no API server; 1 processes killed"
    assert decision["freed"]["end"] in ("gone", "without_effect")
    assert decisions("ls") == []
    assert (tree.base / group(VICTIM) / "cgroup.procs").read_text() == ""
    assert not is_running(victim.pid)
    neighbour.do("")
