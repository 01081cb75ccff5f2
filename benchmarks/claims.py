"""Claims on a real kernel: the time to set, sweep and restore 1,000 values."""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.table import Row
from benchmarks.tree import pod_tree
from koord.util.clock import SystemClock
from koord.util.ownedfiles import OwnedDirectory
from koordlet.executor.claims.claim import DesiredValue, Key, Target
from koordlet.executor.journal import Journal, JournalRecord
from koordlet.executor.kernel.writer import Writer
from koordlet.host.files import raise_nofile
from koordlet.host.host import Host
from koordlet.host.paths import HostPaths
from koordlet.host.resource import Level
from koordlet.host.resources import CPU_QUOTA, CPU_SHARES, MEMORY_LIMIT

VALUES = 1000
PODS = 150  # 450 groups
DESIRED = {CPU_QUOTA: 80_000, CPU_SHARES: 512, MEMORY_LIMIT: 256 << 20}
APPENDS = 2000
TMPFS = "/run"


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield seconds of wall time for 1,000 values, and milliseconds per journal append."""
    rounds = 1 if smoke else 9
    with pod_tree(PODS) as groups, tempfile.TemporaryDirectory(dir=TMPFS) as directory:
        took = _squeeze(groups, Path(directory), rounds)
    plain = took["plain"]
    for what, budget in (("set", None), ("swept", None), ("restored after a kill", 0.5)):
        yield Row(f"{VALUES} values {what}", took[what], "s", budget, plain, "open, write, close")
    with tempfile.TemporaryDirectory(dir=TMPFS) as directory:
        first, later = _append(Path(directory), APPENDS // (10 if smoke else 1))
    yield Row("journal: a value's original, on tmpfs", first, "ms", 1.0)
    yield Row("journal: a later value, on tmpfs", later, "ms", 1.0)


def _squeeze(groups: Sequence[str], directory: Path, rounds: int) -> dict[str, float]:
    """Set, sweep and restore, with a new writer for each, as of a process that has just started."""
    raise_nofile(2 * VALUES)
    keys = [
        Key(Target(Level.CONTAINER, group), row) for group in reversed(groups) for row in DESIRED
    ][:VALUES]
    desired_values = [
        DesiredValue(key, DESIRED[key.resource], None, ("Benchmark",)) for key in keys
    ]
    paths = Host(HostPaths.for_mode("hostMode"))
    files = [paths.path(key.resource, key.target.place) for key in keys]
    times: dict[str, list[float]] = {}

    def measure(what: str, work: Callable[[], object]) -> None:
        start = time.perf_counter()
        work()
        times.setdefault(what, []).append(time.perf_counter() - start)

    for _ in range(rounds):
        host = Host(HostPaths.for_mode("hostMode"))
        measure("plain", partial(_rewrite, files))
        writer = _writer(host, directory)
        measure("set", partial(writer.apply, desired_values))
        measure("swept", writer.sweep)
        writer.ledger.journal.close()
        writer = _writer(host, directory)
        measure("restored after a kill", partial(writer.restore, writer.unclaimed()))
        if writer.unclaimed():
            raise RuntimeError("values were not restored")
        writer.ledger.journal.close()
        host.descriptors.close()
    return {what: statistics.median(found) for what, found in times.items()}


def _writer(host: Host, directory: Path) -> Writer:
    return Writer(host, Journal(OwnedDirectory.open(directory), "this-boot"), SystemClock())


def _rewrite(files: Sequence[str]) -> None:
    """Rewrite the present values with plain open, write and close."""
    for file in files:
        with open(file, "r+") as opened:
            text = opened.read()
            opened.write("-1" if text.startswith("922337203685477") else text)


def _append(directory: Path, count: int) -> tuple[float, float]:
    """Median milliseconds of a first and of a later record."""
    journal = Journal(OwnedDirectory.open(directory), "this-boot")
    first, later = [], []
    for number in range(count):
        place = f"kubepods/besteffort/pod{number}"
        record = JournalRecord(
            "cpu_quota", "pod", place, 0, number, ("Benchmark",), "-1", "-1", "5000"
        )
        start = time.perf_counter()
        [given] = journal.begin([record])
        first.append(time.perf_counter() - start)
        start = time.perf_counter()
        journal.record(given, "-1", "5000", "6000")
        later.append(time.perf_counter() - start)
    journal.close()
    return 1000 * statistics.median(first), 1000 * statistics.median(later)
