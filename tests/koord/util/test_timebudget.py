"""Time that a computation may take."""

import asyncio
import threading

import pytest

from koord.util.timebudget import (
    UNCHECKED_ITEMS,
    OutOfTime,
    TimeBudget,
    check_time,
    exempt,
    in_time,
    is_time_over,
    remaining_time,
)


class Watch:
    """Seconds that pass only when they are told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_many_items_are_gone_through_until_the_time_is_over() -> None:
    """Each item takes a tenth of a second; a look at the time comes after some of them."""
    watch, seen = Watch(), []
    budget = TimeBudget(5.0, watch)

    def work() -> None:
        for item in in_time(range(1000)):
            watch.seconds += 0.1
            seen.append(item)

    with budget, pytest.raises(OutOfTime, match=r"within 5 s of computing"):
        work()
    assert 50 <= len(seen) <= 50 + UNCHECKED_ITEMS
    assert budget.is_over
    assert budget.spent == pytest.approx(0.1 * len(seen))


def test_few_items_and_no_budget_cost_nothing() -> None:
    """What normal pods have is gone through as it is."""
    few, many = list(range(UNCHECKED_ITEMS)), list(range(1000))
    assert in_time(many) is many
    check_time()
    with TimeBudget(1.0, Watch()):
        assert in_time(few) is few
        check_time()
        assert not is_time_over()
    assert in_time(many) is many


def test_time_outside_of_the_blocks_does_not_count() -> None:
    """Neither between two blocks, nor while others have the event loop."""
    watch = Watch()
    budget = TimeBudget(1.0, watch)

    async def other() -> None:
        watch.seconds += 100

    async def work() -> None:
        with budget:
            watch.seconds += 0.25
        watch.seconds += 100
        with budget:
            task = asyncio.create_task(other())
            await remaining_time()
            await task
            watch.seconds += 0.5
            check_time()
        assert budget.spent == 0.75

    asyncio.run(work())


def test_another_thread_is_not_ended() -> None:
    """Its seconds are others."""
    watch = Watch()
    budget = TimeBudget(1.0, watch)
    with budget:
        watch.seconds += 2
        with pytest.raises(OutOfTime):
            budget.check()
        failed: list[BaseException] = []

        def check() -> None:
            try:
                budget.check()
            except OutOfTime as err:
                failed.append(err)

        thread = threading.Thread(target=check)
        thread.start()
        thread.join()
    assert not failed


def test_work_that_others_cause_is_not_billed() -> None:
    """As the count of a whole cluster, which the first pod that asks would pay."""
    watch = Watch()
    budget = TimeBudget(1.0, watch)
    with exempt():
        watch.seconds += 1
    with budget:
        watch.seconds += 0.25
        with exempt():
            watch.seconds += 100
            with exempt():
                watch.seconds += 100
            check_time()
        watch.seconds += 0.25
        check_time()
    assert budget.spent == 0.5
