"""Event loops in threads of their own, and the lag of an event loop."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from prometheus_client import CollectorRegistry, Histogram

from koord.component.supervisor import Run
from koord.util.clock import Clock
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.stop import Stop

P = ParamSpec("P")
T = TypeVar("T")

STUCK_SECONDS = 60.0  # seconds that a loop may compute without a turn; then it counts as stuck
_LONG = 5.0  # seconds after which health says so
_TURN = 1.0  # seconds between two looks at whether it turns
_JOIN = 5.0  # seconds for a thread to end


class LoopHandle:
    """An event loop, as code on another one may use it. Any thread may."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._turned = clock.monotonic()  # when it was last seen to turn

    async def call(self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Await what a function returns, over there; on that loop itself at once.

        Raises:
            Exception: whatever the work raises.
        """
        if asyncio.get_running_loop() is self._loop:
            return await work(*args, **kwargs)

        async def there() -> T:
            self._turned = self._clock.monotonic()
            return await work(*args, **kwargs)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), self._loop))

    def post(self, work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Schedule a call of the function on the other loop; do not wait for it."""
        self._loop.call_soon_threadsafe(lambda: work(*args, **kwargs))

    async def run(self, work: Run, stop: Stop) -> None:
        """Run a component over there until it returns. Its stop signal follows ours.

        Where this is cancelled the component is, too, and this ends when that has ended.
        """
        here = asyncio.get_running_loop()
        if here is self._loop:
            await work(stop)
            return
        ended: asyncio.Future[None] = here.create_future()
        begun: list[tuple[asyncio.Task[None], Stop]] = []

        def begin() -> None:
            there = Stop(self._clock)
            task = self._loop.create_task(_call(work, there))
            begun.append((task, there))
            task.add_done_callback(lambda done: _hand_back(here, ended, done))

        def cancel() -> None:
            begun[0][0].cancel()

        self.post(begin)
        following = asyncio.create_task(self._follow(stop, begun))
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            if not ended.done():
                self.post(cancel)
                await asyncio.wait({ended})
            raise
        finally:
            following.cancel()

    async def watch(self, stop: Stop) -> None:
        """Note that the loop turns, until stop. Runs over there."""
        self._turned = self._clock.monotonic()
        while not await stop.sleep(_TURN):
            self._turned = self._clock.monotonic()

    @property
    def busy_seconds(self) -> float:
        """Since when it has not been seen to turn."""
        return self._clock.monotonic() - self._turned

    @property
    def is_stuck(self) -> bool:
        """Whether that is too long."""
        return self.busy_seconds > STUCK_SECONDS

    def health(self) -> PartHealth:
        """Degraded while a computation takes long, unhealthy when it does not seem to end."""
        seconds = self.busy_seconds
        if seconds <= _LONG:
            return OK
        status = HealthStatus.UNHEALTHY if seconds > STUCK_SECONDS else HealthStatus.DEGRADED
        return PartHealth(status, f"has computed for {seconds:.0f} s without a turn")

    async def _follow(self, stop: Stop, begun: "list[tuple[asyncio.Task[None], Stop]]") -> None:
        await stop.wait()

        def ask() -> None:
            begun[0][1].set()

        self.post(ask)


class LoopThread:
    """A thread with an event loop."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._own = asyncio.new_event_loop()
        self.loop = LoopHandle(self._own, clock)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the loop's thread."""
        self._thread.start()

    async def stop(self) -> None:
        """End the loop, with whatever still runs on it."""
        self.loop.post(self._own.stop)
        await asyncio.to_thread(self._thread.join, _JOIN)

    def _run(self) -> None:
        with contextlib.closing(self._own) as loop:
            asyncio.set_event_loop(loop)
            loop.run_forever()
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            if tasks:
                loop.run_until_complete(asyncio.wait(tasks))


async def _call(work: Run, stop: Stop) -> None:
    await work(stop)


def _hand_back(
    here: asyncio.AbstractEventLoop, ended: "asyncio.Future[None]", done: "asyncio.Task[None]"
) -> None:
    with contextlib.suppress(RuntimeError):  # the loop that waited is closed
        here.call_soon_threadsafe(_finish, ended, done)


def _finish(ended: "asyncio.Future[None]", done: "asyncio.Task[None]") -> None:
    if ended.done():
        return
    if done.cancelled():
        ended.cancel()
    elif (error := done.exception()) is not None:
        ended.set_exception(error)
        ended.exception()  # whoever waits may have been cancelled: then nobody asks
    else:
        ended.set_result(None)


PROBE_SECONDS = 1.0  # waking an idle process for a probe costs about 0.2 ms

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class LoopLag:
    """Probes the loop with timers and notes how late each one comes."""

    def __init__(
        self, registry: CollectorRegistry, prefix: str, interval: float = PROBE_SECONDS
    ) -> None:
        self._interval = interval
        self._histogram = Histogram(
            f"{prefix}_event_loop_lag_seconds",
            "How late a timer of the event loop fired.",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, stop: Stop) -> None:
        """Probe until stop. On the loop's own time, which is what the figure is about."""
        self._schedule(asyncio.get_running_loop())
        try:
            await stop.wait()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + self._interval
        self._timer = loop.call_at(due, self._probe, loop, due)

    def _probe(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._histogram.observe(max(loop.time() - due, 0.0))
        self._schedule(loop)
