"""The real process on real cgroups: a busy pod shows up in time and with the right figures."""

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from koordlet.host.files import Descriptors
from koordlet.host.host import Host
from koordlet.host.resources import CPU_USAGE
from koordlet.statesinformer.pod_source import SCAN_INTERVAL

from .conftest import VERSION

# A pod shows up within 2 s and with its CPU right to 5 % where nothing else wants the processors.
# Tests share them, and a virtual machine emulates them.
SLOWER, PRECISION = 10, 0.1 if VERSION == 1 else 0.2
UID = "9dba1d9e-67ba-4db6-8a73-fb3ea297c363"
POD = f"kubepods/burstable/pod{UID}"

# A quarter of a core, whatever else runs here: what was missed is made up for.
BURN = """
import threading
def burn():
    start, used = time.monotonic(), time.process_time()
    while True:
        if time.process_time() - used > 0.25 * (time.monotonic() - start):
            time.sleep(0.005)
threading.Thread(target=burn, daemon=True).start()
"""


@pytest.fixture
def daemon(koordlet: Callable[..., Any], tree: Any) -> Any:
    tree.make("kubepods/burstable")
    daemon = koordlet(
        "--standalone", "--report-interval=1s", f"--cgroup-root-dir={tree.paths.cgroup}"
    )
    daemon.wait_ready()
    daemon.until(lambda: daemon.get("/nodemetric")[0] == 200)
    return daemon


def in_top(daemon: Any) -> dict[str, Any] | None:
    """The row of the pod, once it has a CPU usage."""
    rows = [row for row in daemon.ctl("top")["pods"] if row["uid"] == UID]
    return rows[0] if rows and rows[0]["cpu_cores"] else None


def in_metrics(daemon: Any) -> float | None:
    """The pod's CPU cores on /metrics."""
    _, text = daemon.get("/metrics")
    found = re.search(rf"^koordlet_pod_\w*cpu\w*cores{{.*{UID}.*}} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else None


def reported(daemon: Any) -> dict[str, str] | None:
    """The pod's usage in the NodeMetric."""
    status = json.loads(daemon.get("/nodemetric")[1])["status"]
    usages = [
        pod["podUsage"]["resources"] for pod in status.get("podsMetric", ()) if pod["name"] == UID
    ]
    return usages[0] if usages else None


def cores(text: str) -> float:
    """A CPU quantity in cores."""
    return int(text[:-1]) / 1000 if text.endswith("m") else float(text)


def cpu_seconds(daemon: Any) -> tuple[float, int]:
    """Sum and number of the pod's CPU samples, which are a second apart."""
    answer = daemon.ctl("metrics/pod_cpu_usage?window=5m")
    [series] = [series for series in answer["series"] if series["pod_uid"] == UID]
    return series["avg"] * series["count"], series["count"]


def used_by(host: Host) -> float:
    """CPU seconds the pod has used, as the kernel says."""
    return host.read(CPU_USAGE, POD) / 1e9


def test_a_busy_pod_is_seen_measured_and_forgotten(daemon: Any, tree: Any) -> None:
    """In top, in /metrics and in the NodeMetric, soon and with the right CPU; then gone."""
    tree.make("waiting")
    process = tree.run("waiting", "data = bytearray(64 * 2**20)")
    host = Host(tree.paths, Descriptors())
    tree.make(f"{POD}/c1")
    for hierarchy in tree.hierarchies:
        (hierarchy / POD / "c1/cgroup.procs").write_text(f"{process.pid}")
    start = time.monotonic()
    process.do(BURN)

    for seen, limit in ((in_top, 2), (in_metrics, 2), (reported, 3)):
        left = limit * SLOWER - (time.monotonic() - start)
        daemon.until(lambda seen=seen: seen(daemon), seconds=left)

    used_before, elapsed_before = used_by(host), time.monotonic() - start
    seconds_before, count_before = cpu_seconds(daemon)
    time.sleep(5)
    seconds, count = cpu_seconds(daemon)
    usage, used, elapsed = reported(daemon), used_by(host), time.monotonic() - start
    truth = (used - used_before) / (elapsed - elapsed_before)
    measured = (seconds - seconds_before) / (count - count_before)
    assert measured == pytest.approx(truth, rel=PRECISION)
    # In the mean of its life counts the time since the scan before it was found, too.
    lowest = used / (elapsed + SCAN_INTERVAL * SLOWER)
    assert usage is not None
    highest = used / elapsed
    assert (1 - PRECISION) * lowest < cores(usage["cpu"]) < (1 + PRECISION) * highest

    process.end()
    host.descriptors.close()
    tree.remove(POD)
    daemon.until(lambda: not reported(daemon), seconds=3 * SLOWER)
    assert in_metrics(daemon) is None
    assert daemon.get("/healthz") == (200, "ok")
    assert daemon.stop() == 0
