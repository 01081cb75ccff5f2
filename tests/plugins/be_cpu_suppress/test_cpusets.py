"""The CPUs of best-effort pods: the worked examples of Koordinator's rules, and our own."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.annotations import RESOURCE_STATUS, is_pinned
from koord.api.machine import Cpu, CpuTopology, format_cpulist, parse_cpulist
from koord.api.pod import Pod
from koord.api.qos import QOS_LABEL
from koordlet_plugins.be_cpu_suppress.policies import BestEffortCpus, pick
from koordlet_plugins.be_cpu_suppress.usage import Allowance

T8 = tuple(Cpu(n // 4, n // 4, n // 2, n) for n in range(8))
T8B = tuple(Cpu(n % 4 // 2, n % 4 // 2, n % 4, n) for n in range(8))
T16 = tuple(Cpu(n // 8, n // 4, n // 2, n) for n in range(16))


def pod(qos: str, cpus: str, phase: str = "Running") -> Pod:
    status = json.dumps({"cpuset": cpus})
    return Pod("d", cpus, cpus, {QOS_LABEL: qos}, {RESOURCE_STATUS: status}, phase)


def of_node(cpus=T8, *pods: Pod, set_aside: str = "") -> BestEffortCpus:
    return BestEffortCpus.of_node(CpuTopology(cpus), pods, parse_cpulist(set_aside))


@pytest.mark.parametrize(
    ("count", "cpus", "picked"),
    [
        (3, T8B, [0, 4, 2]),
        (3, T8, [0, 1, 4]),
        (5, T16, [0, 1, 4, 5, 8]),
        (5, T16[::-1], [0, 1, 4, 5, 8]),
        (5, T8B, [0, 4, 2, 6, 1]),
        (1, T8B, [0]),
        (9, T8, [0, 1, 4, 5, 2, 3, 6, 7]),  # Koordinator picks none
        (2, (), []),
        (4, T8[1:], [4, 5, 2, 3]),  # the larger socket first
        (3, (T8[0], T8[2], T8[4], T8[6]), [0, 4, 2]),  # no whole core: one of each in turn
    ],
)
def test_pick(count, cpus, picked):
    """Whole cores first, from all sockets in turn."""
    assert pick(count, cpus) == picked


@given(st.sets(st.sampled_from(T16)), st.integers(0, 20))
def test_pick_gives_as_many_as_there_are(cpus, count):
    """No CPU twice, none that was not offered, and as many as were asked for."""
    picked = pick(count, cpus)
    assert len(set(picked)) == len(picked) == min(count, len(cpus))
    assert set(picked) <= {cpu.cpu for cpu in cpus}


LSR, LSE = pod("LSR", "0,6"), pod("LSE", "7")


@pytest.mark.parametrize(
    ("cpus", "pods", "set_aside", "left", "old", "chosen"),
    [
        (T8, [LSR, LSE], "", 3000, 4, "2-4"),
        (T8, [LSR, LSE], "3", 3000, 4, "0,4-5"),
        (T8, [LSR, LSE], "1-6", 3000, 4, "0"),  # Koordinator writes nothing
        (T16, [], "", 1200, 10, "0-1"),
        (T16, [], "", 12000, 4, "0-1,4-5,8-9"),
        (T16, [pod("LSR", "0-3")], "", 6000, 8, "0,4-5,8-9,12"),
        (T8, [pod("LSE", "0-7")], "", 3000, 4, ""),  # Koordinator divides by zero
        (T8, [pod("LSE", "0-7", "Succeeded")], "", 3000, 4, "0-1,4"),
        (T8, [pod("LSE", "0-3"), pod("LSR", "0-7")], "", 3000, 4, "4-6"),
        (T8, [], "", -5000, 4, "0-1"),
    ],
)
def test_choice(cpus, pods, set_aside, left, old, chosen):
    """Koordinator's examples: LSR pods lend their part, LSE pods nothing."""
    usable = of_node(cpus, *pods, set_aside=set_aside)
    count = usable.count(Allowance(left, left), old)
    assert format_cpulist(usable.choose(count)) == chosen


@pytest.mark.parametrize(
    ("least", "most", "now", "count"),
    [
        (3000, 6000, 4, 4),  # in between: nothing changes
        (3000, 3500, 6, 4),
        (8000, 9000, 4, 6),  # two more, a tenth of 16 rounded up
        (100, 200, 8, 2),
    ],
)
def test_count(least, most, now, count):
    """Fewer at once, more by a tenth of all, at least two."""
    assert of_node(T16).count(Allowance(least, most), now) == count


@pytest.mark.parametrize(
    ("pods", "set_aside", "pool"),
    [
        ([pod("LSE", "7")], "", "0-6,8-15"),
        ([pod("LSE", "7")], "0-1", "2-6,8-15"),
        ([pod("LSR", "1-3")], "", "0-15"),
    ],
)
def test_pool(pods, set_aside, pool):
    """Best-effort pods share all CPUs but exclusive ones."""
    usable = of_node(T16, *pods, set_aside=set_aside)
    assert format_cpulist(usable.pool) == pool
    assert usable.whole_node is (pool == "0-15")


@pytest.mark.parametrize(
    ("status", "pinned"),
    [
        ('{"cpuset": "0-1"}', True),
        ('{"numaNodeResources": [{"node": 0}]}', True),
        ('{"numaNodeResources": []}', False),
        ("{}", False),
        ("not json", False),
        (None, False),
    ],
)
def test_pinned(status, pinned):
    """The scheduler has chosen a place for a pod, or not; what is not understood is no place."""
    annotations = {} if status is None else {RESOURCE_STATUS: status}
    assert is_pinned(Pod("d", "p", "u", annotations=annotations)) is pinned
