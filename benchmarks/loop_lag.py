"""Lag of the daemon's event loop at 300 pods while /metrics is scraped every second.

Daemon and idle loop run at real-time priority, so that only their own work counts, not that of
other processes on the machine.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.process import running_daemon
from benchmarks.table import Row
from benchmarks.tree import pod_tree
from benchmarks.watched import LoopWatch
from koord.component.process import WARM_UP

PODS = 300


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield the lag of the daemon's loop beside that of an idle one, and its longest slices.

    A report is made every 10 s instead of every 60 s, so that the time watched has some in it.
    """
    seconds = 5.0 if smoke else 30.0
    warm_up = 1.0 if smoke else WARM_UP  # the first pass and scrapes import and make much
    reference, idle_loop = _idle(seconds / 3), "an idle loop"
    with pod_tree(PODS), tempfile.TemporaryDirectory(dir="/run") as run_dir:
        seen = _watch(Path(run_dir), warm_up, seconds)
    subject = f"loop lag, {PODS} pods"
    yield Row(f"{subject}, median", seen["p50"], "ms", None, reference["p50"], idle_loop)
    yield Row(f"{subject}, p99", seen["p99"], "ms", 10.0, reference["p99"], idle_loop)
    yield Row(f"{subject}, max", seen["max"], "ms", 25.0, reference["max"], idle_loop)
    for clock, meaning in (("cpu", "CPU"), ("wall", "waits included")):
        took, name = seen["longest"][clock]
        yield Row(f"longest slice on the loop, {meaning}", took, "ms", 5.0)
        if took > 5.0:
            print(f"longest slice, {meaning}: {took:.1f} ms {name}", file=sys.stderr)


def _idle(seconds: float) -> dict[str, Any]:
    idle, before = LoopWatch(), os.sched_getscheduler(0)
    _at_once()
    try:
        asyncio.run(idle.run(seconds))
    finally:
        os.sched_setscheduler(0, before, os.sched_param(0))
    return idle.summary()


def _at_once() -> None:
    """Switch this process to real-time priority."""
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _watch(run_dir: Path, warm_up: float, seconds: float) -> Any:
    result = run_dir / "watched.json"
    program = [sys.executable, "-m", "benchmarks.watched", str(result), str(seconds)]
    flags = ["--report-interval=10s"]
    with running_daemon(run_dir, flags, program=program, enter=_at_once) as daemon:
        daemon.wait_until_measuring(PODS)
        time.sleep(warm_up)
        os.kill(daemon.pid, signal.SIGUSR1)
        while not result.exists():
            daemon.fetch("/metrics")
            time.sleep(1)
        return json.loads(result.read_text())
