"""Simulated ticks with pods that come and go: descriptors, series and memory stay flat.

All parts are the daemon's own, on a fake host: cgroup scan, sampling pass, metric cache, report and
exposition. Nothing waits for real time.
"""

import gc
import os
import statistics
import sys
import tempfile
import time
import tracemalloc
import uuid
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from benchmarks.table import Row
from koord.api.nodemetric import NodeMetricSpec
from koord.component.http.exposition import OPENMETRICS, Exposition, FamilySelection
from koord.util.ownedfiles import OwnedDirectory
from koordlet.collectors.engine.reader import Reader, ReadLease, SkippedReads
from koordlet.collectors.engine.rounds import CollectorMetrics
from koordlet.collectors.engine.sampler import SamplingContext, SamplingPass
from koordlet.collectors.registry import CollectorOptions, build_collectors
from koordlet.host.cgroups.tree import CgroupTree, reference_hierarchy
from koordlet.host.host import Host
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import DEFAULT_INTERVALS, RetentionClass
from koordlet.plugin.testing import FakeHost, FakePod, SimulatedClock
from koordlet.reporter.status import ReportInputs, build_status, make_report
from koordlet.server.app import FAMILIES
from koordlet.statesinformer.podmeta import PodMeta, discovered_pod

PODS = 2
POD_LIFE = 20  # ticks between two births; a pod lives for PODS of them
LOOKS = 60  # ticks between two scrapes with a report
SPEC = NodeMetricSpec(aggregate_duration=60.0, durations=(60.0, 120.0, 300.0))
RETENTIONS = {RetentionClass.NODE: 300.0, RetentionClass.POD: 60.0}
UNITS = {"descriptors": "", "series": "", "ring files": "KiB", "traced memory": "KiB"}
SIZE_LOOKS = 15
TOLERANCE = 1.05


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield each size at the end beside that after the first ticks."""
    ticks = 2_000 if smoke else 100_000
    warm = ticks // 2 if smoke else ticks // 10
    shm = "/dev/shm"  # files written every tick need no disk
    with tempfile.TemporaryDirectory(dir=shm if os.path.isdir(shm) else None) as directory:
        daemon = _Daemon(Path(directory))
        tracemalloc.start()
        _renew_interned_names()
        daemon.run(warm)
        before, start = daemon.sizes(), time.thread_time()
        daemon.run(ticks - warm)
        spent, after = time.thread_time() - start, daemon.sizes()
        tracemalloc.stop()
        daemon.close()
    for name, unit in UNITS.items():
        title, reference = f"{name} after {ticks} ticks", f"after {warm} ticks"
        yield Row(title, after[name], unit, None, before[name], reference, TOLERANCE)
    yield Row("pods that came and went", daemon.born - PODS, "")
    yield Row("simulated tick, traced", spent / (ticks - warm) * 1e3, "ms")


def _renew_interned_names() -> None:
    """Make the interpreter build its table of interned names anew, now that memory is traced.

    It does so now and then, as paths bring names that go again; the first time in the middle of the
    run would look like growth by two megabytes.
    """
    for number in range(500_000):
        sys.intern(f"name {number}")


class _Daemon:
    """The daemon's parts without its loop and threads."""

    def __init__(self, directory: Path) -> None:
        self.born = 0
        self._host = FakeHost(directory / "host", cpus=2)
        self._clock = clock = SimulatedClock()
        self._alive: deque[FakePod] = deque()
        self._pods: tuple[PodMeta, ...] = ()
        self._tree = CgroupTree(reference_hierarchy(self._host.paths.cgroup), clock)
        self._cache = MetricCache(
            OwnedDirectory.open(directory) / "rings",
            "boot",
            clock,
            intervals=DEFAULT_INTERVALS,
            retentions=RETENTIONS,
        )
        self._exposition = Exposition(FAMILIES)
        metrics = CollectorMetrics(self._exposition.internal)
        self._pass = SamplingPass(
            build_collectors(
                CollectorOptions(node="n", periods=DEFAULT_INTERVALS, exporter_compat=True),
                self._host.paths,
                self._cache.put,
                lambda: False,
                lambda _gate: False,
            ),
            DEFAULT_INTERVALS,
            SamplingContext(
                enabled=lambda gate: gate != "PodNetworkCollector",  # no processes in fake groups
                pods=lambda: self._pods,
                slo=lambda: None,
                append=self._cache.append,
            ),
            clock,
            metrics,
        )
        self._exposition.add_sources(self._pass.sources)
        host = Host(self._host.paths, monotonic=clock.monotonic)
        self._reader = Reader(host, ReadLease(clock), SkippedReads(clock), clock)
        self._ticks = 0

    def run(self, ticks: int) -> None:
        """Let that many seconds pass."""
        for _ in range(ticks):
            if self._ticks % POD_LIFE == 0:
                self._change_pods()
            self._host.use_cpu(0.5, idle=1.5)
            self._clock.tick(1.0)
            self._pods = tuple(discovered_pod(pod) for pod in self._tree.scan().pods)
            due = [cadence for cadence, s in DEFAULT_INTERVALS.items() if self._ticks % s == 0]
            self._pass.run(due, self._reader)
            if self._ticks % LOOKS == LOOKS - 1:
                self._look()
            self._ticks += 1

    def sizes(self) -> dict[str, float]:
        """Medians over some ticks, because pods of different age differ."""
        seen = []
        for _ in range(SIZE_LOOKS):
            self.run(POD_LIFE + 1)
            gc.collect()
            stats = self._cache.stats()
            seen.append(
                {
                    "descriptors": len(os.listdir("/proc/self/fd")),
                    "series": stats.series,
                    "ring files": stats.file_bytes / 1024,
                    "traced memory": tracemalloc.get_traced_memory()[0] / 1024,
                }
            )
        return {name: statistics.median(size[name] for size in seen) for name in UNITS}

    def close(self) -> None:
        self._reader.close()
        self._cache.close()

    def _change_pods(self) -> None:
        if len(self._alive) >= PODS:
            self._alive.popleft().remove()
        uid = str(uuid.UUID(int=self.born))
        self._alive.append(self._host.add_pod(uid, containers=(f"{self.born:064x}",)))
        self.born += 1

    def _look(self) -> None:
        self._exposition.render(FamilySelection.ALL, OPENMETRICS)
        snapshot = ReportInputs(
            spec=SPEC,
            pods=self._pods,
            host_applications=(),
            now=self._clock.boottime(),
            oldest=2.0,
        )
        make_report("n", SPEC, build_status(self._cache, snapshot))
