"""Merging of NUMA hints, by the worked cases of Koordinator's topology manager."""

import time
from collections.abc import Sequence
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_scheduler.framework.extension.numa import (
    MAX_COMBINATIONS,
    Hints,
    NUMANodeUse,
    NUMATopologyHint,
    NUMATopologyPolicy,
    exclusive_check,
    mask_text,
    merge_hints,
)

BEST, RESTRICTED, SINGLE = NUMATopologyPolicy
IDLE, ALONE, SHARED = NUMANodeUse


def hint(*nodes: int, preferred: bool = True, score: int = 0) -> NUMATopologyHint:
    return NUMATopologyHint(frozenset(nodes), preferred, score)


def read(text: str) -> list[NUMATopologyHint]:
    """Hints of a text such as "01y,10n9": mask, whether it is preferred, score."""
    found = []
    for one in text.split(",") if text else ():
        digits = one.rstrip("0123456789")
        mask, preferred = digits[:-1], digits[-1] == "y"
        nodes = [at for at, digit in enumerate(reversed(mask)) if digit == "1"]
        found.append(hint(*nodes, preferred=preferred, score=int(one[len(digits) :] or 0)))
    return found


def two(first: str, second: str) -> list[Hints]:
    return [{"r1": read(first)}, {"r2": read(second)}]


ALL = (0, 1, 2, 3)
ALL_PREFERRED = hint(*ALL)
NONE_PREFERRED = hint(*ALL, preferred=False)
R1 = "Unaligned NUMA Hint cause r1 prefer [01] among [01]"


@pytest.mark.parametrize(
    ("hints", "best", "restricted", "single"),
    [
        pytest.param(two("01y", "01y"), hint(0), hint(0), hint(0), id="M1"),
        pytest.param(two("10y", "10y"), hint(1), hint(1), hint(1), id="M2"),
        pytest.param([{}, {"r2": read("01y")}], hint(0), hint(0), hint(0), id="M3"),
        pytest.param(two("01y,10y", "10y"), hint(1), hint(1), hint(1), id="M4"),
        pytest.param(two("01y,10y", "01y,11n"), hint(0), hint(0), hint(0), id="M5"),
        pytest.param(two("10y,11n", "01y,10y,11n"), hint(1), hint(1), hint(1), id="M6"),
        pytest.param(
            two("0011y,0101y", "0011y,0101y"),
            hint(0, 1),
            hint(0, 1),
            (
                "Unaligned NUMA Hint cause r1 prefer [11 0101] among [11 0101],"
                "r2 prefer [11 0101] among [11 0101]",
            ),
            id="M7",
        ),
        pytest.param([], ALL_PREFERRED, ALL_PREFERRED, NUMATopologyHint(None), id="M8"),
        pytest.param([{"r": None}], ALL_PREFERRED, ALL_PREFERRED, NUMATopologyHint(None), id="M8b"),
        pytest.param(
            [{"r": []}],
            NONE_PREFERRED,
            ("Unsatisfied NUMA r",),
            ("Unsatisfied NUMA r",),
            id="M9",
        ),
        pytest.param(
            two("01y", "10y"),
            NONE_PREFERRED,
            (f"{R1} & r2 prefer [10] among [10]",),
            (f"{R1},r2 prefer [10] among [10]",),
            id="M10",
        ),
        pytest.param(
            two("01y", "01n"),
            hint(0, preferred=False),
            (f"{R1} & r2 prefer [] among [01]",),
            (f"{R1},r2 prefer [] among [01]",),
            id="M11",
        ),
        pytest.param(
            two("01y", "11y"),
            NONE_PREFERRED,
            (f"{R1} & r2 prefer [11] among [11]",),
            (f"{R1},r2 prefer [11] among [11]",),
            id="M12",
        ),
        pytest.param(
            two("01y,10y", "11n"),
            NONE_PREFERRED,
            (
                "Unaligned NUMA Hint cause r1 prefer [01 10] among [01 10] & "
                "r2 prefer [] among [11]",
            ),
            ("Unaligned NUMA Hint cause r1 prefer [01 10] among [01 10],r2 prefer [] among [11]",),
            id="M13",
        ),
        pytest.param([{"r": read("01y,10y,11n")}, {}], hint(0), hint(0), hint(0), id="M14"),
        pytest.param(
            [{"cpu": read("01y5,10y9"), "mem": read("01y1,10y1")}],
            hint(1, score=10),
            hint(1, score=10),
            hint(1, score=10),
            id="M15",
        ),
    ],
)
def test_hints_are_merged_as_by_koordinator(
    hints: list[Hints],
    best: NUMATopologyHint,
    restricted: NUMATopologyHint | tuple[str, ...],
    single: NUMATopologyHint | tuple[str, ...],
) -> None:
    assert merge_hints(hints, ALL, BEST) == best
    assert merge_hints(hints, ALL, RESTRICTED) == restricted
    assert merge_hints(hints, (0, 1), SINGLE) == single


def test_one_numa_node_is_no_choice() -> None:
    assert merge_hints([{"cpu": [hint(0)]}], (0,), SINGLE) == NUMATopologyHint(None)
    assert merge_hints([{"cpu": [hint(0)]}], (0,), RESTRICTED) == hint(0)


@pytest.mark.parametrize(
    ("nodes", "text"),
    [({0}, "01"), ({1}, "10"), ({0, 1}, "11"), ({0, 2}, "0101"), ({2}, "100"), (None, "<nil>")],
)
def test_masks_are_printed_as_by_the_kubelet(nodes: set[int] | None, text: str) -> None:
    assert mask_text(nodes) == text


@pytest.mark.parametrize(
    ("nodes", "uses", "allowed"),
    [
        ({0}, (IDLE, ALONE), True),
        ({0}, (SHARED, ALONE), False),
        ({0}, (SHARED, SHARED), False),
        ({0}, (ALONE, SHARED), True),
        ({0, 1}, (SHARED, ALONE), False),
        ({0, 1}, (SHARED, IDLE), True),
        ({0, 1}, (SHARED, SHARED), True),
        ({0, 7}, (IDLE, IDLE), True),  # ids with gaps
    ],
)
def test_numa_nodes_of_its_own(
    nodes: set[int], uses: tuple[NUMANodeUse, NUMANodeUse], allowed: bool
) -> None:
    by_node = dict(enumerate(uses))
    check = exclusive_check(True, by_node)
    assert check is not None
    assert check(frozenset(nodes)) is allowed
    assert exclusive_check(False, by_node) is None


def test_what_is_not_its_own_is_never_refused_by_best_effort() -> None:
    taken = exclusive_check(True, {0: SHARED, 1: SHARED})
    hints = two("01y,10y", "01y,10y")
    assert merge_hints(hints, (0, 1), BEST, taken) == hint(0, preferred=False)
    assert isinstance(merge_hints(hints, (0, 1), SINGLE, taken), tuple)
    free = exclusive_check(True, {0: SHARED})
    assert merge_hints(hints, (0, 1), BEST, free) == hint(1)


def test_numbers_that_no_numa_node_has_are_left_out() -> None:
    hints: list[Hints] = [{"cpu": [hint(10**9), hint(-1), hint(1)]}]
    assert merge_hints(hints, (0, 1, 10**9), SINGLE) == hint(1)


def test_many_hints_take_little_time() -> None:
    """Three providers, all 15 choices of four NUMA nodes each: the cross product has 759,375."""
    every = [
        hint(*nodes, preferred=len(nodes) == 1, score=len(nodes))
        for size in range(1, 5)
        for nodes in combinations(ALL, size)
    ]
    hints: list[Hints] = [{"cpu": every, "memory": every, "a": every}, {"gpu": every}, {"r": every}]
    assert len(every) ** 5 > MAX_COMBINATIONS
    begin = time.process_time()
    assert merge_hints(hints, ALL, RESTRICTED) == hint(0, score=5)
    assert time.process_time() - begin < 0.1
    worse = [NUMATopologyHint(one.nodes, preferred=False) for one in every]
    assert merge_hints([*hints, {"z": worse}], ALL, BEST) == NONE_PREFERRED


_HINT = st.builds(
    NUMATopologyHint,
    st.none() | st.frozensets(st.integers(0, 3), min_size=1),
    st.booleans(),
    st.integers(0, 2),
)


@given(st.lists(st.lists(_HINT, min_size=1, max_size=4), min_size=1, max_size=3))
def test_no_other_choice_of_hints_is_better(lists: list[list[NUMATopologyHint]]) -> None:
    """Against all combinations: preferred are those of one mask, then few NUMA nodes win."""
    providers: Sequence[Hints] = [{str(n): one for n, one in enumerate(lists)}]
    best = merge_hints(providers, ALL, BEST)
    assert isinstance(best, NUMATopologyHint)
    every = frozenset(ALL)
    wanted: set[frozenset[int]] = set()
    for chosen in product(*lists):
        masks = {one.nodes for one in chosen if one.nodes is not None}
        if len(masks) < 2 and all(one.preferred for one in chosen):
            wanted.add(next(iter(masks), every))
    restricted = merge_hints(providers, ALL, RESTRICTED)
    if wanted:
        assert best.preferred
        assert len(best.nodes or every) == min(map(len, wanted))
        assert best.nodes in wanted
        assert restricted == best
    else:
        assert not best.preferred
        assert isinstance(restricted, tuple)
