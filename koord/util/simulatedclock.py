"""Simulated time: tests decide when it passes, and nothing ever sleeps for real."""

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable

from koord.util.clock import finish

MAX_TURNS = 100_000  # loop turns after which tasks that keep each other busy are called a bug
REAL_LIMIT = 60.0  # real seconds that `until` waits for a thread before it gives up


class SimulatedClock:
    """A clock that stands still until advanced; implements koord.util.clock.Clock.

    The three time lines start at different values, so that code which mixes them up fails. Sleepers
    wake in the order of their deadlines, and those with one deadline in the order they went to
    sleep, so a test runs the same way every time.
    """

    def __init__(
        self, *, wall: float = 1_700_000_000.0, monotonic: float = 500.0, boottime: float = 1000.0
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._boottime = boottime
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def wall(self) -> float:
        return self._wall

    def monotonic(self) -> float:
        return self._monotonic

    def boottime(self) -> float:
        return self._boottime

    async def sleep(self, seconds: float) -> None:
        """Return once the clock was advanced that far."""
        await self.timer(seconds)

    def timer(self, seconds: float) -> "asyncio.Future[None]":
        """Return a future that is done after so many simulated seconds."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        if seconds <= 0:
            loop.call_soon(finish, woken)
            return woken
        heapq.heappush(self._sleepers, (self._monotonic + seconds, next(self._order), woken))
        return woken

    @property
    def sleepers(self) -> int:
        """The number of tasks that sleep on this clock."""
        return sum(not woken.done() for _, _, woken in self._sleepers)

    def rests(self, seconds: float) -> bool:
        """Whether no sleeper is due within that time; then it may as well tick."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return not self._sleepers or self._sleepers[0][0] > self._monotonic + seconds

    async def advance(self, seconds: float) -> None:
        """Let time pass: wake each sleeper that is due, in order, and let it work until idle."""
        await self.settle()
        end = self._monotonic + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            self._pass_time(self._sleepers[0][0] - self._monotonic)
            self._wake_due()
            await self.settle()
        self._pass_time(end - self._monotonic)
        await self.settle()

    async def advance_to_next(self) -> None:
        """Let time pass until the next sleeper wakes; not at all without a sleeper."""
        await self.settle()
        if not self.rests(math.inf):
            await self.advance(self._sleepers[0][0] - self._monotonic)

    def tick(self, seconds: float) -> None:
        """Let time pass without waking sleepers: for synchronous code, and for a loop held up."""
        self._pass_time(seconds)

    def step_wall(self, seconds: float) -> None:
        """Step the wall clock, as an administrator or NTP does; negative steps back."""
        self._wall += seconds

    def suspend(self, seconds: float) -> None:
        """Sleep the machine: monotonic time stops, the wall and boot time go on."""
        self._wall += seconds
        self._boottime += seconds

    async def settle(self) -> None:
        """Return when no task has anything left to do before time passes or a thread finishes."""
        # asyncio offers no public way to ask whether its loop is idle.
        ready = getattr(asyncio.get_running_loop(), "_ready")  # noqa: B009
        for _ in range(MAX_TURNS):
            await asyncio.sleep(0)
            if not ready:
                return
        raise AssertionError(f"tasks still busy after {MAX_TURNS} turns of the event loop")

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds; for work that a thread does meanwhile.

        Raises:
            AssertionError: it does not hold after REAL_LIMIT real seconds.
        """
        try:
            async with asyncio.timeout(REAL_LIMIT):
                while not condition():  # noqa: ASYNC110 - a thread has no event to await
                    await asyncio.sleep(0.001)
        except TimeoutError:
            raise AssertionError(f"still not so after {REAL_LIMIT:g} s: {condition}") from None

    def _pass_time(self, seconds: float) -> None:
        self._wall += seconds
        self._monotonic += seconds
        self._boottime += seconds

    def _wake_due(self) -> None:
        now = self._sleepers[0][0]  # not self._monotonic: sums of floats may fall short of it
        while self._sleepers and self._sleepers[0][0] <= now:
            woken = heapq.heappop(self._sleepers)[2]
            if not woken.done():
                woken.set_result(None)
