"""Calls of plugins' code: whatever it does, only the pod's cycle fails."""

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from koord.component.plugins.code import PluginCode, PluginHeldLoop
from koord.component.plugins.errors import PluginBlocked
from koord.component.plugins.meter import PluginExitError
from koord.component.plugins.timelimit import ManyLimits
from koord.util.clock import Clock
from koord.util.errors import KoordError
from koord.util.logs import LimitedLog, get_logger
from koord_scheduler.config.points import Point
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.interfaces import Plugin
from koord_scheduler.framework.metrics import FrameworkMetrics
from koord_scheduler.framework.status import Code, Status

P = ParamSpec("P")
T = TypeVar("T")

log = get_logger("koord_scheduler.framework")


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeLimits:
    """Bounds of plugins' code, in seconds."""

    build: float = 60.0  # a factory
    post_filter: float = 30.0
    bind: float = 600.0  # PreBind, where volumes are attached, and Bind; PostBind, too
    step: float = 2.0  # real time without awaiting, which holds up everything else


@dataclass(frozen=True, slots=True)
class Loaded:
    """A plugin of a profile."""

    plugin: Plugin
    code: PluginCode

    @property
    def name(self) -> str:
        return self.plugin.name


class PointFailed(KoordError):
    """A plugin failed at an extension point."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.message)
        self.status = status


class PluginCalls:
    """Calls plugins of one profile."""

    def __init__(
        self,
        profile: str,
        metrics: FrameworkMetrics,
        clock: Clock,
        limits: ManyLimits,
        step_seconds: float,
    ) -> None:
        self.profile = profile
        self._step = step_seconds
        self.metrics = metrics
        self.limits = limits
        """Entered around calls in a row; see Services."""
        self._failures = LimitedLog(log, clock)
        self._durations: dict[tuple[str, Code], Callable[[float], None]] = {}
        self._evaluations: dict[tuple[str, Point], list[int]] = {}

    def call(
        self,
        loaded: Loaded,
        point: Point,
        state: CycleState,
        work: Callable[P, T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Return what a plugin's code returns that does not await.

        Raises:
            PointFailed: it has raised, or was ended; the status says how.
        """
        if state.measured or not self.limits.active:
            began = self._begin(loaded, point, state)
            try:
                result = loaded.code.call(work, *args, **kwargs)
            except Exception as err:
                raise self._failure(loaded, point, began, err) from err
            self._end(loaded, point, began, Code.SUCCESS)
            return result
        self.count(loaded, point)
        return self.ask(loaded, point, work, *args, **kwargs)

    def ask(
        self,
        loaded: Loaded,
        point: Point,
        work: Callable[P, T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """As call, but the call is not counted: nothing but a question beside the plugin's work.

        Inside of the limits, no account is kept of its cost: a cycle asks forty times.
        """
        if not self.limits.active:
            try:
                return loaded.code.call(work, *args, **kwargs)
            except Exception as err:
                raise self._failure(loaded, point, None, err) from err
        self.limits.begin(self._step)
        try:
            return work(*args, **kwargs)
        except PluginBlocked as err:
            held = PluginHeldLoop(f"plugin {loaded.name}: {err}")
            raise self._failure(loaded, point, None, held) from err
        except SystemExit as err:
            raise self._failure(loaded, point, None, PluginExitError(loaded.name)) from err
        except Exception as err:
            raise self._failure(loaded, point, None, err) from err
        finally:
            self.limits.end()

    def count(self, loaded: Loaded, point: Point) -> None:
        """Count an evaluation of a plugin."""
        count = self._evaluations.get((loaded.name, point))
        if count is None:
            count = self.metrics.evaluations.of(loaded.name, point.label, self.profile)
            self._evaluations[loaded.name, point] = count
        count[0] += 1

    async def run(
        self,
        loaded: Loaded,
        point: Point,
        state: CycleState,
        make: Callable[[], Awaitable[T]],
        seconds: float,
    ) -> T:
        """Return what a plugin's coroutine returns within so many seconds.

        Raises:
            PointFailed: it has raised, or was ended; the status says how.
        """
        began = self._begin(loaded, point, state)
        try:
            result = await loaded.code.run(make, seconds)
        except Exception as err:
            raise self._failure(loaded, point, began, err) from err
        self._end(loaded, point, began, Code.SUCCESS)
        return result

    @contextmanager
    def timed(self, point: str) -> Iterator[Callable[[Code], None]]:
        """Record how long an extension point takes, under the code given to what it yields."""
        codes = [Code.SUCCESS]
        began = time.perf_counter()
        try:
            yield codes.append
        except BaseException:
            codes.append(Code.ERROR)
            raise
        finally:
            seconds = time.perf_counter() - began
            key = point, codes[-1]
            record = self._durations.get(key)
            if record is None:
                labels = point, codes[-1].title, self.profile
                record = self._durations[key] = self.metrics.points.labels(*labels).observe
            record(seconds)

    def failed(self, loaded: Loaded, point: Point, error: BaseException) -> Status:
        """Log an error of a plugin; return it as a status that names the plugin."""
        text = str(error) or repr(error)
        facts = {"profile": self.profile, "plugin": loaded.name, "extension_point": point.label}
        self._failures.error("plugin.failed", **facts, error=text)
        message = f'running {point.label} plugin "{loaded.name}": {text}'
        return Status(Code.ERROR, (message,), loaded.name)

    def _begin(self, loaded: Loaded, point: Point, state: CycleState) -> float | None:
        """Count a call; return when it began, None: that is not recorded."""
        self.count(loaded, point)
        return time.perf_counter() if state.measured else None

    def _end(self, loaded: Loaded, point: Point, began: float | None, code: Code) -> None:
        if began is not None:
            seconds = time.perf_counter() - began
            self.metrics.plugins.labels(loaded.name, point.label, code.title).observe(seconds)

    def _failure(
        self, loaded: Loaded, point: Point, began: float | None, error: Exception
    ) -> PointFailed:
        self._end(loaded, point, began, Code.ERROR)
        return PointFailed(self.failed(loaded, point, error))
