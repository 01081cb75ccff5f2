"""How soon best-effort pods give way to a burner, and what the looks cost that notice it.

Two busy best-effort processes have what a latency-sensitive pod leaves of 65 % of the node; it then
burns one core, at random moments. Koordinator's koordlet v1.6 on the same two cores: median 1.26 s,
at most 1.64 s.
"""

import asyncio
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry

from benchmarks.process import own_group, running_daemon
from benchmarks.table import Row
from benchmarks.tree import CONTROLLERS, QOS, ROOT, NotHereError, check_host, remove
from koordlet.api.node import Node
from koordlet.api.nodeslo import merge_nodeslo
from koordlet.executor.claims import ClaimDesk
from koordlet.executor.kernelview import KernelView
from koordlet.executor.watching import Watcher
from koordlet.executor.worker import ThreadWorker
from koordlet.executor.writer import Writer
from koordlet.host.host import Host
from koordlet.host.paths import HostPaths
from koordlet.metriccache import kinds
from koordlet.plugin import PluginMetrics, UnavailableClient
from koordlet.plugin.base import bind_claims, bind_gates
from koordlet.plugin.testing import ScriptedMetrics, make_pod
from koordlet.statesinformer.informer import StatesInformer
from koordlet.util.clock import SystemClock
from koordlet.util.flags import FlagSet
from koordlet.util.logs import get_logger
from koordlet.util.stop import Stop
from koordlet_plugins.be_cpu_suppress.plugin import GATE, BECPUSuppress

LS, BE = f"{QOS[1]}/podls/main", f"{QOS[2]}/podbe/main"
QUOTA = ROOT / "cpu" / QOS[2] / "cpu.cfs_quota_us"
BURN = 2.5  # seconds
CALM = 3.0  # seconds in which the quota has to grow back, and one more at random
SLO = {"spec": {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota"}}}
_BUSY = "while True: pass"
_BURNER = f"""
import sys, time
for _ in sys.stdin:
    start = time.monotonic()
    print(start, flush=True)
    while time.monotonic() < start + {BURN}: pass
"""


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield the reaction times, how calm the quota is, and the cost of the looks."""
    times, changes = _react(2 if smoke else 25, 5.0 if smoke else 60.0)
    yield Row("BE gives way to a burner, median", statistics.median(times), "s", 0.35)
    yield Row("BE gives way to a burner, longest", max(times), "s", 0.6)
    yield Row("changes of the quota under steady load, 60 s", changes, "", 6.0)
    yield Row("fast looks", _cost(2.0 if smoke else 20.0), "cores", 0.004)


def _react(times: int, steady: float) -> tuple[list[float], int]:
    check_host()
    with _pods(), tempfile.TemporaryDirectory(dir="/run") as run_dir, own_group() as enter:
        slo = Path(run_dir) / "slo.json"
        slo.write_text(json.dumps(SLO))
        flags = [f"--nodeslo-file={slo}"]
        with (
            _busy(BE),
            _busy(BE),
            _burner() as burner,
            running_daemon(Path(run_dir), flags, enter=enter) as daemon,
        ):
            daemon.wait(lambda: _quota() > 0, "limit best-effort pods")
            time.sleep(2 * CALM)
            changes = _changes(steady)
            return [_reaction(burner) for _ in range(times)], changes


def _reaction(burner: "subprocess.Popen[str]") -> float:
    """Seconds from the start of the burner to less than a core for best-effort pods."""
    assert burner.stdin is not None
    assert burner.stdout is not None
    time.sleep(CALM + random.random())
    _wait_for_calm()
    print("burn", file=burner.stdin, flush=True)
    start = float(burner.stdout.readline())
    while _quota() >= 100_000:
        if time.monotonic() > start + BURN:
            return BURN
        time.sleep(0.004)
    took = time.monotonic() - start
    time.sleep(max(start + BURN - time.monotonic(), 0))
    return took


def _wait_for_calm() -> None:
    """Return when best-effort pods have more than a core."""
    end = time.monotonic() + 30
    while _quota() < 110_000:
        if time.monotonic() > end:
            raise NotHereError("wanted a core for best-effort pods, found too much else running")
        time.sleep(0.05)


def _changes(seconds: float) -> int:
    """How often the quota changes while nothing else does."""
    end, changes, last = time.monotonic() + seconds, 0, _quota()
    while time.monotonic() < end:
        time.sleep(0.05)
        now = _quota()
        changes, last = changes + (now != last), now
    return changes


def _quota() -> int:
    return int(QUOTA.read_text())


@contextlib.contextmanager
def _pods() -> Iterator[None]:
    """Two pods with one container each."""
    groups = [*QOS, LS.rpartition("/")[0], LS, BE.rpartition("/")[0], BE]
    try:
        for controller in CONTROLLERS:
            for group in groups:
                (ROOT / controller / group).mkdir(exist_ok=True)
        for group in (QOS[2], BE.rpartition("/")[0]):
            (ROOT / "cpu" / group / "cpu.shares").write_text("2")  # as the kubelet has it
        yield
    finally:
        remove(groups)


@contextlib.contextmanager
def _process(program: str, group: str) -> Iterator["subprocess.Popen[str]"]:
    procs = [str(ROOT / c / group / "cgroup.procs") for c in CONTROLLERS if c != "cpuset"]
    join = f"import os, sys\nfor p in {procs}: open(p, 'w').write(str(os.getpid()))\n"
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", join + program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _busy(group: str) -> "contextlib.AbstractContextManager[subprocess.Popen[str]]":
    return _process(_BUSY, group)


def _burner() -> "contextlib.AbstractContextManager[subprocess.Popen[str]]":
    return _process(_BURNER, LS)


def _cost(seconds: float) -> float:
    """Cores that the plugin takes with looks more than without."""
    with _pods():
        return asyncio.run(_run_plugin(0.1, seconds)) - asyncio.run(_run_plugin(0.0, seconds))


async def _run_plugin(fast: float, seconds: float) -> float:
    """Run the plugin alone, with pods that do nothing; return the cores that this process used."""
    clock, flags, plugin = SystemClock(), FlagSet(), BECPUSuppress()
    states, metrics = StatesInformer(clock), ScriptedMetrics(clock)  # type: ignore[arg-type]
    host, worker = Host(HostPaths.for_mode("hostMode")), ThreadWorker("benchmark")
    watcher = Watcher(Host(host.paths), ThreadWorker("benchmark-watch"), clock)

    async def real(_: str) -> bool:
        return False

    desk = ClaimDesk(Writer(host), worker, clock, dry_run=real)
    desk.declare(GATE, plugin.may_claim)
    bind_claims(plugin, desk, KernelView(host, worker, clock, watcher=watcher))
    bind_gates(plugin, lambda gate: gate == GATE)
    plugin.name, plugin.log, plugin.clock = GATE, get_logger("benchmark"), clock
    plugin.metrics = PluginMetrics(GATE, CollectorRegistry())
    plugin.init_flags(flags)
    flags.parse([f"--be-suppress-fast-interval={fast}s"])
    states.set_node(Node("n", capacity={"cpu": "2"}))
    states.set_pods((make_pod("ls"),))
    states.set_node_slo(merge_nodeslo(SLO)[0])
    metrics.hold(kinds.NODE_CPU_USAGE, 0.5)
    plugin.setup(UnavailableClient(), metrics.cache, states)
    stop = Stop(clock)
    tasks = [asyncio.create_task(metrics.run(stop)), asyncio.create_task(plugin.run(stop))]
    await asyncio.sleep(1.5)
    start, used = time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    cores = (time.process_time() - used) / (time.monotonic() - start)
    stop.set()
    await asyncio.gather(*tasks)
    await desk.withdraw_all(GATE)
    worker.close()
    return cores
