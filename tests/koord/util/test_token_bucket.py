"""A bound on how often something may be done."""

import asyncio

from koord.util.simulatedclock import SimulatedClock
from koord.util.timebudget import TokenBucket


async def test_turns_come_in_order_and_at_the_rate():
    """After the burst, one every half second."""
    clock, taken = SimulatedClock(), []
    bucket = TokenBucket(clock, 2.0, 3)

    async def take(number):
        await bucket.take()
        taken.append((number, clock.monotonic() - 500))

    tasks = [asyncio.create_task(take(number)) for number in range(5)]
    await clock.advance(10)
    await asyncio.gather(*tasks)

    assert taken == [(0, 0), (1, 0), (2, 0), (3, 0.5), (4, 1.0)]


def test_a_turn_now_or_not_at_all():
    """What is refused uses up no turn of those who come later."""
    clock = SimulatedClock()
    bucket = TokenBucket(clock, 2.0, 3)

    assert [bucket.take_now() for _ in range(100)] == [True] * 3 + [False] * 97
    clock.tick(0.5)
    assert [bucket.take_now() for _ in range(2)] == [True, False]


def test_no_rate_is_no_bound():
    """A rate of 0 lets all calls through."""
    bucket = TokenBucket(SimulatedClock(), 0, 1)

    assert all(bucket.take_now() for _ in range(1000))
