"""Forks writers of a metric cache for the kill test: one per line of input, reported by its pid.

Tick t writes t * 1000 + n for steady series n, and t for a series that changes every 50 ticks, so
that rows are made, reused and grown while writers die. A file records the latest tick that was
begun and the latest that was completed.
"""

import os
import struct
import sys
from pathlib import Path

from koord.util.clock import Stamp
from koord.util.ownedfiles import OwnedDirectory
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import POD_CPU_USAGE, Cadence, RetentionClass, Sample

STEADY = 40
RETENTION = 100.0
FIRST_BOOT = 1000.0


class TickClock:
    """Time as the writer counts it: one second per tick."""

    tick = 0

    def boottime(self) -> float:
        return FIRST_BOOT + self.tick


def open_cache(directory: Path, clock: TickClock) -> MetricCache:
    return MetricCache(
        OwnedDirectory.open(directory.parent) / directory.name,
        "boot",
        clock,
        intervals=dict.fromkeys(Cadence, 1.0),
        retentions=dict.fromkeys(RetentionClass, RETENTION),
    )


def samples(tick: int) -> list[Sample]:
    changing = Sample(POD_CPU_USAGE, float(tick), (f"changing-{tick // 50}" + "x" * (tick // 500),))
    steady = [Sample(POD_CPU_USAGE, tick * 1000.0 + n, (f"steady-{n}",)) for n in range(STEADY)]
    return [*steady, changing]


def read_progress(path: Path) -> tuple[int, int]:
    """The latest tick that was begun, and the latest that was completed; 0 for none."""
    data = path.read_bytes() if path.exists() else b""
    begun, completed = struct.unpack("QQ", data.ljust(16, b"\0"))
    return begun, completed


def write(directory: Path, progress: Path) -> None:
    clock = TickClock()
    note = os.open(progress, os.O_RDWR | os.O_CREAT)
    clock.tick, _ = read_progress(progress)
    cache = open_cache(directory, clock)
    while True:
        clock.tick += 1
        os.pwrite(note, struct.pack("Q", clock.tick), 0)
        cache.append(Stamp(0.0, clock.boottime()), samples(clock.tick))
        os.pwrite(note, struct.pack("Q", clock.tick), 8)


def main() -> None:
    directory, progress = Path(sys.argv[1]), Path(sys.argv[2])
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            write(directory, progress)
        print(child, flush=True)
        os.waitpid(child, 0)
        print("gone", flush=True)


if __name__ == "__main__":
    main()
