"""What Debian's kernel lacks, on one core with two threads: `tests/vm/run.sh --own-kernel`.

Core scheduling, and cold pages by idle page tracking. io.latency is a row of test_io_values.py.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koord.api.nodeslo import merge_nodeslo
from koord.api.qos import QOS_LABEL
from koord.util.simulatedclock import SimulatedClock
from koordlet.executor.claims.claim import Key, Target
from koordlet.host import resources as r
from koordlet.host.cpu_scheduler import COOKIE_TEXT, NEW_COOKIE, CookieWriter
from koordlet.host.errors import Unsupported
from koordlet.host.host import Host
from koordlet.host.idle_pages import IDLE_BITMAP, SCAN_AGE, IdleTracking
from koordlet.host.procfiles import parse_start_time
from koordlet.host.resource import Level
from koordlet.metriccache.kinds import (
    POD_MEMORY_COLD_PAGE_SIZE,
    POD_MEMORY_USAGE_WITH_PAGE_CACHE,
    POD_MEMORY_WITH_HOT_PAGE_USAGE,
)
from koordlet.plugin.testing import PluginHarness, make_pod
from koordlet_plugins.core_sched import GROUP_ID, CoreSched

from ..conftest import MIB, REAL, Process, Tree
from ..sampling import Node

OWN_KERNEL = "tests/vm/run.sh --own-kernel"
tracks_pages = pytest.mark.skipif(
    not (REAL.sys / IDLE_BITMAP).exists(), reason=f"needs idle page tracking: {OWN_KERNEL}"
)

BUSY = """
import time
print("up", flush=True)
while True:
    input()
    end, used = time.monotonic() + 3, time.process_time()
    while time.monotonic() < end:
        pass
    print(time.process_time() - used, flush=True)
"""


class Busy:
    """A process that takes all CPU there is for three seconds, when it is told."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", BUSY],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.pid = self._process.pid

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def host() -> Host:
    return Host(REAL)


@pytest.fixture
def busy(host: Host) -> Iterator[list[Busy]]:
    try:
        host.read(r.CORE_SCHED_COOKIE, str(os.getpid()))
    except Unsupported:
        pytest.skip(f"needs core scheduling: {OWN_KERNEL}")
    found = [Busy(), Busy()]
    assert [each.hear() for each in found] == ["up", "up"]
    yield found
    for each in found:
        each.end()


def key_of(process: Busy) -> Key:
    stat = Path(f"/proc/{process.pid}/stat").read_bytes()
    target = Target(Level.PROCESS, str(process.pid), parse_start_time(stat))
    return Key(target, r.CORE_SCHED_COOKIE)


def shared_cpu(processes: list[Busy]) -> float:
    """Seconds of CPU that they had in three seconds."""
    for each in processes:
        each.begin()
    return sum(float(each.hear()) for each in processes)


def test_cookies_of_two_groups_never_share_the_core(host: Host, busy: list[Busy]) -> None:
    """Together they have one thread of two; with one cookie both; restored there is none."""
    cookies = CookieWriter(host.paths)
    first, second = map(key_of, busy)
    siblings = Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list").read_text()
    assert siblings.strip() in ("0-1", "0,1")

    began = time.monotonic()
    cookies.write(first, 0, COOKIE_TEXT.of(NEW_COOKIE))
    gap = time.monotonic() - began
    cookies.write(second, 0, str(cookie_of(busy[0])))
    assert cookie_of(busy[0]) == cookie_of(busy[1]) != 0
    together = shared_cpu(busy)
    cookies.write(second, 0, COOKIE_TEXT.of(NEW_COOKIE))
    assert 0 != cookie_of(busy[0]) != cookie_of(busy[1]) != 0
    apart = shared_cpu(busy)

    print(f"a cookie takes {gap * 1000:.1f} ms; one has {together:.2f} CPU s, two {apart:.2f}")
    assert apart < 0.75 * together
    for each in (first, second):
        cookies.write(each, 0, "0")
    assert [cookie_of(each) for each in busy] == [0, 0]


def cookie_of(process: Busy | Process) -> int:
    return Host(REAL).read(r.CORE_SCHED_COOKIE, str(process.pid))


async def test_the_plugin_keeps_pods_of_two_groups_apart(tree: Tree, busy: list[Busy]) -> None:
    """Restored at its end; a container that starts has its cookie before its program runs."""
    pods = [make_pod(name, labels={QOS_LABEL: "LS", GROUP_ID: name}) for name in ("a", "b")]
    for process, meta in zip(busy, pods, strict=True):
        group = tree.make(meta.containers[0].cgroup)
        (tree.paths.cgroup / group.path / "cgroup.procs").write_text(str(process.pid))
    starting = make_pod("c", labels={QOS_LABEL: "LS", GROUP_ID: "a"})
    harness = PluginHarness(CoreSched(), pods=pods, host=tree, gates={"CoreSched"})
    strategy = {"policies": {"cpuPolicy": "coreSched"}, "lsClass": {"cpuQOS": {"enable": True}}}
    harness.set_node_slo(merge_nodeslo({"spec": {"resourceQOSStrategy": strategy}})[0])
    async with harness:
        await harness.rounds(1)
        first, second = map(cookie_of, busy)
        assert 0 != first != second != 0
        apart = shared_cpu(busy)

        program = tree.make(starting.containers[0].cgroup).run()
        began = time.monotonic()
        await harness.plugin.start(starting)
        gap = time.monotonic() - began
        assert cookie_of(program) == first
    assert [cookie_of(each) for each in (*busy, program)] == [0, 0, 0]
    for each in busy:
        each.end()

    print(f"{apart:.2f} CPU s in 3 s; a container that starts waits {gap * 1000:.1f} ms")
    assert apart < 4.5


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system on a loop device, with a file of 32 MiB that nobody has read."""
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(96 * MIB)
    run = ["mkfs.ext4", "-q", "-F", str(image)]
    subprocess.run(run, check=True, timeout=300)
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True, timeout=60)
    (place / "file").write_bytes(os.urandom(MIB) * 32)
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1\n")
    yield place
    subprocess.run(["umount", str(place)], check=True, timeout=60)


@tracks_pages
def test_pages_of_a_file_that_nobody_reads_are_cold(tree: Tree, disk: Path) -> None:
    """They are counted for the cgroup that has read them; those that are read again are not."""
    group = tree.make("kubepods/burstable/pod1")
    reader = group.run(f"import os\nfile = open({str(disk / 'file')!r}, 'rb', buffering=0)")
    reader.do(f"file.read({32 * MIB})")
    inode = os.stat(tree.paths.cgroup / group.path).st_ino
    tracking = IdleTracking(REAL, age=0.0)

    seconds = [a_pass(tracking)]  # which only marks
    seconds.append(a_pass(tracking))
    cold = tracking.cold.get(inode, 0)
    reader.do(f"file.seek(0)\nfile.read({16 * MIB})")
    seconds.append(a_pass(tracking))
    rest = tracking.cold.get(inode, 0)
    reader.end()

    print(f"cold {cold / MIB:.1f} MiB, then {rest / MIB:.1f}; CPU seconds of passes: {seconds}")
    assert 30 * MIB <= cold <= 34 * MIB
    assert 14 * MIB <= rest <= 18 * MIB


@tracks_pages
def test_the_collector_counts_what_is_not_read_for_300_seconds(tree: Tree, disk: Path) -> None:
    """By pod, from the second pass over all memory on, with the clock put forward."""
    uid = "9dba1d9e-67ba-4db6-8a73-fb3ea297c363"
    group = tree.make(f"kubepods/burstable/pod{uid}/{'c' * 64}")
    reader = group.run(f"file = open({str(disk / 'file')!r}, 'rb', buffering=0)")
    reader.do(f"file.read({32 * MIB})")
    clock = SimulatedClock()
    node = Node(tree, clock)
    try:
        for _ in range(2):
            for _ in range(20):
                clock.tick(1.0)
                node.tick()
            clock.tick(SCAN_AGE)
        node.tick()
        cold = node.value(POD_MEMORY_COLD_PAGE_SIZE, uid)
        hot = node.value(POD_MEMORY_WITH_HOT_PAGE_USAGE, uid)
        used = node.value(POD_MEMORY_USAGE_WITH_PAGE_CACHE, uid)
    finally:
        node.close()
        reader.end()

    print(f"cold {cold / MIB:.1f} MiB of {used / MIB:.1f}")
    assert 30 * MIB <= cold <= 34 * MIB
    assert hot == pytest.approx(used - cold, abs=MIB)


def a_pass(tracking: IdleTracking) -> float:
    """Go over all memory, a budget of 50 ms at a time; the CPU seconds that it took."""
    began = time.thread_time()
    tracking.advance(time.monotonic(), 0.05)
    while tracking.under_way:
        tracking.advance(time.monotonic(), 0.05)
    return round(time.thread_time() - began, 3)
