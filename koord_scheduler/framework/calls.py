"""Calls of plugins' code, timed and counted: whatever a plugin does, only the pod's cycle fails."""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, ParamSpec, Protocol, TypeVar

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.metrics_core import CounterMetricFamily

from koord.component.metrics import OwnMetrics, PlainHistogram
from koord.component.plugins.execution import (
    FailureLog,
    PluginBlockedLoop,
    PluginCode,
    PluginExitError,
    RepeatedTimeLimit,
)
from koord.component.plugins.registry import PluginBlocked
from koord.util.clock import Clock
from koord.util.errors import KoordError, error_text
from koord.util.logs import get_logger
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.interfaces import Plugin
from koord_scheduler.framework.status import Code, CycleState, Status


class PluginEvaluations:
    """scheduler_plugin_evaluation_total: counted twenty times a cycle, so by plain numbers."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], list[int]] = {}

    def of(self, plugin: str, point: str, profile: str) -> list[int]:
        """The only item is the number of evaluations, for the caller to raise."""
        return self._counts.setdefault((plugin, point, profile), [0])

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Implement prometheus_client's Collector."""
        (family,) = self.describe()
        for labels, (count,) in tuple(self._counts.items()):
            family.add_metric(labels, count)
        yield family

    def describe(self) -> Iterator[CounterMetricFamily]:
        """Implement prometheus_client's Collector."""
        yield CounterMetricFamily(
            "scheduler_plugin_evaluation",
            "Number of attempts to schedule pods by each plugin and the extension point.",
            labels=("plugin", "extension_point", "profile"),
        )


class FrameworkMetrics(OwnMetrics):
    """Durations of extension points and of plugins, and how often plugins are called."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.points = PlainHistogram(
            "scheduler_framework_extension_point_duration_seconds",
            "Latency for running all plugins of a specific extension point.",
            ["extension_point", "status", "profile"],
            buckets=exponential(0.0001, 2, 12),
            registry=registry,
        )
        self.plugins = PlainHistogram(
            "scheduler_plugin_execution_duration_seconds",
            "Duration for running a plugin at a specific extension point, of some of the cycles.",
            ["plugin", "extension_point", "status"],
            buckets=exponential(0.00001, 1.5, 20),
            registry=registry,
        )
        self.evaluations = PluginEvaluations()
        registry.register(self.evaluations)
        self.permit_waits = Histogram(
            "scheduler_permit_wait_duration_seconds",
            "Duration of waiting on permit.",
            ["result"],
            buckets=exponential(0.001, 2, 15),
            registry=registry,
        )


def exponential(start: float, factor: float, count: int) -> tuple[float, ...]:
    """Bounds of so many buckets, each the factor times the one before."""
    return tuple(start * factor**power for power in range(count))


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
    name: str  # the plugin's; a cycle asks for it more often than for anything else


class LoadedPlugins(Protocol):
    """The plugins of one profile, as their runners use them."""

    calls: "PluginCalls"
    limits: TimeLimits

    @property
    def plugins(self) -> Mapping[str, Plugin]:
        """The plugins that are made, by name, in the order of the profile."""

    def loaded(self, name: str) -> Loaded:
        """One of its plugins; KeyError: it has none of that name."""

    def at(self, point: Point) -> tuple[Loaded, ...]:
        """The plugins of an extension point, in the order in which they run."""

    def idle_at(self, point: Point) -> frozenset[str]:
        """The plugins that are left out there, as they have nothing to do."""


class ExtensionPointError(KoordError):
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
        limits: RepeatedTimeLimit,
        step_seconds: float,
    ) -> None:
        self.profile = profile
        self.step = step_seconds
        self.metrics = metrics
        self.limits = limits
        """Entered around calls in a row; see Services."""
        self._failures = FailureLog(log, clock)
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
            ExtensionPointError: it has raised, or was ended; the status says how.
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
        """Call a plugin without counting it: a question that is not the plugin's work.

        Inside of the limits, no account is kept of its cost: a cycle asks forty times.
        """
        if not self.limits.active:
            try:
                return loaded.code.call(work, *args, **kwargs)
            except Exception as err:
                raise self._failure(loaded, point, None, err) from err
        self.limits.begin(self.step)
        try:
            return work(*args, **kwargs)
        except (Exception, PluginBlocked, SystemExit) as err:
            raise self.interrupted(loaded, point, err) from err
        finally:
            self.limits.end()

    def count(self, loaded: Loaded, point: Point) -> None:
        """Count an evaluation of a plugin."""
        self.evaluations(loaded, point)[0] += 1

    def evaluations(self, loaded: Loaded, point: Point) -> list[int]:
        """The number of evaluations of a plugin, the only item, for the caller to raise."""
        count = self._evaluations.get((loaded.name, point))
        if count is None:
            count = self.metrics.evaluations.of(loaded.name, point.label, self.profile)
            self._evaluations[loaded.name, point] = count
        return count

    async def run(
        self,
        loaded: Loaded,
        point: Point,
        state: CycleState,
        make: Callable[[], Awaitable[T]],
        seconds: float,
    ) -> T:
        """Return what a plugin's coroutine, or plain function, returns within so many seconds.

        Raises:
            ExtensionPointError: it has raised, or was ended; the status says how.
        """
        began = self._begin(loaded, point, state)
        try:
            result = await loaded.code.run(make, seconds)
        except Exception as err:
            raise self._failure(loaded, point, began, err) from err
        self._end(loaded, point, began, Code.SUCCESS)
        return result

    def timed(self, point: str) -> "_Timed":
        """Record how long an extension point takes, under the code given to what it yields."""
        return _Timed(self, point)

    def took(self, point: str, code: Code, seconds: float) -> None:
        """Record how long an extension point took."""
        record = self._durations.get((point, code))
        if record is None:
            record = self.metrics.points.labels(point, code.title, self.profile)
            self._durations[point, code] = record
        record(seconds)

    def failed(self, loaded: Loaded, point: Point, error: BaseException) -> Status:
        """Log an error of a plugin; return it as a status that names the plugin."""
        cause = error.status.error if isinstance(error, ExtensionPointError) else None
        facts = {"profile": self.profile, "extension_point": point.label}
        self._failures.failed("plugin.failed", loaded.name, cause or error, **facts)
        text = error_text(error)
        message = f'running {point.label} plugin "{loaded.name}": {text}'
        return Status(Code.ERROR, (message,), loaded.name)

    def interrupted(
        self, loaded: Loaded, point: Point, error: BaseException
    ) -> ExtensionPointError:
        """Return the error that ends a cycle after plugin code raised this within the limits."""
        if isinstance(error, PluginBlocked):
            error = PluginBlockedLoop(f"plugin {loaded.name}: {error}")
        elif isinstance(error, SystemExit):
            error = PluginExitError(loaded.name)
        return self._failure(loaded, point, None, error)

    def _begin(self, loaded: Loaded, point: Point, state: CycleState) -> float | None:
        """Count a call; return when it began, None: that is not recorded."""
        self.count(loaded, point)
        return time.perf_counter() if state.measured else None

    def _end(self, loaded: Loaded, point: Point, began: float | None, code: Code) -> None:
        if began is not None:
            seconds = time.perf_counter() - began
            self.metrics.plugins.labels(loaded.name, point.label, code.title)(seconds)

    def _failure(
        self, loaded: Loaded, point: Point, began: float | None, error: BaseException
    ) -> ExtensionPointError:
        self._end(loaded, point, began, Code.ERROR)
        return ExtensionPointError(self.failed(loaded, point, error))


class SequentialCalls(Generic[P, T]):
    """Code of several plugins that gets the same arguments: one is called after the other.

    Together they have the time of one, so that a call costs little more than its code. Raises
    ExtensionPointError where one has failed, as PluginCalls does.
    """

    def __init__(
        self,
        calls: PluginCalls,
        point: Point,
        plugins: Sequence[Loaded],
        works: Sequence[Callable[P, T]],
    ) -> None:
        """works: of each plugin its code."""
        self._calls = calls
        self._point = point
        self._plugins = tuple(plugins)
        self._works = tuple(works)
        self._evaluations: list[list[int]] | None = None  # of each plugin, once they are counted

    def call(self, state: CycleState, *args: P.args, **kwargs: P.kwargs) -> list[T]:
        """Return what they return; the calls are counted, and measured if the cycle is."""
        if state.measured or not self._calls.limits.active:
            call, point = self._calls.call, self._point
            both = zip(self._plugins, self._works, strict=True)
            return [call(loaded, point, state, work, *args, **kwargs) for loaded, work in both]
        for count in self._counts():
            count[0] += 1
        return self.ask(*args, **kwargs)

    def until(
        self, ends: Callable[[T], bool], state: CycleState, *args: P.args, **kwargs: P.kwargs
    ) -> list[T]:
        """Call them as call does, until one returns what ends it; None ends nothing.

        Returns what those returned that were called, in their order.
        """
        calls = self._calls
        found: list[T] = []
        if state.measured or not calls.limits.active:
            for loaded, work in zip(self._plugins, self._works, strict=True):
                found.append(calls.call(loaded, self._point, state, work, *args, **kwargs))
                if found[-1] is not None and ends(found[-1]):
                    break
            return found
        counts = self._counts()
        calls.limits.begin(calls.step)
        try:
            for work, count in zip(self._works, counts, strict=True):
                count[0] += 1
                answer = work(*args, **kwargs)
                found.append(answer)
                if answer is not None and ends(answer):
                    break
        except (Exception, PluginBlocked, SystemExit) as err:
            raise calls.interrupted(self._plugins[len(found)], self._point, err) from err
        finally:
            calls.limits.end()
        return found

    def _counts(self) -> list[list[int]]:
        """The numbers of evaluations, of each plugin its own."""
        if self._evaluations is None:
            self._evaluations = [self._calls.evaluations(one, self._point) for one in self._plugins]
        return self._evaluations

    def ask(self, *args: P.args, **kwargs: P.kwargs) -> list[T]:
        """Call plugins without counting: questions that are not the plugins' work."""
        calls = self._calls
        if not calls.limits.active:
            both = zip(self._plugins, self._works, strict=True)
            return [calls.ask(one, self._point, work, *args, **kwargs) for one, work in both]
        found: list[T] = []
        calls.limits.begin(calls.step)
        try:
            for work in self._works:
                found.append(work(*args, **kwargs))
        except (Exception, PluginBlocked, SystemExit) as err:
            raise calls.interrupted(self._plugins[len(found)], self._point, err) from err
        finally:
            calls.limits.end()
        return found


class _Timed:
    """Records how long what is inside takes."""

    __slots__ = ("_began", "_calls", "_code", "_point")

    def __init__(self, calls: PluginCalls, point: str) -> None:
        self._calls = calls
        self._point = point
        self._code = Code.SUCCESS
        self._began = 0.0

    def __enter__(self) -> Callable[[Code], None]:
        self._began = time.perf_counter()
        return self._end_with

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        seconds = time.perf_counter() - self._began
        self._calls.took(self._point, self._code if kind is None else Code.ERROR, seconds)

    def _end_with(self, code: Code) -> None:
        self._code = code
