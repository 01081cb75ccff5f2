"""Cost of the whole daemon at 50 to 500 pods, beside Koordinator's figures."""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.process import Cost, Daemon, own_group, running_daemon
from benchmarks.table import Row
from benchmarks.tree import pod_tree

KOORDINATOR = {50: (0.04, 92.0), 150: (0.10, 104.0), 300: (0.21, 125.0)}  # cores, MiB RSS
BUDGETS = {150: (0.015, 62.0), 500: (0.06, 90.0)}
CHARGED_BUDGETS = {150: 90.0}  # MiB
PODS = (50, 150, 300, 500)
SCRAPES = 10
STRETCHES = 6  # of ten seconds each; the median counts, as others share the machine


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield cores, RSS, charged memory and scrape time for each number of pods."""
    cores = {}
    for pods in PODS[:1] if smoke else PODS:
        with (
            pod_tree(pods),
            own_group() as enter,
            tempfile.TemporaryDirectory(dir="/run") as run_dir,
        ):
            history = [sys.executable, "-m", "benchmarks.history", run_dir]
            subprocess.run(history, check=True, preexec_fn=enter)
            with running_daemon(Path(run_dir), enter=enter) as daemon:
                daemon.wait_until_measuring(pods)
                scrape = list(_scrape(daemon, pods))
                time.sleep(1 if smoke else 20)
                stretches = [3.0] if smoke else [10.0] * STRETCHES
                cost = _median([daemon.cost(seconds) for seconds in stretches])
            cores[pods] = cost.cores
            yield from _rows(cost, pods)
            yield from scrape
    if not smoke:
        low, high = (cores[150] - cores[50]) / 100, (cores[300] - cores[150]) / 150
        yield Row("cpu of one more pod, 150 to 300", high * 1e6, "µs/s", None, low * 1e6,
                  "one more pod, 50 to 150")  # fmt: skip


def _median(costs: list[Cost]) -> Cost:
    """Median of the CPU; memory and descriptors as they were last."""
    cores = statistics.median(cost.cores for cost in costs)
    last = costs[-1]
    return Cost(cores, last.rss_mib, last.memory_mib, last.held_descriptors)


def _rows(cost: Cost, pods: int) -> Iterator[Row]:
    cores, rss = BUDGETS.get(pods, (None, None))
    their_cores, their_rss = KOORDINATOR.get(pods, (None, None))
    theirs = "Koordinator's koordlet"
    yield Row(f"daemon cpu, {pods} pods", cost.cores, "cores", cores, their_cores, theirs)
    yield Row(f"daemon RSS, {pods} pods", cost.rss_mib, "MiB", rss, their_rss, theirs)
    yield Row(f"daemon memory charged, {pods} pods", cost.memory_mib, "MiB",
              CHARGED_BUDGETS.get(pods), cost.rss_mib, "its RSS")  # fmt: skip
    yield Row(f"descriptors held, {pods} pods", cost.held_descriptors, "")


def _scrape(daemon: Daemon, pods: int) -> Iterator[Row]:
    took, size = [], 0
    for _ in range(SCRAPES):
        start = time.perf_counter()
        size = len(daemon.fetch("/metrics"))
        took.append((time.perf_counter() - start) * 1e3)
        time.sleep(0.1)
    yield Row(f"scrape, {pods} pods", statistics.median(took), "ms", None, 8.0 * size / 256e3,
              "8 ms for 256 kB")  # fmt: skip
    yield Row(f"scrape size, {pods} pods", size / 1e3, "kB")
