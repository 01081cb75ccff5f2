"""The kernel reading part of a tick beside a C program that does nothing but pread."""

import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.table import Row
from benchmarks.tree import NotHereError, pod_tree
from koord.util.clock import SystemClock, stamp
from koordlet.collectors.engine.reader import Reader, ReadLease, SkippedReads
from koordlet.host.files import Descriptors, raise_nofile
from koordlet.host.host import Host
from koordlet.host.paths import HostPaths
from koordlet.host.resource import Resource
from koordlet.host.resources import CPU_THROTTLE, CPU_USAGE, MEMORY_STAT

PODS = 150
PER_GROUP = (CPU_USAGE, CPU_THROTTLE, MEMORY_STAT)  # read for each pod and container
ROUNDS = 20  # per turn; the turns of all contestants alternate, as others share the machine


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield CPU time per tick, held descriptors: C, reading, and reading with parsing."""
    with pod_tree(PODS) as groups, tempfile.TemporaryDirectory() as directory:
        program = _compile(Path(directory))
        paths = HostPaths.for_mode("hostMode")
        raise_nofile(2 * len(groups) * len(PER_GROUP))
        descriptors, reader = Descriptors(), _reader(paths)
        asked = _asked(groups)
        files = [reader.host.path(resource, group) for resource, group in asked]

        def read_all() -> None:
            for file in files:
                descriptors.read(file)

        def get_all() -> None:
            reader.begin(stamp(SystemClock()), (), None)
            for resource, group in asked:
                if reader.get(resource, group) is None:
                    raise RuntimeError(f"{resource.name} of {group} cannot be read")

        contestants: dict[str, Callable[[], float]] = {
            "c": lambda: _c_time(program, files),
            "read": lambda: _cpu_time(read_all),
            "get": lambda: _cpu_time(get_all),
        }
        took: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(2 if smoke else 10):
            for name, measure in contestants.items():
                took[name].append(measure())
        reader.close()
        descriptors.close()
    c, read, get = (statistics.median(took[name]) for name in contestants)
    what, reference = f"{len(files)} kernel files", "pread in C"
    yield Row(f"pread {what} in C", c, "ms")
    yield Row(f"read {what}", read, "ms", None, c, reference, 1.5)
    yield Row(f"read and parse {what}, as a tick", get, "ms", None, c, reference)


def _asked(groups: Sequence[str]) -> list[tuple[Resource[Any], str]]:
    return [(resource, group) for group in groups for resource in PER_GROUP]


def _reader(paths: HostPaths) -> Reader:
    clock = SystemClock()
    return Reader(Host(paths), ReadLease(clock), SkippedReads(clock), clock)


def _cpu_time(work: Callable[[], None]) -> float:
    """Median milliseconds of CPU time; the first round, which opens the files, does not count."""
    took = []
    for _ in range(ROUNDS + 1):
        start = time.thread_time()
        work()
        took.append((time.thread_time() - start) * 1e3)
    return statistics.median(took[1:])


def _c_time(program: Path, files: list[str]) -> float:
    response = subprocess.run(
        [program, str(ROUNDS)], input="\n".join(files), capture_output=True, check=True, text=True
    )
    return float(response.stdout) / 1e3


def _compile(directory: Path) -> Path:
    source, program = Path(__file__).with_name("pread.c"), directory / "pread"
    try:
        subprocess.run(["gcc", "-O2", "-o", program, source], check=True)
    except FileNotFoundError as err:
        raise NotHereError("wanted a C compiler, found no gcc; install one") from err
    return program
