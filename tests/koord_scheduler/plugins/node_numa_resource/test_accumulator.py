"""The CPU accumulator, by the worked cases of Koordinator's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.machine import format_cpulist, parse_cpulist
from koord.api.nodetopology import BindPolicy
from koord_scheduler_plugins.node_numa_resource.accumulator import (
    FAILED,
    NOT_ENOUGH,
    CpuLayout,
    CpuUse,
    ExclusivePolicy,
    TooFewCpus,
    take_cpus,
)
from tests.support.scheduler.numa import layout_of, use_of

FULL, SPREAD = BindPolicy
NONE, PCPU, NUMA = ExclusivePolicy


def taken(
    use: CpuUse,
    count: int,
    policy: BindPolicy,
    exclusive: ExclusivePolicy = NONE,
    *,
    most: bool = True,
) -> str:
    free = {cpu for cpu in use.layout.all if use.counts.get(cpu, 0) < use.max_count}
    return format_cpulist(take_cpus(use, free, count, policy, exclusive, most=most))


@pytest.mark.parametrize(
    ("shape", "alloc", "count", "most", "least"),
    [
        pytest.param("1x1x4x2", "", 2, "0-1", "0-1", id="C1"),
        pytest.param("1x1x4x2", "0,1", 2, "2-3", "2-3", id="C2"),
        pytest.param("2x1x4x2", "", 8, "0-7", "0-7", id="C3"),
        pytest.param("2x1x4x2", "", 12, "0-11", "0-11", id="C4"),
        pytest.param("2x1x4x2", "0,1", 8, "8-15", "8-15", id="C5"),
        pytest.param("2x2x4x2", "0-5,16-23", 6, "24-29", "8-13", id="C6"),
        pytest.param("2x2x4x2", "0-5,16-23", 12, "6-15,24-25", "6-15,24-25", id="C7"),
        pytest.param("2x2x4x2", "0-3,8-11", 4, "4-7", "16-19", id="C8"),
        pytest.param("2x2x2x2", "0,2,4,8,12", 4, "10-11,14-15", "10-11,14-15", id="C9"),
        pytest.param("2x2x2x2", "0,2,4,8,10,12", 6, "5-7,13-15", "1,3,6-7,14-15", id="C10"),
        pytest.param("2x2x2x2", "0,2,4,8,9,10,12", 6, "6-7,11,13-15", None, id="C11"),
        pytest.param("2x2x4x2", "0,2,4,8,9,10,12", 6, None, "16-21", id="C12"),
    ],
)
def test_whole_cores(shape: str, alloc: str, count: int, most: str, least: str) -> None:
    use = use_of(layout_of(shape), alloc)
    assert most is None or taken(use, count, FULL) == most
    assert least is None or taken(use, count, FULL, most=False) == least


def test_more_than_there_are() -> None:
    with pytest.raises(TooFewCpus, match=NOT_ENOUGH):  # C13
        taken(use_of(layout_of("2x1x4x2")), 17, FULL)
    assert FAILED != NOT_ENOUGH
    assert taken(use_of(layout_of("2x1x4x2")), 0, FULL) == ""


@pytest.mark.parametrize(
    ("shape", "alloc", "count", "most", "least"),
    [
        pytest.param("1x1x4x2", "", 4, "0,2,4,6", "0,2,4,6", id="S1"),
        pytest.param("2x1x4x2", "0,2", 4, "1,3-4,6", "8,10,12,14", id="S2"),
        pytest.param("2x1x4x2", "0-3", 4, "8,10,12,14", "8,10,12,14", id="S3"),
        pytest.param("2x1x4x2", "0,2", 6, "1,3-7", "8-12,14", id="S4"),
        pytest.param("2x2x4x2", "", 20, "0-8,10,12,14,16,18,20,22,24,26,28,30", None, id="S5"),
        pytest.param("2x1x16x2", "", 2, "0,2", None, id="S6"),
        pytest.param("2x1x16x2", "0,2", 2, "1,3", None, id="S8"),
    ],
)
def test_one_thread_of_each_core(shape: str, alloc: str, count: int, most: str, least: str) -> None:
    use = use_of(layout_of(shape), alloc)
    assert taken(use, count, SPREAD) == most
    assert least is None or taken(use, count, SPREAD, most=False) == least


@pytest.mark.parametrize(
    ("shape", "alloc", "recorded", "own", "policy", "count", "found"),
    [
        pytest.param("2x1x4x2", "0,2", PCPU, PCPU, SPREAD, 4, "8,10,12,14", id="E1"),
        pytest.param("2x1x4x2", "", PCPU, PCPU, SPREAD, 10, "0-4,6,8,10,12,14", id="E2"),
        pytest.param("2x1x8x2", "0,2", PCPU, PCPU, SPREAD, 4, "4,6,8,10", id="E3"),
        pytest.param("2x1x8x2", "0,2", PCPU, NONE, SPREAD, 4, "1,3-4,6", id="E4"),
        pytest.param("2x1x4x2", "0,2", NUMA, NUMA, SPREAD, 4, "8,10,12,14", id="E5"),
        pytest.param("2x1x4x2", "0,2", NUMA, NONE, SPREAD, 4, "1,3-4,6", id="E6"),
        pytest.param("2x1x4x2", "0,2", NUMA, NUMA, FULL, 4, "8-11", id="E7"),
        pytest.param("2x1x4x2", "0,2", NUMA, NONE, FULL, 4, "4-7", id="E8"),
    ],
)
def test_exclusive_policies(
    shape: str,
    alloc: str,
    recorded: ExclusivePolicy,
    own: ExclusivePolicy,
    policy: BindPolicy,
    count: int,
    found: str,
) -> None:
    assert taken(use_of(layout_of(shape), alloc, recorded), count, policy, own) == found


@pytest.mark.parametrize(
    ("shape", "steps"),
    [
        ("1x1x4x2", [(FULL, 4, "0-3"), (FULL, 5, "0,4-7"), (FULL, 4, "2-5")]),
        (
            "1x1x16x2",
            [
                (SPREAD, 16, "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30"),
                (FULL, 16, "0-15"),
                (SPREAD, 16, "1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31"),
                (FULL, 16, "16-31"),
            ],
        ),
    ],
)
def test_a_cpu_that_two_pods_can_have(shape: str, steps: list[tuple[BindPolicy, int, str]]) -> None:
    layout, counts = layout_of(shape), dict[int, int]()
    for policy, count, wanted in steps:
        found = taken(use_of(layout, counts=counts, max_count=2), count, policy)
        assert found == wanted
        for cpu in parse_cpulist(found):
            counts[cpu] = counts.get(cpu, 0) + 1
    if shape == "1x1x16x2":
        with pytest.raises(TooFewCpus):
            taken(use_of(layout, counts=counts, max_count=2), 1, FULL)


@pytest.mark.parametrize(
    ("shape", "steps"),
    [
        pytest.param("2x1x4x2", [(FULL, 4, "0-3"), (FULL, 4, "8-11")], id="a"),
        pytest.param(
            "2x2x8x2",
            [(FULL, 6, "0-5"), (FULL, 10, "32-41"), (FULL, 20, "6-25")],
            id="b",
        ),
        pytest.param(
            "2x1x4x1", [(SPREAD, 2, "0-1"), (SPREAD, 3, "4-6"), (FULL, 3, "2-3,7")], id="c"
        ),
    ],
)
def test_one_pod_after_the_other(shape: str, steps: list[tuple[BindPolicy, int, str]]) -> None:
    layout, had = layout_of(shape), ""
    for policy, count, wanted in steps:
        found = taken(use_of(layout, had), count, policy, most=False)
        assert found == wanted
        had = f"{had},{found}" if had else found


SHAPES = st.sampled_from(["1x1x4x2", "2x1x4x2", "2x2x2x2", "2x1x4x1", "1x4x2x2", "4x1x2x4"])


@given(
    shape=SHAPES,
    policy=st.sampled_from(BindPolicy),
    exclusive=st.sampled_from(ExclusivePolicy),
    most=st.booleans(),
    data=st.data(),
)
def test_as_many_as_wanted_and_only_free_ones(
    shape: str, policy: BindPolicy, exclusive: ExclusivePolicy, most: bool, data: st.DataObject
) -> None:
    layout = layout_of(shape)
    had = data.draw(st.sets(st.sampled_from(sorted(layout.all))))
    use = use_of(layout, format_cpulist(had), exclusive)
    free = layout.all - had
    count = data.draw(st.integers(0, len(free)))
    found = take_cpus(use, free, count, policy, exclusive, most=most)
    assert len(found) == count
    assert found <= free
    again = take_cpus(use, sorted(free, reverse=True), count, policy, exclusive, most=most)
    assert again == found
    with pytest.raises(TooFewCpus):
        take_cpus(use, free, len(free) + 1, policy, exclusive, most=most)


def test_a_core_with_one_thread_is_whole() -> None:
    """A hybrid machine: two cores of two threads, two of one."""
    layout = CpuLayout(
        [(0, 0, 0, 0), (1, 0, 0, 0), (2, 1, 0, 0), (3, 1, 0, 0), (4, 2, 0, 0), (5, 3, 0, 0)]
    )
    assert layout.cpus_per_core == 2
    assert taken(use_of(layout, "0"), 4, FULL) == "2-5"
