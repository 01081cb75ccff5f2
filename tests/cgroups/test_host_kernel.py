"""The resource table on a real kernel.

What a resource means must not depend on the cgroup version.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from koordlet.executor.claims.table import claimable_levels
from koordlet.host import resources as r
from koordlet.host.errors import KernelFileError, Unsupported, Vanished
from koordlet.host.host import Host
from koordlet.host.resource import Level, Root

from .conftest import MIB, VERSION, Group, Tree, burn, touch

NAME = "kubepods/burstable/pod1"
BY_HELPER = (r.TRAFFIC_CLASSES, r.PROCESS_INTERFACE, r.SOCKET_GROUP)


@pytest.fixture
def host(make_host: Callable[[], Host]) -> Host:
    return make_host()


@pytest.fixture
def group(tree: Tree) -> Group:
    return tree.make(NAME)


def test_a_new_group_starts_from_nothing(host: Host, group: Group) -> None:
    """All files of the usage collectors are there and parse."""
    path = group.path

    assert host.version(r.MEMORY_STAT) == VERSION
    assert host.read(r.CPU_USAGE, path) == 0
    assert host.read(r.CPU_TIME, path) == (0, 0)
    assert host.read(r.CPU_THROTTLE, path) == (0, 0, 0)
    assert host.read(r.MEMORY_STAT, path).usage_with_page_cache == 0
    assert host.read(r.MEMORY_LIMIT, path) == -1
    assert sum(host.read(r.MEMORY_NUMA, path).values()) == 0
    assert (host.read(r.CPU_QUOTA, path), host.read(r.CPU_PERIOD, path)) == (-1, 100_000)
    assert host.read(r.CPU_SHARES, path) in (1024, 2597)  # the defaults: shares, and weight 100
    assert len(host.read(r.CPUSET_CPUS, path)) >= 1
    assert host.read(r.CGROUP_PROCS, path) == ()


def test_cpu_usage_is_what_the_processes_used(host: Host, group: Group) -> None:
    """Within 5 percent of the CPU time that the only process saw."""
    process = group.run(burn(0.4))
    usage = host.read(r.CPU_USAGE, group.path)
    process.end()

    assert usage / 1e9 == pytest.approx(process.cpu_seconds, rel=0.05)


def test_memory_usage_is_what_the_processes_hold(host: Host, group: Group) -> None:
    """Anonymous memory counts in full, and the sum over the NUMA nodes is the same."""
    process = group.run(touch(64 * MIB))
    try:
        stat = host.read(r.MEMORY_STAT, group.path)
        by_node = host.read(r.MEMORY_NUMA, group.path)
        raw = host.read(r.MEMORY_USAGE, group.path)
    finally:
        process.end()

    assert 63 * MIB < stat.usage < 90 * MIB
    assert sum(by_node.values()) == pytest.approx(stat.usage, rel=0.02)
    assert raw >= stat.usage * 0.98


def test_a_child_counts_for_its_parent(host: Host, group: Group) -> None:
    """A pod's memory and CPU are those of its containers."""
    child = group.tree.make(f"{group.path}/c1")
    process = child.run(touch(32 * MIB))
    try:
        assert host.read(r.MEMORY_STAT, group.path).usage > 31 * MIB
        assert sum(host.read(r.MEMORY_NUMA, group.path).values()) > 31 * MIB
        assert host.read(r.CPU_USAGE, group.path) >= host.read(r.CPU_USAGE, child.path) > 0
    finally:
        process.end()


def test_throttling_is_counted(host: Host, group: Group) -> None:
    """A process that wants more than its quota is throttled in each period."""
    group.write(r.CPU_QUOTA, "20000" if VERSION == 1 else "20000 100000")
    assert (host.read(r.CPU_QUOTA, group.path), host.read(r.CPU_PERIOD, group.path)) == (
        20_000,
        100_000,
    )

    group.run(burn(0.15)).end()
    throttle = host.read(r.CPU_THROTTLE, group.path)

    assert 1 <= throttle.nr_throttled <= throttle.nr_periods
    assert throttle.throttled_ns > 10_000_000


def test_limits_are_read_back(host: Host, group: Group) -> None:
    """The kernel holds the value that the table writes."""
    group.write(r.MEMORY_LIMIT, str(64 * MIB))
    group.write(r.CPU_SHARES, "512" if VERSION == 1 else "20")
    group.write(r.CPUSET_CPUS_WANTED, "0")

    assert host.read(r.MEMORY_LIMIT, group.path) == 64 * MIB
    assert host.read(r.CPU_SHARES, group.path) in (512, 500)
    assert host.read(r.CPUSET_CPUS, group.path) == {0}


def test_new_processes_are_seen_at_once(host: Host, group: Group) -> None:
    """Also when the list was read just before, which a v1 kernel would remember."""
    for _ in range(3):
        assert host.read(r.CGROUP_PROCS, group.path) == ()
        process = group.run()
        seen = host.read(r.CGROUP_PROCS, group.path)
        process.end()
        assert seen == (process.pid,)


def test_a_group_that_ends_has_vanished(host: Host, group: Group) -> None:
    """Its held files give ENODEV; they are closed, and a group of the same name starts anew."""
    group.run(burn(0.05)).end()
    resources = (r.CPU_USAGE, r.CPU_THROTTLE, r.MEMORY_STAT, r.MEMORY_NUMA)
    for resource in resources:
        host.read(resource, group.path)
    held = host.descriptors.stats().held
    assert held >= 3
    group.remove()

    for resource in resources:
        with pytest.raises(Vanished):
            host.read(resource, group.path)
    assert host.descriptors.stats().held == 0

    group.make()
    assert host.read(r.CPU_USAGE, group.path) == 0


def test_a_group_made_anew_between_reads(host: Host, group: Group) -> None:
    """Between two ticks a container can restart under the same name; no read is lost."""
    group.run(burn(0.05)).end()
    assert host.read(r.CPU_USAGE, group.path) > 0
    group.remove()
    group.make()

    assert host.read(r.CPU_USAGE, group.path) == 0


def test_a_process_that_ends_has_vanished(host: Host, group: Group) -> None:
    """The network files of a process are opened for each read, so they pin nothing."""
    process = group.run()
    assert "lo" in host.read(r.NET_DEV, str(process.pid))
    assert host.descriptors.stats().held == 0
    process.end()

    with pytest.raises(Vanished):
        host.read(r.NET_DEV, str(process.pid))


def test_pressure(host: Host, group: Group) -> None:
    """Read where the kernel has it: always on v2, on v1 if a unified hierarchy has the group."""
    if host.supports(r.CPU_PRESSURE, group.path):
        assert host.read(r.CPU_PRESSURE, group.path).some.total_us >= 0
    else:
        with pytest.raises(Unsupported):
            host.read(r.CPU_PRESSURE, group.path)
        assert VERSION == 1 or not Path("/proc/pressure").exists()


def test_every_row_reads_or_says_why_not(host: Host, group: Group) -> None:
    """No row of the table raises anything but the family, for a group that lives.

    Traffic classes have tests of their own: what is read by their helper starts it, in a group of
    this tree. A link has a speed only while it is up.
    """
    for resource in r.RESOURCES:
        if resource in BY_HELPER or resource is r.INTERFACE_SPEED:
            continue
        of_process = "1" if claimable_levels(resource) == (Level.PROCESS,) else ""
        argument = "0" if resource is r.NUMA_MEMINFO else of_process
        in_group = any(
            file.controller or file.root is Root.CGROUP for file in resource.files.values()
        )
        try:
            host.read(resource, argument or (group.path if in_group else ""))
        except Unsupported:
            continue
        except KernelFileError as err:
            raise AssertionError(f"{resource.name}: {err}") from err
