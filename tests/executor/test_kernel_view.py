"""What a plugin sees of the kernel: values off the loop, over files that stay open."""

import pytest

from koordlet.api.qos import KubeQoS
from koordlet.executor.kernelview import KernelView, Reading
from koordlet.executor.worker import InlineWorker, ThreadWorker
from koordlet.host.descriptors import IDLE_TICKS, Descriptors
from koordlet.host.host import Host
from koordlet.host.layout import Driver, Layout
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
        Reading(-1, clock.monotonic()),
        None,
        Reading(frozenset(range(4)), clock.monotonic()),
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
    """A kernel that lacks a file is told from one that has it."""
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


async def test_files_stay_open_until_nobody_reads_them(fake, clock):
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


async def test_the_kernel_is_read_in_a_thread(fake, clock):
    """A slow file holds neither the event loop nor later looks for ever."""
    worker = ThreadWorker("test-look")
    view = KernelView(Host(fake.paths, Descriptors(0)), worker, clock)
    assert await view.read(CPU_QUOTA, BE) == -1
    worker.close()
