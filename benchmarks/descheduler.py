"""Rounds of LowNodeLoad in dry run, beside those of Koordinator's koord-descheduler.

On the bed: 30 pods a node, one node in ten hot, six low. CPU from cycle.started to cycle.ended, of
the whole process, in the middle one of three rounds; the peak of memory includes the first list.
The reference is what the README of the bed has of the Go program, which is not here to be measured
in the same run.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bed.configs import descheduler_config
from benchmarks.bed.machine import peak_mib, tree
from benchmarks.bed.rounds import Round, follow
from benchmarks.bed.running import Bed
from benchmarks.table import Row
from benchmarks.tree import NotHereError

PROGRAM = Path(sys.executable).with_name("koord-descheduler")
PODS_PER_NODE = 30
REFRESH = 60.0  # seconds between NodeMetrics of a node, as koordlet has it
INTERVAL = 10  # seconds between rounds
ENDED, PLANNED = "cycle.ended", "eviction.planned"
GO = "koord-descheduler in Go, README"


@dataclass(frozen=True, slots=True)
class Case:
    """A cluster, and the promise for it; None: none was made."""

    nodes: int
    node_fit: bool
    cpu_seconds: float | None = None
    mib: float | None = None
    go_cpu_seconds: float | None = None
    go_mib: float | None = None
    planner: str = ""

    @property
    def name(self) -> str:
        fit = "nodeFit" if self.node_fit else "no nodeFit"
        return f"{self.nodes} nodes, {fit}{f', {self.planner}' if self.planner else ''}"


CASES = (
    Case(1000, True, 0.2, 200.0, 109.0, 1097.0),
    Case(1000, True, go_cpu_seconds=109.0, go_mib=1097.0, planner="koordinator"),
    Case(1000, False, 0.1, 200.0, 2.2, 1003.0),
    Case(5000, True, 1.0, 450.0, go_mib=5181.0),
    Case(5000, False, None, 450.0, 12.6, 5138.0),
)
SMOKE = (Case(100, True),)


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield CPU and memory of each case.

    Raises:
        NotHereError: Go or the command is missing.
    """
    if not PROGRAM.exists():
        raise NotHereError(f"wanted {PROGRAM}, found none; install the extra descheduler")
    for case in SMOKE if smoke else CASES:
        yield from _measure(case, rounds=1 if smoke else 3)


def _measure(case: Case, rounds: int) -> Iterator[Row]:
    with Bed() as bed:
        bed.seed(case.nodes, PODS_PER_NODE, REFRESH)
        config = descheduler_config(
            str(bed.kubeconfig),
            INTERVAL,
            dry_run=True,
            node_fit=case.node_fit,
            planner=case.planner,
        )
        command = [str(PROGRAM), "--config={config}", "--secure-port=0"]
        bed.run(command, config)
        found = follow(bed, rounds, begin="cycle.started", patterns=(ENDED, PLANNED), limit=300.0)
        peak = peak_mib(tree(bed.program.pid))
    seen = [_seen(one) for one in found]
    if not any(one.planned for one in seen):
        raise RuntimeError(f"{case.name}: wanted a round with evictions, found {seen}")
    middle = sorted(seen, key=lambda one: one.cpu_seconds)[len(seen) // 2]
    yield Row(
        f"LowNodeLoad, {case.name}",
        middle.cpu_seconds,
        "CPU s",
        case.cpu_seconds,
        case.go_cpu_seconds,
        GO if case.go_cpu_seconds else "",
    )
    yield Row("  its wall time", middle.seconds, "s")
    yield Row("  evictions planned", middle.planned, "pods")
    yield Row(
        "  peak resident memory", peak, "MiB", case.mib, case.go_mib, GO if case.go_mib else ""
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """A round, by its log."""

    seconds: float  # of wall time
    cpu_seconds: float
    planned: int  # evictions


def _seen(one: Round) -> Seen:
    found = [json.loads(line) for line in one.lines]
    [ended] = [entry for entry in found if entry["event"] == ENDED]
    return Seen(ended["seconds"], ended["cpu_seconds"], len(found) - 1)
