"""Run the code of plugins: metered, with a deadline, failures logged."""

import asyncio
import math
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, copy_context
from inspect import isawaitable, iscoroutinefunction
from types import FrameType, TracebackType, coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast

from koord.component.plugins.registry import PluginBlocked
from koord.util.clock import Clock, finish
from koord.util.errors import KoordError, error_text
from koord.util.logs import LimitedLog
from koord.util.stop import Stop, first_completed

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


P = ParamSpec("P")
T = TypeVar("T")

_METER: ContextVar["Meter | None"] = ContextVar("plugin_meter", default=None)
_PAGE = os.sysconf("SC_PAGE_SIZE")


class PluginExitError(KoordError):
    """A plugin called sys.exit(); only the plugin ends."""

    def __init__(self, plugin: str) -> None:
        super().__init__(f"plugin {plugin}: found a call of sys.exit(); return or raise instead")


class StepGuard(Protocol):
    """Watches over the step that runs; called by the meter."""

    def enter(self, name: str) -> None: ...
    def leave(self) -> None: ...
    def forget(self, name: str) -> None: ...


class NoGuard:
    """Lets every step take as long as it likes."""

    def enter(self, name: str) -> None:
        pass

    def leave(self) -> None:
        pass

    def forget(self, name: str) -> None:
        pass


class ResidentMemory:
    """Bytes of this process that are in memory, read cheaply (about 1 µs)."""

    def __init__(self) -> None:
        self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def __call__(self) -> int:
        return int(os.pread(self._file, 128, 0).split(b" ", 2)[1]) * _PAGE

    def close(self) -> None:
        os.close(self._file)


class Meter:
    """The account of one plugin."""

    def __init__(
        self,
        name: str,
        *,
        guard: StepGuard | None = None,
        memory: Callable[[], int] | None = None,
        now: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] | None = time.thread_time,
    ) -> None:
        """memory: what to read the process's bytes with; None: growth is not measured.

        now is the clock for last_step. cpu: seconds of CPU of this thread; None: they are not
        measured, as each reading is a system call that asks the kernel's scheduler.
        """
        self.name = name
        self.cpu_seconds = 0.0
        self.steps = 0
        self.longest_step = 0.0  # CPU seconds
        self.growth = 0  # bytes, of the process, net, over all steps; never below zero
        self.last_step = now()
        self.tasks: set[asyncio.Task[Any]] = set()  # started by the plugin and not done
        self._dropped: set[asyncio.Task[Any]] = set()
        self._guard = guard or NoGuard()
        self._memory = memory
        self._now = now
        self._cpu = cpu
        self._before = (0.0, 0)

    def reset(self) -> None:
        """Begin a new run: memory that an earlier one took is forgotten."""
        self.growth = 0
        self.last_step = self._now()

    def exclude_step(self) -> None:
        """Make the guard report the next step that is too long as if it were the first."""
        self._guard.forget(self.name)

    def drop(self, task: asyncio.Task[Any]) -> None:
        """End a task that this meter drives, even if its coroutine ignores being cancelled."""
        self._dropped.add(task)
        task.add_done_callback(self._dropped.discard)
        task.cancel()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Account for the code inside; for what a plugin does without awaiting."""
        token = _METER.set(self)
        self._enter()
        try:
            yield
        except SystemExit as err:
            raise PluginExitError(self.name) from err
        finally:
            self._leave()
            _METER.reset(token)

    def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what is short and does not await, guarded as a step is.

        Its cost is not accounted for: that would cost more than the call.
        """
        token = _METER.set(self)
        self._guard.enter(self.name)
        try:
            return work(*args, **kwargs)
        except SystemExit as err:
            raise PluginExitError(self.name) from err
        finally:
            self._guard.leave()
            _METER.reset(token)

    async def drive(self, work: Coroutine[Any, Any, T]) -> T:
        """Await the coroutine, accounting for each of its steps and the tasks it starts."""
        token = _METER.set(self)
        try:
            return await self._steps(work)
        except SystemExit as err:
            raise PluginExitError(self.name) from err
        finally:
            _METER.reset(token)

    @coroutine
    def _steps(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        resume: Callable[[Any], Any] = work.send
        value: Any = None
        while True:
            self._enter()
            try:
                waiting = resume(value)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._leave()
            try:
                value = yield waiting
            except GeneratorExit:
                work.close()
                raise
            except BaseException as err:
                if asyncio.current_task() in self._dropped:
                    self._abandon(work)
                    raise
                resume, value = work.throw, err
            else:
                resume = work.send

    def _abandon(self, work: Coroutine[Any, Any, Any]) -> None:
        """Close a coroutine, or let go of one that does not close."""
        self._enter()
        try:
            work.close()
        except RuntimeError:  # it ignored being closed
            _leak(work)
        finally:
            self._leave()

    def _enter(self) -> None:
        memory, cpu = self._memory, self._cpu
        before = cpu() if cpu is not None else 0.0
        self._before = (before, memory() if memory is not None else 0)
        self._guard.enter(self.name)

    def _leave(self) -> None:
        self._guard.leave()
        cpu, memory = self._before
        self.steps += 1
        if self._cpu is not None:
            spent = self._cpu() - cpu
            self.cpu_seconds += spent
            self.longest_step = max(self.longest_step, spent)
        if self._memory is not None:
            self.growth = max(0, self.growth + self._memory() - memory)
        self.last_step = self._now()


def _leak(work: Coroutine[Any, Any, Any]) -> None:
    """Keep a coroutine for ever: collecting it would resume it once more, perhaps without end."""
    import ctypes  # costs memory that only this case is worth

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(work))


def running_plugin() -> str:
    """Return the name of the plugin whose code runs; "": it is none's."""
    meter = _METER.get()
    return "" if meter is None else meter.name


def account_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Charge the tasks that a plugin starts on this loop to the plugin, whatever they do."""
    loop.set_task_factory(_create_task)


def _create_task(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, T] | Generator[Any, None, T],
    /,
    **options: Any,
) -> asyncio.Task[T]:
    context = options.get("context") or copy_context()
    meter = context.get(_METER)
    if meter is None or not isinstance(work, Coroutine):
        return asyncio.Task(work, loop=loop, **options)
    task = asyncio.Task(meter.drive(work), loop=loop, **options)
    meter.tasks.add(task)
    task.add_done_callback(meter.tasks.discard)
    task.add_done_callback(lambda _: work.close())  # cancelled before its first step
    return task


RoundDone = Callable[[float], None]
"""Called after each round that ended well, with its seconds."""


class RoundStop(Stop):
    """A stop signal that keeps book of the rounds: one turn of `every` is one round."""

    def __init__(self, clock: Clock, on_round: RoundDone = lambda seconds: None) -> None:
        super().__init__(clock)
        self._on_round = on_round
        self._began: dict[object, float] = {}
        self._pausing = 0

    async def every(self, interval: float, wake: asyncio.Event | None = None) -> AsyncIterator[int]:
        """Yield as Stop.every does, and measure each round."""
        loop = object()
        turns = super().every(interval, wake)
        self._pausing += 1
        try:
            async for turn in turns:
                self._pausing -= 1
                self._began[loop] = self._clock.monotonic()
                try:
                    yield turn
                finally:
                    self._pausing += 1
                    began = self._began.pop(loop)
                self._on_round(self._clock.monotonic() - began)
        finally:
            self._pausing -= 1

    @property
    def round_began(self) -> float | None:
        """Monotonic seconds at which the oldest round that still runs began; None: no round."""
        return min(self._began.values(), default=None)

    @property
    def pausing(self) -> bool:
        """Whether the plugin waits in `every` for its next round."""
        return self._pausing > 0


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
_MIN_RINGS = 3  # of the four in the time of a step, before it is interrupted
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

    Alarms that ring while the process itself waits for a CPU are one when it runs again. Code is
    interrupted only after several, so that it is not blamed for that wait.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._thread = 0  # that entered it, if it is the main thread
        self._tick = _TICK
        self._deadline = math.inf  # monotonic seconds; of the code that runs
        self._seconds = 0.0
        self._rings = 0  # since the code began
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
        self._rings = 0
        self._deadline = time.monotonic() + seconds

    def end(self) -> None:
        """It has ended."""
        self._deadline = math.inf

    def _ring(self, number: int, frame: FrameType | None) -> None:
        self._rings += 1
        if self._rings >= _MIN_RINGS and time.monotonic() >= self._deadline:
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
