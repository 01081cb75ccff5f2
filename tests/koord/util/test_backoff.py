"""Pauses that grow, stay below the cap but for jitter, and start again."""

from hypothesis import given
from hypothesis import strategies as st

from koord.util.timebudget import Backoff


def test_pauses_double_up_to_the_cap_and_begin_again():
    backoff = Backoff(1.0, 10.0, draw=lambda: 0.0)
    assert [backoff.next() for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    backoff.reset()
    assert backoff.next() == 1


@given(st.floats(0, 1), st.floats(0.01, 10), st.floats(1, 5))
def test_jitter_only_lengthens(drawn, initial, factor):
    """No pause is shorter than asked for, none longer than the cap and a tenth."""
    backoff = Backoff(initial, 60.0, factor=factor, draw=lambda: drawn)
    pauses = [backoff.next() for _ in range(50)]
    assert all(initial <= pause <= 60.0 * 1.1 + 1e-9 for pause in pauses)
