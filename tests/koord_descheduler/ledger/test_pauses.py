"""How long a workload is left alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_descheduler.ledger.entries import (
    FIRST_PAUSE,
    MAX_PAUSE,
    Pause,
    WorkloadRef,
    after_failure,
    after_success,
    is_forgotten,
)

WEB = WorkloadRef("Deployment", "default", "web", "uid-web")


@pytest.mark.parametrize(
    ("failures", "minutes"),
    [(1, 10), (2, 20), (3, 40), (4, 80), (5, 160), (6, 320), (7, 640), (8, 1280), (9, 1280)],
)
def test_ten_minutes_twice_as_long_with_each_failure(failures: int, minutes: int) -> None:
    """Each eviction is from after the pause before it."""
    now, pause = 1000.0, None
    for _ in range(failures):
        now += 1.0
        pause = after_failure(pause, WEB, now, now + 0.5)

    assert pause is not None
    assert pause.until - pause.began == minutes * 60


@given(st.lists(st.tuples(st.booleans(), st.floats(1.0, 2 * MAX_PAUSE)), max_size=40))
def test_a_pause_is_within_bounds_and_never_shorter_after_a_failure(
    steps: list[tuple[bool, float]],
) -> None:
    """Whatever comes in which order: 10 minutes to 24 hours; a success ends none that runs."""
    now, pause = 1000.0, None
    for failed, seconds in steps:
        evicted, now = now + seconds / 2, now + seconds
        before = pause
        if failed:
            pause = after_failure(pause, WEB, evicted, now)
            if before is not None:
                assert pause.until >= before.until
            assert now + FIRST_PAUSE <= pause.until <= now + MAX_PAUSE
        elif pause is not None:
            pause = after_success(pause, evicted)
            assert pause is None or pause.until == (before and before.until)


def test_evictions_from_before_a_pause_neither_lengthen_nor_shorten_it() -> None:
    """They were under way when it began."""
    pause = after_failure(None, WEB, 100.0, 500.0)

    assert after_failure(pause, WEB, 400.0, 600.0) is pause
    assert after_success(pause, 400.0) is pause


def test_each_success_takes_one_failure_back() -> None:
    """After as many as there were failures the workload is as any other."""
    pause = Pause(workload=WEB, strikes=2, began=100.0, until=1300.0)

    pause = after_success(pause, 2000.0)
    assert pause == Pause(workload=WEB, strikes=1, began=100.0, until=1300.0)
    assert after_success(pause, 3000.0) is None


def test_a_day_after_its_end_a_pause_is_forgotten() -> None:
    """The next failure begins at ten minutes."""
    pause = after_failure(None, WEB, 0.0, 0.0)

    assert not is_forgotten(pause, 600.0 + 86_399.0)
    assert is_forgotten(pause, 600.0 + 86_400.0)
