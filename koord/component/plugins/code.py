"""Runs a plugin's code apart from the rest: metered, with a deadline, whatever it does."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from inspect import isawaitable, iscoroutinefunction
from typing import Any, ParamSpec, TypeVar, cast

from koord.component.plugins.errors import PluginBlocked
from koord.component.plugins.meter import Meter
from koord.component.plugins.timelimit import ManyLimits, time_limit
from koord.util.clock import Clock, finish
from koord.util.errors import KoordError
from koord.util.firstof import first_of

P = ParamSpec("P")
T = TypeVar("T")

GRACE = 5.0  # seconds that code has to end after it was cancelled


class PluginLate(KoordError):
    """A plugin did not return in time; it was cancelled."""


class PluginHeldLoop(KoordError):
    """A plugin held the event loop for too long without awaiting; it was interrupted."""


class PluginCode:
    """The code of one plugin."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        step_seconds: float,
        limits: ManyLimits | None = None,
        accounted: bool = True,
    ) -> None:
        """step_seconds is how long it may hold the event loop, in real time.

        limits: where callers of many short pieces of code have set the signal's handler.
        accounted: whether the meter measures CPU seconds.
        """
        guard = _StepLimit(step_seconds, limits or ManyLimits())
        cpu = time.thread_time if accounted else None
        self.meter = Meter(name, guard=guard, cpu=cpu)
        self._name = name
        self._clock = clock

    def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what does not await, within a step's time; return the result.

        Raises:
            PluginHeldLoop: it was interrupted.
            Exception: whatever the code raises.
        """
        try:
            return self.meter.call(work, *args, **kwargs)
        except PluginBlocked as err:
            raise PluginHeldLoop(f"plugin {self._name}: {err}") from err

    async def run(
        self,
        make: Callable[[], Awaitable[T]],
        seconds: float,
        *,
        on_end: Callable[[], None] = lambda: None,
    ) -> T:
        """Call and await within so many seconds; return the result.

        A plugin may have a plain function where its interface has a coroutine: that costs no task,
        and has a step's time. on_end is called once, when it has returned or its time is over,
        before it is cancelled.

        Raises:
            PluginLate, PluginHeldLoop: it was ended. What ignores that is left behind, and is not
                resumed any more.
            Exception: whatever the code raises.
        """
        made: Any
        try:
            # None of a coroutine's own code runs yet.
            made = make() if iscoroutinefunction(make) else self.call(make)
        except BaseException:
            on_end()
            raise
        if not isawaitable(made):
            on_end()
            return cast("T", made)
        awaited = cast("Awaitable[T]", made)
        work = self.meter.drive(_awaited(awaited))
        task = asyncio.create_task(work, name=f"plugin {self._name}")
        # It is done at the end of either: asyncio.wait for two costs more than all the rest.
        timer = self._clock.timer(seconds)
        task.add_done_callback(lambda _: finish(timer))
        try:
            await timer
            if not task.done():
                raise PluginLate(f"plugin {self._name}: wanted an end within {seconds:g} s")
            if task.cancelled():
                raise KoordError(f"plugin {self._name}: found it cancelled from within")
            return task.result()
        except PluginBlocked as err:
            raise PluginHeldLoop(f"plugin {self._name}: {err}") from err
        finally:
            on_end()
            timer.cancel()
            if not task.done():
                await self._end(task)

    async def endless(self, make: Callable[[], Awaitable[T]]) -> T:
        """Call and await what has no deadline; each of its steps has one.

        Raises:
            PluginHeldLoop: it was interrupted.
            Exception: whatever the code raises.
        """
        try:
            return await self.meter.drive(_awaited(self.meter.call(make)))
        except PluginBlocked as err:
            raise PluginHeldLoop(f"plugin {self._name}: {err}") from err

    async def _end(self, task: "asyncio.Task[T]") -> None:
        task.cancel()
        timer = self._clock.timer(GRACE)
        await first_of(task, timer)
        timer.cancel()
        if not task.done():
            self.meter.drop(task)
            await asyncio.wait({task})


class _StepLimit:
    """Interrupts a step that holds the main thread for too long; a meter's StepGuard."""

    def __init__(self, seconds: float, many: ManyLimits) -> None:
        self._seconds = seconds
        self._many = many
        self._limits: list[AbstractContextManager[None] | None] = []  # None: of many

    def enter(self, name: str) -> None:
        if self._many.active:
            self._many.begin(self._seconds)
            self._limits.append(None)
            return
        limit = time_limit(self._seconds)
        limit.__enter__()
        self._limits.append(limit)

    def leave(self) -> None:
        limit = self._limits.pop()
        if limit is None:
            self._many.end()
        else:
            limit.__exit__(None, None, None)

    def forget(self, name: str) -> None:
        """Nothing is remembered of a step."""


async def _awaited(made: Awaitable[T]) -> T:
    return await made
