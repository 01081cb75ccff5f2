"""Lines of a record come in the order of the times in them."""

from hypothesis import given
from hypothesis import strategies as st

from koordlet.replay.record_format import LATEST, LineKind, in_order


def read(at):
    return LineKind.READ, [at, "cpu_usage", "kubepods", 1]


def tick(at):
    return LineKind.TICK, [0.0, 0.0, at, {}]


def test_what_was_watched_stands_where_it_was_read():
    """Although it is recorded when the watch ends; lines without a time stay where they are."""
    state = (LineKind.STATE, ["node", None])
    lines = [state, tick(1.0), tick(2.0), read(1.1), read(1.2), state, read(2.1), tick(3.0)]
    assert list(in_order(lines)) == [
        *(state, tick(1.0), read(1.1), read(1.2), tick(2.0), state, read(2.1), tick(3.0))
    ]


@given(st.lists(st.floats(0, LATEST), max_size=30))
def test_no_line_is_lost_and_all_are_in_order(late):
    """As long as none is later than a watch may last."""
    lines = [read(second - min(second, behind)) for second, behind in enumerate(late)]
    found = list(in_order(lines))
    assert sorted(found, key=lambda line: line[1][0]) == found
    assert sorted(map(str, found)) == sorted(map(str, lines))


@given(st.lists(st.sampled_from([None, "x", float("nan"), float("inf"), True, 5, -1.0])))
def test_times_that_make_no_sense_lose_nothing(times):
    """They are reported where they are played."""
    lines = [(LineKind.TICK, [0.0, 0.0, at][: 3 if at else 1]) for at in times]
    assert len(list(in_order(lines))) == len(lines)
