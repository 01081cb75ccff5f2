"""The real process on a cgroup v2 node as kind makes them: systemd's names, nested."""

import json
import re
from typing import Any

from koord.api.quantity import Quantity

from ..conftest import MIB, Tree, touch

UID = "9dba1d9e-67ba-4db6-8a73-fb3ea297c363"
ROOT = "kubelet.slice/kubelet-kubepods.slice"
POD = (
    f"{ROOT}/kubelet-kubepods-burstable.slice/"
    f"kubelet-kubepods-burstable-pod{UID.replace('-', '_')}.slice"
)
NEEDED = (
    "cpu usage",
    "cpu throttling",
    "memory usage",
    "memory by NUMA node",
    "pressure",
    "cpuset",
)
V1_ONLY = {"controller blkio", "controller net_cls", "controller net_prio"}


def metric(daemon: Any, name: str) -> float:
    """The sum of a metric's samples; 0 without any."""
    _, text = daemon.get("/metrics")
    return sum(map(float, re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)))


def test_start_measure_report_explain_stop(koordlet: Any, tree: Tree) -> None:
    """One life of the daemon: the pod is in the report, doctor knows the host, nothing failed."""
    tree.make(f"{POD}/cri-containerd-0123.scope").run(touch(64 * MIB))
    daemon = koordlet(
        "--standalone",
        "--report-interval=1s",
        "--psi-collector-interval=1s",
        "--feature-gates=PSICollector=true",
        f"--cgroup-root-dir={tree.paths.cgroup}",
    )
    daemon.wait_ready()

    def reported() -> dict[str, str] | None:
        status, body = daemon.get("/nodemetric")
        pods = json.loads(body)["status"].get("podsMetric", ()) if status == 200 else ()
        return next((pod["podUsage"]["resources"] for pod in pods if pod["name"] == UID), None)

    usage = daemon.until(reported)
    assert 63 * MIB < Quantity.parse(usage["memory"]).integer < 84 * MIB
    daemon.until(lambda: metric(daemon, "koordlet_sampling_pass_seconds_count") >= 2)
    _, text = daemon.get("/metrics")
    for name in ("node", "qos", "pod", "container"):
        assert f"koordlet_{name}_psi{{" in text
    assert daemon.until(lambda: daemon.get("/healthz") == (200, "ok"))

    found = {(finding["area"], finding["name"]): finding for finding in daemon.ctl("doctor")}
    assert found["cgroup", "hierarchies"]["detail"] == f"v2 below {tree.paths.cgroup}"
    assert found["cgroup", "pods"]["detail"] == f"driver systemd, found at {ROOT}"
    assert all(found["cgroup", name]["supported"] for name in NEEDED)
    controllers = {name for _, name in found if name.startswith("controller ")}
    lacking = {name for name in controllers if not found["cgroup", name]["supported"]}
    assert lacking == V1_ONLY

    for outcome in ("failed", "hung"):
        assert metric(daemon, f'koordlet_kernel_reads_total{{outcome="{outcome}"}}') == 0
    assert daemon.stop() == 0
    failed = [event for event in daemon.events("collector.failed") if event["outcome"] != "late"]
    assert failed == []
