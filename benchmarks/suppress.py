"""CPU suppression: the time until best-effort pods give way to a burner, and the cost of its looks.

Two busy best-effort processes use the rest that a latency-sensitive pod leaves of 65 % of the node;
it then burns one core, at random moments. Koordinator's koordlet on two such cores: median 1.26 s,
at most 1.64 s. The pods have far more weight than other processes of this machine, which koordlet
does not see, and the daemon runs at real-time priority.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry

from benchmarks.process import running_daemon
from benchmarks.table import Row
from benchmarks.tree import CONTROLLERS, QOS, ROOT, NotHereError, check_controllers, remove
from koord.api.node import Node
from koord.api.nodeslo import merge_nodeslo
from koord.component.flags import FlagSet
from koord.util.clock import SystemClock
from koord.util.logs import get_logger
from koord.util.stop import Stop
from koordlet.executor.claimmanager import ClaimManager
from koordlet.executor.journal import Journal
from koordlet.executor.kernel.view import KernelView, ThreadWorker, ValueWatcher
from koordlet.executor.kernel.writer import Writer
from koordlet.host.host import Host
from koordlet.host.paths import HostPaths
from koordlet.metriccache import kinds
from koordlet.plugin.base import PluginContext
from koordlet.plugin.interfaces import UnavailableClient
from koordlet.plugin.metrics import PluginMetrics
from koordlet.plugin.testing import ScriptedMetrics, make_pod
from koordlet.statesinformer.informer import StatesInformer
from koordlet_plugins.be_cpu_suppress import GATE, BECPUSuppress

BED = "koordlet-benchmark-bed"  # where kubepods is
HEAVY = 20 * 1024  # its shares: other processes of this machine hardly matter
LS, BE = f"{QOS[1]}/podls/main", f"{QOS[2]}/podbe/main"
QUOTA = ROOT / "cpu" / BED / QOS[2] / "cpu.cfs_quota_us"
NODE = {"kind": "Node", "metadata": {"name": "n"}, "status": {"capacity": {"cpu": "2"}}}
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
    """Yield the reaction times, the changes of the quota under steady load, and the looks' cost."""
    times, changes = _react(2 if smoke else 25, 5.0 if smoke else 60.0)
    yield Row("BE gives way to a burner, median", statistics.median(times), "s", 0.35)
    yield Row("BE gives way to a burner, longest", max(times), "s", 0.6)
    yield Row("changes of the quota under steady load, 60 s", changes, "", 6.0)
    yield Row("fast looks", _cost(2.0 if smoke else 20.0), "cores", 0.004)


def _react(times: int, steady: float) -> tuple[list[float], int]:
    with contextlib.ExitStack() as stack:
        bed = stack.enter_context(_bed())
        burner = stack.enter_context(_process(_BURNER, LS))
        for _ in range(2):
            stack.enter_context(_process(_BUSY, BE))
        daemon = stack.enter_context(running_daemon(bed / "run", _flags(bed), enter=_at_once))
        daemon.wait(lambda: _quota() > 0, "limit best-effort pods")
        time.sleep(2 * CALM)
        changes = _changes(steady)
        return [_reaction(burner) for _ in range(times)], changes


def _flags(bed: Path) -> list[str]:
    return [
        f"--cgroup-root-dir={bed / 'cgroup'}",
        f"--proc-root-dir={bed / 'proc'}",
        f"--node-file={bed / 'node.json'}",
        f"--nodeslo-file={bed / 'slo.json'}",
    ]


def _at_once() -> None:
    """Switch this process to real-time priority, for the reaction of a node with cores to spare."""
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


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
def _bed() -> Iterator[Path]:
    """Two pods with one container each, on a node that seems to be idle otherwise."""
    check_controllers()
    groups = [BED] + [f"{BED}/{group}" for group in (*QOS, _pod(LS), LS, _pod(BE), BE)]
    with tempfile.TemporaryDirectory(dir="/run") as directory:
        bed = Path(directory)
        for name in ("cgroup", "proc", "run"):
            (bed / name).mkdir()
        for entry in Path("/proc").iterdir():
            if entry.name != "stat":
                (bed / "proc" / entry.name).symlink_to(entry)
        (bed / "proc/stat").write_text(Path("/proc/stat").read_text())
        (bed / "node.json").write_text(json.dumps(NODE))
        (bed / "slo.json").write_text(json.dumps(SLO))
        try:
            for controller in CONTROLLERS:
                (bed / "cgroup" / controller).symlink_to(ROOT / controller / BED)
                for group in groups:
                    (ROOT / controller / group).mkdir(exist_ok=True)
            (ROOT / "cpu" / BED / "cpu.shares").write_text(str(HEAVY))
            for group in (QOS[2], _pod(BE)):
                (ROOT / "cpu" / BED / group / "cpu.shares").write_text("2")  # as the kubelet does
            yield bed
        finally:
            remove(groups)


def _pod(container: str) -> str:
    return container.rpartition("/")[0]


@contextlib.contextmanager
def _process(program: str, group: str) -> Iterator["subprocess.Popen[str]"]:
    procs = [str(ROOT / c / BED / group / "cgroup.procs") for c in CONTROLLERS if c != "cpuset"]
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


def _cost(seconds: float) -> float:
    """Additional cores that the plugin takes with looks."""
    with _bed() as bed:
        with_looks = asyncio.run(_run_plugin(bed, 0.1, seconds))
        return with_looks - asyncio.run(_run_plugin(bed, 0.0, seconds))


async def _run_plugin(bed: Path, fast: float, seconds: float) -> float:
    """Run the plugin alone, with pods that do nothing; return the cores that this process used."""
    clock, flags, plugin = SystemClock(), FlagSet(), BECPUSuppress()
    states, metrics = StatesInformer(clock), ScriptedMetrics(clock)  # type: ignore[arg-type]
    paths = dataclasses.replace(HostPaths.for_mode("hostMode"), cgroup=bed / "cgroup")
    host, worker = Host(paths), ThreadWorker("benchmark")
    watcher = ValueWatcher(Host(paths), ThreadWorker("benchmark-watch"), clock)

    async def real(_: str) -> bool:
        return False

    writer = Writer(host, Journal(None, ""), clock)
    manager = ClaimManager(writer, worker, clock, dry_run=real)
    manager.declare(GATE, plugin.may_claim)
    plugin.name = GATE
    plugin.bind(
        PluginContext(
            log=get_logger("benchmark"),
            metrics=PluginMetrics(GATE, CollectorRegistry()),
            clock=clock,
            gate_is_on=lambda gate: gate == GATE,
            kernel=KernelView(host, worker, clock, watcher=watcher),
            claims=manager,
        )
    )
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
    await manager.withdraw_all(GATE)
    worker.close()
    return cores
