"""The order of writes: worked examples, and any batch against the kernel's rules."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.machine import parse_cpulist
from koordlet.executor.kernel.plan import ValueChange, ordered_steps
from koordlet.host.resources import (
    CPU_BURST,
    CPU_IDLE,
    CPU_QUOTA,
    CPU_SHARES,
    CPUSET_CPUS_WANTED,
    MEMORY_MIN,
)
from tests.support.node.kernel_model import MOST, KernelModel, ModelGroup

TREE = ("be", "be/pod1", "be/pod1/c1", "be/pod1/c2", "be/pod2", "be/pod2/c1")


def written(*moves):
    """The writes as (place, value)."""
    steps = ordered_steps([ValueChange(*move) for move in moves])
    return [(moves[s.move][1], moves[s.move][3] if s.via is None else s.via) for s in steps]


def test_growing_goes_down_and_shrinking_goes_up():
    """As Koordinator's levelled batch for memory.min; each value is written once."""
    levels = ("qos", "qos/pod", "qos/pod/c")
    old, new = (100, 50, 50), (200, 150, 150)

    def order(a, b):
        rows = zip(levels, a, b, strict=True)
        return [place for place, _ in written(*((MEMORY_MIN, p, x, y) for p, x, y in rows))]

    assert order(old, new) == ["qos", "qos/pod", "qos/pod/c"]
    assert order(new, old) == ["qos/pod/c", "qos/pod", "qos"]


def test_a_cpuset_that_shifts_goes_through_the_union_and_is_tightened_at_once():
    """Not left wide until some later batch."""
    old, new = parse_cpulist("0-3"), parse_cpulist("2-5")
    rows = [(CPUSET_CPUS_WANTED, place, old, new) for place in ("be", "be/pod")]

    assert written(*rows) == [
        ("be", old | new),
        ("be/pod", old | new),
        ("be/pod", new),
        ("be", new),
    ]


@pytest.mark.parametrize(
    ("old", "new", "first"),
    [((50, 20), (100, 80), CPU_QUOTA), ((100, 80), (50, 20), CPU_BURST)],
)
def test_burst_is_never_above_quota(old, new, first):
    """The quota grows before the burst, and shrinks after it."""
    moves = [
        ValueChange(CPU_BURST, "p", old[1], new[1]),
        ValueChange(CPU_QUOTA, "p", old[0], new[0]),
    ]

    assert moves[ordered_steps(moves)[0].move].resource is first


def test_shares_come_after_the_end_of_idleness():
    """It resets them."""
    moves = [ValueChange(CPU_SHARES, "p", 1024, 512), ValueChange(CPU_IDLE, "p", 1, 0)]

    assert [moves[s.move].resource for s in ordered_steps(moves)] == [CPU_IDLE, CPU_SHARES]


quotas = st.sampled_from([-1, 1000, 20_000, 50_000, 100_000, 200_000])


@st.composite
def quota_trees(draw):
    """Quota and burst of each group, such as a v1 kernel can have."""
    tree = {}
    for place in TREE:
        quota = draw(quotas)
        above = [tree[p][0] for p in TREE if place.startswith(f"{p}/") and tree[p][0] != -1]
        if quota != -1 and above:
            quota = min([quota, *above])
        tree[place] = (quota, draw(st.integers(0, quota if quota != -1 else 300_000)))
    return tree


@settings(max_examples=200, deadline=None)
@given(quota_trees(), quota_trees(), st.sampled_from([1, 2]), st.permutations(range(2 * len(TREE))))
def test_every_step_of_a_quota_batch_is_accepted(old, new, version, shuffled):
    """Between any two states that a kernel can have, in whatever order they are claimed."""
    groups = {place: ModelGroup(quota=q, burst=b) for place, (q, b) in old.items()}
    kernel = KernelModel(version, groups)
    moves = [
        ValueChange(resource, place, old[place][n], new[place][n])
        for place in TREE
        for n, resource in enumerate((CPU_QUOTA, CPU_BURST))
    ]
    moves = [moves[n] for n in shuffled]
    for step in ordered_steps(moves):
        move = moves[step.move]
        kernel.set(move.resource, move.place, move.new)
    assert {p: (g.quota, g.burst) for p, g in groups.items()} == new


cpus = st.frozensets(st.integers(0, 7), min_size=1)


@st.composite
def cpuset_trees(draw, version):
    tree = {}
    for place in TREE:
        parent = tree.get(place.rpartition("/")[0], MOST)
        chosen = draw(cpus) if version == 2 else draw(cpus) & parent or parent
        tree[place] = draw(st.sampled_from([chosen, frozenset()])) if version == 2 else chosen
    return tree


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from([1, 2]), st.permutations(range(len(TREE))))
def test_every_step_of_a_cpuset_batch_is_accepted(data, version, shuffled):
    """Also no group has, at any time, fewer CPUs than both before and after have in common."""
    old, new = (data.draw(cpuset_trees(version)) for _ in range(2))
    groups = {place: ModelGroup(cpus=c, busy=True) for place, c in old.items()}
    kernel = KernelModel(version, groups)
    moves = [ValueChange(CPUSET_CPUS_WANTED, p, old[p], new[p]) for p in TREE]
    moves = [moves[n] for n in shuffled]
    for step in ordered_steps(moves):
        move = moves[step.move]
        kernel.set(move.resource, move.place, move.new if step.via is None else step.via)
        for place, group in groups.items():
            assert not group.cpus or group.cpus >= old[place] & new[place]
    assert {p: g.cpus for p, g in groups.items()} == new
