"""Columns: which rows of one are others than those of another."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.columns import CHUNK, Column, FrozenColumn

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "append", "pop", "freeze", "many"]),
        st.integers(0, CHUNK + 40),
        st.integers(1, 3),
    ),
    max_size=30,
)


def _compared(one: FrozenColumn, other: FrozenColumn) -> list[int]:
    """Row by row."""
    both = min(len(one), len(other))
    rows = [row for row in range(both) if one.array[row] != other.array[row]]
    return rows + list(range(both, max(len(one), len(other))))


@given(steps=STEPS, at_end=st.booleans())
def test_other_rows_are_those_that_differ(steps: list[tuple[str, int, int]], at_end: bool) -> None:
    """Whatever was written between: the same value again, or rows that were added and removed."""
    column, frozen = Column(np.int64), list[FrozenColumn]()
    for _ in range(CHUNK + 20):
        column.append(1)
    for what, row, value in [*steps, ("freeze", 0, 0)]:
        match what:
            case "write":
                column[row % len(column)] = value
            case "append":
                column.append(value)
            case "pop":
                column.pop()
            case "many":
                for other in range(row % 30):
                    column[other] = value
            case _:
                frozen.append(column.freeze())
                if not at_end and len(frozen) > 1:
                    assert frozen[-1].other_rows(frozen[-2]) == _compared(*frozen[-2:])
    for one in frozen:
        for other in frozen:
            assert one.other_rows(other) == _compared(one, other)


def test_a_copy_knows_its_rows_from_the_column_it_was_made_from() -> None:
    """As a what-if does; objects are compared by identity."""
    column = Column(object)
    for row in range(CHUNK * 2):
        column.append((row,))
    base = column.freeze()
    copy = Column(object, base=base)
    copy[3], copy[CHUNK] = (3,), base[CHUNK]
    assert copy.freeze().other_rows(base) == [3]
    assert base.other_rows(copy.freeze()) == [3]
