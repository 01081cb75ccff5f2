"""Run the code of plugins: metered, with a deadline, failures logged."""

import asyncio
import math
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from inspect import isawaitable, iscoroutinefunction
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from koord.component.plugins.meter import Meter
from koord.component.plugins.registry import PluginBlocked
from koord.util.clock import Clock, finish
from koord.util.errors import KoordError, error_text
from koord.util.logs import LimitedLog
from koord.util.stop import first_completed

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


MAX_TRACED = 1024  # errors whose tracebacks were logged, that are remembered


class FailureLog:
    """Logs failures of plugins: each event of a plugin once a minute at most, tracebacks once.

    Errors of one type from one line have one traceback. Ours have none: their texts say it all.
    """

    def __init__(self, log: "FilteringBoundLogger", clock: Clock) -> None:
        self.limited = LimitedLog(log, clock)
        """The log itself, for what is no error."""
        self._traced: set[tuple[str, type, str]] = set()

    def failed(self, event: str, plugin: str, error: BaseException, **facts: object) -> str:
        """Log an error that a plugin's code has raised, or returned; return its text."""
        text = error_text(error)
        if self.limited.wants(event, plugin):
            trace = {"exc_info": error} if self._is_new(plugin, error) else {}
            self.limited.error(event, of=plugin, plugin=plugin, **facts, error=text, **trace)
        return text

    def _is_new(self, plugin: str, error: BaseException) -> bool:
        if isinstance(error, KoordError) or error.__traceback__ is None:
            return False
        kind = (plugin, type(error), _last_line(error.__traceback__))
        if kind in self._traced:
            return False
        if len(self._traced) >= MAX_TRACED:
            self._traced.clear()
        self._traced.add(kind)
        return True


def _last_line(traceback: TracebackType) -> str:
    """File and line at which an error was raised."""
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"


LOADING = 10.0  # seconds; a liveness probe gives a daemon that does not answer about thirty
_TICK = 0.5  # seconds
REPEAT_INTERVAL = 1.0  # seconds after which code that caught the interruption is interrupted again


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise PluginBlocked in the code inside once it has held the main thread for so long.

    What waits in Python, or in a system call that signals interrupt, ends; C code that never
    returns, and a loop that catches every exception, do not. On another thread there is no limit.
    SIGALRM's handler and timer are those of before afterwards.
    """
    if not _on_main_thread():
        yield
        return
    inside, began = True, time.monotonic()

    def interrupt(number: int, frame: FrameType | None) -> None:
        # Another timer may ring before this one is set, as that of a RepeatedTimeLimit does.
        if inside and time.monotonic() - began >= seconds:
            raise _blocked(seconds, frame)

    handler = signal.signal(signal.SIGALRM, interrupt)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT_INTERVAL)
    try:
        try:
            yield
        finally:
            inside = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, _left_since(began, left), interval)
        signal.signal(signal.SIGALRM, handler)


class RepeatedTimeLimit:
    """A time limit for many short pieces of code in a row, at a microsecond each.

    Inside of the context, which may be entered again there, begin and end take the place of
    time_limit: an alarm that rings all the time looks whether the code has held the thread for too
    long. So code is interrupted up to a quarter later than its time.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._thread = 0  # that entered it, if it is the main thread
        self._tick = _TICK
        self._deadline = math.inf  # monotonic seconds; of the code that runs
        self._seconds = 0.0
        self._began = 0.0  # monotonic seconds, at the first entry
        self._timer = (0.0, 0.0)  # what was left of a timer that ran before, and its interval
        self._handler: Callable[[int, FrameType | None], object] | int | None = None

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1 and _on_main_thread():
            self._thread = threading.get_ident()
            self._began = time.monotonic()
            self._handler = signal.signal(signal.SIGALRM, self._ring)
            self._timer = signal.setitimer(signal.ITIMER_REAL, self._tick, self._tick)

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._thread:
            self._thread = 0
            left, interval = self._timer
            signal.setitimer(signal.ITIMER_REAL, _left_since(self._began, left), interval)
            signal.signal(signal.SIGALRM, self._handler)

    @property
    def active(self) -> bool:
        """Whether begin and end can be used now."""
        return self._thread == threading.get_ident()

    def begin(self, seconds: float) -> None:
        """Code begins that may hold the main thread for so long."""
        if seconds < 4 * self._tick:
            self._tick = seconds / 4
            signal.setitimer(signal.ITIMER_REAL, self._tick, self._tick)
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    def end(self) -> None:
        """It has ended."""
        self._deadline = math.inf

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if time.monotonic() >= self._deadline:
            raise _blocked(self._seconds, frame)


def _left_since(began: float, left: float) -> float:
    """Seconds that are left now of a timer that had so many; 0: none ran."""
    return max(left - (time.monotonic() - began), 0.001) if left else 0.0


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _blocked(seconds: float, frame: FrameType | None) -> PluginBlocked:
    return PluginBlocked(
        f"wanted an end within {seconds:g} s, found it at {_line(frame)}; "
        "do what takes long in run, with await or asyncio.to_thread"
    )


def _line(frame: FrameType | None) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "C code"


P = ParamSpec("P")
T = TypeVar("T")

GRACE = 5.0  # seconds that code has to end after it was cancelled


class PluginTimeout(KoordError):
    """A plugin did not return in time; it was cancelled."""


class PluginBlockedLoop(KoordError):
    """A plugin held the event loop for too long without awaiting; it was interrupted."""


class PluginCode:
    """The code of one plugin."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        step_seconds: float,
        limits: RepeatedTimeLimit | None = None,
        accounted: bool = True,
    ) -> None:
        """step_seconds is how long it may hold the event loop, in real time.

        limits: where callers of many short pieces of code have set the signal's handler.
        accounted: whether the meter measures CPU seconds.
        """
        guard = _StepLimit(step_seconds, limits or RepeatedTimeLimit())
        cpu = time.thread_time if accounted else None
        self.meter = Meter(name, guard=guard, cpu=cpu)
        self._name = name
        self._clock = clock

    def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what does not await, within a step's time; return the result.

        Raises:
            PluginBlockedLoop: it was interrupted.
            Exception: whatever the code raises.
        """
        try:
            return self.meter.call(work, *args, **kwargs)
        except PluginBlocked as err:
            raise PluginBlockedLoop(f"plugin {self._name}: {err}") from err

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
            PluginTimeout, PluginBlockedLoop: it was ended. Code that ignores that is left behind
                and never resumed.
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
                raise PluginTimeout(f"plugin {self._name}: wanted an end within {seconds:g} s")
            if task.cancelled():
                raise KoordError(f"plugin {self._name}: found it cancelled from within")
            return task.result()
        except PluginBlocked as err:
            raise PluginBlockedLoop(f"plugin {self._name}: {err}") from err
        finally:
            on_end()
            timer.cancel()
            if not task.done():
                await self._end(task)

    async def endless(self, make: Callable[[], Awaitable[T]]) -> T:
        """Call and await what has no deadline; each of its steps has one.

        Raises:
            PluginBlockedLoop: it was interrupted.
            Exception: whatever the code raises.
        """
        try:
            return await self.meter.drive(_awaited(self.meter.call(make)))
        except PluginBlocked as err:
            raise PluginBlockedLoop(f"plugin {self._name}: {err}") from err

    async def _end(self, task: "asyncio.Task[T]") -> None:
        task.cancel()
        timer = self._clock.timer(GRACE)
        await first_completed(task, timer)
        timer.cancel()
        if not task.done():
            self.meter.drop(task)
            await asyncio.wait({task})


class _StepLimit:
    """Interrupts a step that holds the main thread for too long; a meter's StepGuard."""

    def __init__(self, seconds: float, many: RepeatedTimeLimit) -> None:
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
