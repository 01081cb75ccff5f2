"""The split of the node's usage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.collectors.engine.usage import NO_USAGE, HostAppsUsage, Usage
from koordlet.collectors.node_usage import numa_cpu_shares, numa_memory_rest, system_usage
from koordlet.metriccache.kinds import SYS_CPU_USAGE, SYS_MEMORY_USAGE

NO_APPS = HostAppsUsage(NO_USAGE, NO_USAGE)
usages = st.builds(Usage, st.floats(0, 1e4), st.floats(0, 1e13))


@pytest.mark.parametrize(
    ("node", "pods", "apps", "system"),
    [
        ((1, 1024), (0.5, 512), (0, 0), (0.5, 512)),
        ((2, 2048), (1.5, 1024), (0, 0), (0.5, 1024)),
        ((1, 1024), (0.5, 512), (0.1, 128), (0.4, 384)),
        ((1, 1024), (1.2, 2000), (0, 0), (0, 0)),
    ],
)
def test_system_is_what_pods_and_host_applications_leave(node, pods, apps, system):
    """Koordinator's worked examples."""
    found = system_usage(Usage(*node), Usage(*pods), HostAppsUsage(NO_USAGE, Usage(*apps)), None)

    assert found == pytest.approx(system)


def test_a_pod_without_a_figure_is_not_system_usage():
    """The kubepods group as a whole knows what a pod in its first second uses."""
    found = system_usage(Usage(4, 4000), Usage(1, 1000), NO_APPS, Usage(2.5, 1800))

    assert found == (1.5, 2200)


def test_a_kubepods_group_with_less_than_its_pods_is_not_believed():
    """On cgroup v1 without use_hierarchy it counts only itself."""
    found = system_usage(Usage(4, 4000), Usage(1, 1000), NO_APPS, Usage(2.5, 0))

    assert found == (1.5, 3000)


def test_a_host_application_inside_kubepods_is_taken_off_once():
    """The kubepods group holds it already."""
    apps = HostAppsUsage(inside_kubepods=Usage(1, 100), outside=Usage(0.5, 50))

    assert system_usage(Usage(4, 400), Usage(1, 100), apps, Usage(2, 200)) == (1.5, 150)
    assert system_usage(Usage(4, 400), Usage(1, 100), apps, None) == (1.5, 150)


def test_system_cpu_is_divided_as_the_whole_cpu_usage():
    """The kernel does not show which NUMA node a group's CPU time was on."""
    assert numa_cpu_shares(0.8, {0: 1.0, 1: 3.0}) == pytest.approx({0: 0.2, 1: 0.6})
    assert numa_cpu_shares(0.8, {0: 0.0}) == {0: 0.0}


def test_system_memory_of_a_numa_node_is_what_pods_leave():
    """Never below zero; pods that have nothing on the node count nothing."""
    assert numa_memory_rest({0: 1024, 1: 2048, 2: 5}, {0: 512, 1: 4096}) == {0: 512, 1: 0, 2: 5}


@given(usages, usages, usages, usages, st.none() | usages)
def test_no_part_is_negative_or_larger_than_the_whole(node, pods, inside, outside, kubepods):
    """Parts are not read at the very same moment, so anything may come in."""
    found = system_usage(node, pods, HostAppsUsage(inside, outside), kubepods)

    assert 0 <= found.cpu <= node.cpu
    assert 0 <= found.memory <= node.memory


def test_a_part_may_be_missing_for_ten_seconds(machine):
    """A hiccup of one file does not make a hole; a lasting one is not papered over."""
    machine.tick()
    machine.tick()
    machine.host.write("proc/meminfo", "nonsense\n")

    assert [bool(machine.tick().get((SYS_CPU_USAGE.name,)) is not None) for _ in range(12)] == [
        *[True] * 10,
        False,
        False,
    ]
    assert machine.value(SYS_MEMORY_USAGE) is None
