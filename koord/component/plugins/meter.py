"""The cost of a plugin: CPU seconds, memory and rounds."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from types import coroutine
from typing import Any, ParamSpec, Protocol, TypeVar

from koord.util.clock import Clock
from koord.util.errors import KoordError
from koord.util.stop import Stop

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
