"""The cost of rare hardware for the daemon: resctrl, and descriptions of devices.

On plain files, as no machine of the tests has either: the kernel's own share is not in it.
"""

import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.table import Row
from koord.util.clock import SystemClock
from koord.util.ownedfiles import OwnedDirectory
from koordlet.executor.claims.claim import ClaimState, DesiredValue, Key, Target
from koordlet.executor.journal import Journal
from koordlet.executor.kernel.writer import Writer
from koordlet.host.devices import XpuFiles, read_rdma_interfaces
from koordlet.host.host import Host
from koordlet.host.object_writers import ObjectWriter
from koordlet.host.objects import RESCTRL_GROUPS, RESCTRL_MEMBERSHIPS
from koordlet.host.resctrl import DEFAULT_GROUP, ResctrlTaskWriter
from koordlet.host.resource import Level, ObjectKind
from koordlet.host.resources import RESCTRL_GROUP, RESCTRL_L3, RESCTRL_MB, RESCTRL_TASKS
from koordlet.plugin.testing import FakeHost
from koordlet.plugin.testing.kernel import FakeKernelValues, FakeResctrl, FakeResctrlGroups

CLASSES = ("LSR", "LS", "BE")
PROCESSES = 300  # of 150 pods
DEVICES = 8  # of each kind, as in the largest usual machines
FUNCTIONS = 16  # virtual ones of an RDMA interface
TMPFS = "/dev/shm"  # files as fast as the kernel's


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield wall time of resctrl by kind of value, and CPU time of a look at the devices."""
    rounds = 1 if smoke else 5
    took: dict[str, list[float]] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=TMPFS) as directory:
            for name, seconds in _resctrl(Path(directory)):
                took.setdefault(name, []).append(seconds * 1e3)
    plain = statistics.median(took.pop("plain"))
    for name, times in took.items():
        yield Row(f"resctrl: {name}", statistics.median(times), "ms", None, plain,
                  f"{PROCESSES} x open, write, close")  # fmt: skip
    with tempfile.TemporaryDirectory(dir=TMPFS) as directory:
        yield from _devices(Path(directory), 10 if smoke else 200)


def _resctrl(directory: Path) -> Iterator[tuple[str, float]]:
    """Seconds to make the groups, to fill them, and to restore all of it."""
    fake = FakeHost(directory / "host", 2)
    FakeResctrl(fake)
    proc = fake.paths.proc
    for pid in range(1, PROCESSES + 1):
        fake.write(f"proc/{pid}/stat", f"{pid} (it) S 1 1 1 0 -1{' 0' * 9} 20 0 1 0 {pid} 0 0\n")
        fake.write(f"proc/{pid}/cpu_resctrl_groups", "res:/\nmon:\n")
        (proc / f"{pid}/task/{pid}").mkdir(parents=True)
    (directory / "run").mkdir()
    start = time.perf_counter()
    for pid in range(1, PROCESSES + 1):
        fd = os.open(fake.paths.resctrl / "tasks", os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"%d\n" % pid)
        os.close(fd)
    yield "plain", time.perf_counter() - start

    host = Host(fake.paths)
    object_writers: dict[ObjectKind, ObjectWriter] = {
        RESCTRL_GROUPS: _Groups(host.paths),
        RESCTRL_MEMBERSHIPS: _Tasks(host.paths),
    }
    values = FakeKernelValues(host, object_writers=object_writers)
    journal = Journal(OwnedDirectory.open(directory / "run"), "this-boot")
    writer = Writer(host, journal, SystemClock(), values=values)
    groups = [_value(RESCTRL_GROUP, Target.resctrl(name), "present") for name in CLASSES]
    lines = [
        _value(row, Target.resctrl(name), text)
        for name in CLASSES
        for row, text in ((RESCTRL_L3, "0=f;1=f"), (RESCTRL_MB, "0=30;1=30"))
    ]
    moves = [
        _value(RESCTRL_TASKS, Target(Level.PROCESS, str(pid), pid), CLASSES[pid % len(CLASSES)])
        for pid in range(1, PROCESSES + 1)
    ]
    for name, batches in (
        (f"{len(CLASSES)} groups made and divided", (groups, lines)),
        (f"{PROCESSES} processes moved", (moves,)),
    ):
        start = time.perf_counter()
        for batch in batches:
            results = writer.apply(batch)
            refused = [each for each in results if each.state is not ClaimState.IN_FORCE]
            if refused:
                raise RuntimeError(f"not in force: {refused[0]}")
        yield name, time.perf_counter() - start
    start = time.perf_counter()
    writer.restore([each.key for each in (*moves, *lines, *groups)])
    yield "all of it restored", time.perf_counter() - start
    if list(writer.ledger):
        raise RuntimeError("values were not restored")
    journal.close()
    host.descriptors.close()


class _Groups(FakeResctrlGroups):
    """Removes a group without a look at the processes that were in it: there are none any more."""

    def remove(self, directory: int, name: str) -> None:
        shutil.rmtree(Path(self._root) / name)


class _Tasks(ResctrlTaskWriter):
    """Moves threads without what a fake does to be as strict as the kernel."""

    def append(self, tasks: int, thread: int) -> None:
        super().append(tasks, thread)
        group = Path(os.readlink(f"/proc/self/fd/{tasks}")).parent.name
        shown = DEFAULT_GROUP if group == self._paths.resctrl.name else group
        (self._paths.proc / f"{thread}/cpu_resctrl_groups").write_text(f"res:{shown}\nmon:\n")


def _value(row: object, target: Target, wanted: str) -> DesiredValue:
    return DesiredValue(Key(target, row), wanted, owners=("Benchmark",))  # type: ignore[arg-type]


def _devices(directory: Path, rounds: int) -> Iterator[Row]:
    """CPU milliseconds of a look, which comes once a minute at most."""
    infos = directory / "infos"
    infos.mkdir()
    (infos / "all.json").write_text(json.dumps([_xpu(minor) for minor in range(DEVICES)]))

    def parse() -> None:
        json.loads((infos / "all.json").read_bytes())

    plain = _cpu(parse, rounds)
    first = _cpu(lambda: XpuFiles(infos).read(), rounds)
    files = XpuFiles(infos)
    files.read()
    again = _cpu(files.read, rounds)
    yield Row(f"{DEVICES} devices of a file, first look", first, "ms", None, plain, "json.loads")
    yield Row(f"{DEVICES} devices of a file, unchanged", again, "ms", None, plain, "json.loads")

    sys = directory / "sys"
    read = [path for card in range(DEVICES) for path in _card(sys, card)]

    def read_all() -> None:
        for path in read:
            path.read_bytes()

    found = read_rdma_interfaces(sys)
    if len(found) != DEVICES or len(found[0].functions) != FUNCTIONS:
        raise RuntimeError(f"wanted {DEVICES} interfaces, found {found}")
    plain = _cpu(read_all, rounds)
    look = _cpu(lambda: read_rdma_interfaces(sys), rounds)
    yield Row(f"{DEVICES} RDMA interfaces", look, "ms", None, plain, f"{len(read)} x read")


def _xpu(minor: int) -> dict[str, object]:
    return {
        "vendor": "example",
        "model": "E1",
        "uuid": f"E-{minor}",
        "minor": minor,
        "resources": {"gpu-core": "100", "gpu-memory": "64Gi"},
        "topology": {
            "nodeID": 0,
            "pcieID": "pci0000:3a",
            "busID": f"0000:3b:{minor:02x}.0",
            "p2pLinks": [{"peerMinor": "0,1,2,3", "type": "HCCS"}],
        },
        "status": {"healthy": True},
    }


def _card(sys: Path, number: int) -> Iterator[Path]:
    """A network card with RDMA and virtual functions; yields the files that a look reads."""
    root = sys / "devices/pci0000:00"
    bus = sys / "bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    real = root / f"0000:{number:02x}:00.0"
    device = real / f"infiniband/mlx5_{number}"
    port = device / "ports/1"
    port.mkdir(parents=True)
    for path, text in (
        (real / "class", "0x020000\n"),
        (real / "numa_node", "0\n"),
        (port / "state", "4: ACTIVE\n"),
    ):
        path.write_text(text)
        yield path
    (bus / real.name).symlink_to(real)
    for function in range(FUNCTIONS):
        virtual = root / f"0000:{number:02x}:{1 + function // 8:02x}.{function % 8}"
        virtual.mkdir()
        (real / f"virtfn{function}").symlink_to(virtual)
    classes = sys / "class/infiniband"
    classes.mkdir(parents=True, exist_ok=True)
    (classes / device.name).symlink_to(device)
    (device / "device").symlink_to(real)


def _cpu(work: Callable[[], object], rounds: int) -> float:
    """Median milliseconds of CPU time."""
    took = []
    for _ in range(rounds):
        start = time.thread_time()
        work()
        took.append((time.thread_time() - start) * 1e3)
    return statistics.median(took)
