"""A plugin's view of the kernel: values off the loop, over files that stay open."""

import asyncio
import threading

import pytest

from koord.api.qos import KubeQoS
from koord.util.clock import SystemClock
from koordlet.executor.kernel.view import (
    InlineWorker,
    KernelView,
    ThreadWorker,
    ValueWatcher,
    WatchedValue,
)
from koordlet.host.cgroups.layout import Driver, Layout
from koordlet.host.files import IDLE_TICKS, Descriptors
from koordlet.host.host import Host
from koordlet.host.resources import CPU_IDLE, CPU_QUOTA, CPU_USAGE, CPUSET_CPUS
from koordlet.plugin.testing import FakeHost, SimulatedClock

BE = "kubepods/besteffort"


@pytest.fixture(params=[1, 2])
def fake(request, tmp_path):
    return FakeHost(tmp_path, version=request.param)


@pytest.fixture
def clock():
    return SimulatedClock()


@pytest.fixture
def view(fake, clock):
    return KernelView(Host(fake.paths, Descriptors(0)), InlineWorker(), clock)


async def test_values_and_what_is_missing(view, fake, clock):
    """Each reading has its time; what cannot be read is None and spoils nothing else."""
    fake.group(BE).use_cpu(1.5)
    readings = await view.read_many(
        [(CPU_QUOTA, BE), (CPU_QUOTA, "kubepods/gone"), (CPUSET_CPUS, BE)]
    )
    assert readings == [
        WatchedValue(-1, clock.monotonic()),
        None,
        WatchedValue(frozenset(range(4)), clock.monotonic()),
    ]
    assert await view.read(CPU_USAGE, BE) == 2_500_000_000  # a group begins with a second
    assert await view.read(CPU_USAGE, "kubepods/gone") is None


async def test_groups_below_come_parents_first(view, fake):
    """Sandboxes are among them; a group that is not there has none."""
    pods = [fake.add_pod(uid, KubeQoS.BEST_EFFORT) for uid in ("u2", "u1")]
    found = await view.groups_below(BE, 2)
    assert found[:2] == sorted(pod.group.path for pod in pods)
    assert set(found[2:]) == {
        group.path for pod in pods for group in (*pod.containers.values(), pod.sandbox)
    }
    assert await view.groups_below(BE, 1) == found[:2]
    assert await view.groups_below("kubepods/gone", 2) == []


async def test_support(view, fake, clock):
    """A kernel that lacks a file is distinguished from one that has it."""
    assert await view.supports(CPU_IDLE, BE)
    for file in fake.paths.cgroup.rglob("cpu.idle"):
        file.unlink()
    other = KernelView(Host(fake.paths, Descriptors(0)), InlineWorker(), clock)
    assert not await other.supports(CPU_IDLE, BE)


async def test_the_layout_follows_the_pods(fake, clock):
    """A kubelet that makes its cgroups after the daemon's start is found all the same."""
    layouts = [Layout.default(Driver.SYSTEMD)]
    view = KernelView(
        Host(fake.paths, Descriptors(0)), InlineWorker(), clock, layout=lambda: layouts[-1]
    )
    assert view.layout.root == "kubepods.slice"
    layouts.append(fake.layout)
    assert view.layout.root == "kubepods"
    assert await view.supports(CPU_IDLE, BE)


async def test_files_stay_open_until_no_reader_needs_them(fake, clock):
    """A file that is read each second is opened once; one that is read no more is closed."""
    descriptors = Descriptors()
    view = KernelView(Host(fake.paths, descriptors), InlineWorker(), clock)
    await view.read(CPU_QUOTA, BE)
    for _ in range(2 * IDLE_TICKS):
        await view.read(CPU_USAGE, BE)
        clock.tick(1.0)
    assert descriptors.stats().opens == 2
    assert descriptors.stats().held == 1
    descriptors.close()


def some_reads():
    """One value that is there, and one that is not."""
    return [(CPU_QUOTA, BE), (CPU_QUOTA, "kubepods/gone")]


async def test_a_watch_ends_when_it_matters(view, fake, clock):
    """Each reading is shown, until one matters or the time is over."""
    seen = []

    def third(readings):
        seen.append(readings)
        return len(seen) == 3

    watching = asyncio.create_task(view.watch(some_reads(), 0.1, third, 1.0))
    await clock.advance(0.35)
    assert watching.result() is True
    assert [[reading and reading.value for reading in readings] for readings in seen] == [
        [-1, None]
    ] * 3
    watching = asyncio.create_task(view.watch(some_reads(), 0.1, lambda _: False, 1.0))
    await clock.advance(1.1)
    assert watching.result() is False


class TestWatcher:
    """The same in a thread, in real time."""

    @pytest.fixture
    def watcher(self, fake):
        worker = ThreadWorker("test-watch")
        yield ValueWatcher(Host(fake.paths, Descriptors(0)), worker, SystemClock())
        worker.close()

    async def test_it_calls_in_another_thread(self, watcher, fake):
        """The event loop hears of it once, at the end."""
        threads = []

        def second(readings):
            threads.append(threading.current_thread())
            return len(threads) == 2

        assert await watcher.watch(some_reads(), 0.001, second, 60.0)
        assert threading.main_thread() not in threads

    async def test_it_ends_with_its_time(self, watcher, fake):
        """Nobody has to be noticed."""
        assert not await watcher.watch(some_reads(), 0.001, lambda _: False, 0.01)

    async def test_it_ends_without_a_waiter(self, watcher, fake):
        """A plugin that is stopped does not leave a thread behind that is busy."""
        started, loop = asyncio.Event(), asyncio.get_running_loop()

        def notice(readings):
            loop.call_soon_threadsafe(started.set)
            return False

        watching = asyncio.create_task(watcher.watch(some_reads(), 0.001, notice, 600.0))
        await started.wait()
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        assert not await watcher.watch(some_reads(), 0.001, lambda _: False, 0.001)
