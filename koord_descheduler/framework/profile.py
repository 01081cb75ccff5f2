"""Profiles: the registry of plugins, one instance of each, their rounds, and the cycle of all."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import isawaitable
from typing import Any, TypeVar, cast

from koord.api.labelselector import LabelSelector
from koord.cluster.facts import ClusterNode
from koord.cluster.keptfields import KeptFields, reads_of, union
from koord.component.plugins.args import args_type_of
from koord.component.plugins.execution import (
    FailureLog,
    PluginBlockedLoop,
    PluginCode,
    PluginTimeout,
)
from koord.component.plugins.registry import FactoryRegistry, PluginError, class_defect
from koord.util.clock import Clock
from koord.util.errors import KoordError, error_text
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import get_logger
from koord.util.stop import Stop, first_completed
from koord_descheduler.config import (
    Configuration,
    KnownPlugin,
    KnownPlugins,
    Point,
    Profile,
)
from koord_descheduler.framework.evictor import (
    Decisions,
    EvictionLimiter,
    EvictorProxy,
    FrameworkMetrics,
    PluginRun,
    ProfileEvictions,
)
from koord_descheduler.framework.handle import Handle, Services
from koord_descheduler.framework.interfaces import (
    BalancePlugin,
    DeschedulePlugin,
    EvictPlugin,
    FilterPlugin,
    Plugin,
    Status,
)
from koord_descheduler.rules.hardware import HARDWARE_FIELDS
from koord_descheduler.rules.nodefit import FitTime

PluginFactory = Callable[[Any, Handle], Plugin | Awaitable[Plugin]]
"""Makes a plugin from its args (None: the profile has none) and the handle of its profile."""


class PluginRegistry(FactoryRegistry[PluginFactory]):
    """Factories in the order of registration."""

    group = "koord_descheduler.plugins"
    shipped = "koordlet"
    base = Plugin


_INTERFACES: dict[Point, type] = {
    Point.DESCHEDULE: DeschedulePlugin,
    Point.BALANCE: BalancePlugin,
    Point.EVICT: EvictPlugin,
    Point.FILTER: FilterPlugin,
}


def known_plugins(registry: PluginRegistry) -> KnownPlugins:
    """Return what a configuration may say of the registered plugins.

    A plugin declares its arguments with takes_args. A class is for the extension points whose
    interfaces it has, a function for any until it is called.
    """
    return {entry.name: _known(entry.plugin) for entry in registry}


def fields_read(config: Configuration, registry: PluginRegistry) -> KeptFields:
    """Return what the plugins that profiles enable declare to read of pods and nodes."""
    entries = [registry.get(name) for profile in config.profiles for name in profile.names]
    declared = union(reads_of(entry.plugin) for entry in entries if entry is not None)
    return declared | HARDWARE_FIELDS


def profile_settings(config: Configuration) -> tuple[Profile, ...]:
    """Return all profiles in the order in which they run, each with the dry-run that holds."""
    return tuple(
        replace(profile, dry_run=config.is_dry_run(profile)) for profile in config.profiles
    )


def _known(factory: PluginFactory) -> KnownPlugin:
    args = args_type_of(factory)
    points = frozenset(Point)
    if isinstance(factory, type):
        points = frozenset(
            point for point, base in _INTERFACES.items() if issubclass(factory, base)
        )
    return KnownPlugin(points, args)


P = TypeVar("P", bound=Plugin)

log = get_logger("koord_descheduler.framework")


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeLimits:
    """Bounds of plugins' code, in seconds."""

    build: float = 60.0  # a factory
    round: float = 300.0  # one round of a plugin
    step: float = 10.0  # real time without awaiting, which holds up everything else


class ProfileError(KoordError):
    """A profile cannot be built; the message has everything that is wrong with it."""

    def __init__(self, profile: str, errors: Sequence[str]) -> None:
        super().__init__(f"profile {profile}: {'; '.join(errors)}")
        self.errors = tuple(errors)


class PluginErrors(KoordError):
    """Errors of several plugins."""

    def __init__(self, errors: Sequence[BaseException]) -> None:
        super().__init__(f"[{', '.join(map(error_text, errors))}]")
        self.errors = tuple(errors)


class RoundFailed(KoordError):
    """A round of a plugin has failed; the error that it raised, or returned, is the cause."""

    def __init__(self, plugin: str, error: BaseException) -> None:
        text, head = error_text(error), f"plugin {plugin}: "
        super().__init__(text if text.startswith(head) else head + text)


@dataclass(frozen=True, slots=True)
class _Loaded:
    plugin: Plugin
    code: PluginCode


class ProfilePlugins:
    """A profile whose plugins are made; see build_profile."""

    def __init__(
        self,
        settings: Profile,
        services: Services,
        limiter: EvictionLimiter,
        limits: TimeLimits,
    ) -> None:
        self.settings = settings
        self._services = services
        self._limits = limits
        self._path = ProfileEvictions(settings.name, settings.dry_run)
        self._failures = FailureLog(log, services.clock)
        self._loaded: dict[str, _Loaded] = {}
        self._deschedule: tuple[str, ...] = ()  # names of plugins, in their order
        self._balance: tuple[str, ...] = ()
        self.handle = Handle(
            profile=settings.name,
            services=services,
            dry_run=settings.dry_run,
            node_selector=settings.node_selector,
            runner=self,
            evictor=lambda: EvictorProxy(
                self._path,
                limiter,
                services.metrics,
                services.decisions,
                self._failures,
                gate=services.gate,
                clock=services.clock,
            ),
        )

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def plugins(self) -> Mapping[str, Plugin]:
        """The plugins that are made, by name."""
        return {name: loaded.plugin for name, loaded in self._loaded.items()}

    @property
    def evictions(self) -> Counter[str]:
        """Evictions of this cycle by plugin, those of a dry-run too; cleared by the cycle."""
        return self._path.counts

    def waits_for(self) -> str:
        """Return the plugins that are still not ready after their time; "": none."""
        late = self._services.shared.late()
        return "; ".join(late[name] for name in self._loaded if name in late)

    def select(self, nodes: Sequence[ClusterNode]) -> tuple[ClusterNode, ...]:
        """Return those nodes that this profile is for."""
        selector = self.settings.node_selector
        return tuple(each for each in nodes if selector is None or selector.matches(each.labels))

    async def run_deschedule_plugins(self, nodes: Sequence[ClusterNode]) -> Status:
        """Run all Deschedule plugins in their order, whatever becomes of each."""
        return await self._run(
            self._deschedule,
            "deschedule",
            lambda plugin: cast(DeschedulePlugin, plugin).deschedule(tuple(nodes)),
        )

    async def run_balance_plugins(self, nodes: Sequence[ClusterNode]) -> Status:
        """Run all Balance plugins in their order, whatever becomes of each."""
        return await self._run(
            self._balance,
            "balance",
            lambda plugin: cast(BalancePlugin, plugin).balance(tuple(nodes)),
        )

    async def close(self) -> None:
        """Let the plugins clean up, the last one made first."""
        while self._loaded:
            await self.end(*self._loaded.popitem())

    async def stage(
        self, wanted: Profile, registry: PluginRegistry, build: Set[str]
    ) -> "StagedProfile":
        """Make what a change of this profile needs; nothing changes before it is applied.

        build has the plugins that need a new instance; of the others the present one is kept.

        Raises:
            ProfileError: some cannot be made, or do not fit where the profile names them; what was
                made is closed.
        """
        kept = {name: loaded for name, loaded in self._loaded.items() if name in wanted.names}
        staged = StagedProfile(self, wanted, kept)
        try:
            await staged.make(registry, build)
        except BaseException:
            await staged.discard()
            raise
        return staged

    def take(self, staged: "StagedProfile") -> Mapping[str, _Loaded]:
        """Work as it was staged; return the plugins that are not needed any more."""
        ended = {
            name: loaded
            for name, loaded in self._loaded.items()
            if staged.loaded.get(name) is not loaded
        }
        self.settings, self._loaded = staged.wanted, staged.loaded
        self._deschedule = staged.wanted.enabled(Point.DESCHEDULE)
        self._balance = staged.wanted.enabled(Point.BALANCE)
        self._path.filters, self._path.evictor = staged.filters, staged.evictor
        return ended

    async def make(self, registry: PluginRegistry, name: str, args: object) -> _Loaded:
        """Make one plugin.

        Raises:
            PluginError: it cannot be made.
        """
        entry = registry.get(name)
        assert entry is not None  # noqa: S101 - asked before
        if entry.error:
            raise PluginError(f'plugin "{name}" cannot be used: {entry.error}', name)
        code = PluginCode(name, self._services.clock, step_seconds=self._limits.step)

        async def make() -> object:
            made = entry.plugin(args, self.handle)
            return await made if isawaitable(made) else made

        try:
            plugin = await code.run(make, self._limits.build)
        except Exception as err:
            text = error_text(err)
            raise PluginError(
                f'plugin "{name}" from {entry.source} could not be made: {text}', name
            ) from err
        if isinstance(plugin, Plugin) and (defect := class_defect(type(plugin), Plugin)):
            raise PluginError(f'plugin "{name}" from {entry.source}: {defect}', name)
        if not isinstance(plugin, Plugin):
            found = f"found {plugin!r:.80}"
            raise PluginError(
                f'plugin "{name}" from {entry.source}: wanted a Plugin, {found}', name
            )
        plugin.name = name
        return _Loaded(plugin, code)

    async def end(self, name: str, loaded: _Loaded) -> None:
        """Let a plugin clean up."""
        try:
            await loaded.code.run(loaded.plugin.close, self._limits.build)
        except Exception as err:
            log.warning(
                "plugin.close_failed", profile=self.name, plugin=name, error=error_text(err)
            )

    async def _run(
        self, names: Sequence[str], point: str, call: Callable[[Plugin], Awaitable[object]]
    ) -> Status:
        errors: list[BaseException] = []
        for name in names:
            error = await self._round(self._loaded[name], point, call)
            if error is not None:
                facts = {"profile": self.name, "extension_point": point}
                self._failures.failed("plugin.failed", name, error, **facts)
                failed = RoundFailed(name, error)
                failed.__cause__ = error
                errors.append(failed)
        if len(errors) > 1:
            return Status(PluginErrors(errors))
        return Status(errors[0] if errors else None)

    async def _round(
        self, loaded: _Loaded, point: str, call: Callable[[Plugin], Awaitable[object]]
    ) -> BaseException | None:
        """Run one round of one plugin; return its error."""
        plugin, meter, metrics = loaded.plugin, loaded.code.meter, self._services.metrics
        before, turn = meter.cpu_seconds, PluginRun(plugin.name)
        error, outcome = None, "ok"
        try:
            work = partial(turn.within, partial(call, plugin))
            status = await loaded.code.run(work, self._limits.round, on_end=turn.end)
            error = _error_of(status, plugin.name)
        except PluginTimeout as err:
            error, outcome = err, "late"
        except PluginBlockedLoop as err:
            error, outcome = err, "blocked"
        except Exception as err:
            error = err
        if error is not None and outcome == "ok":
            outcome = "failed"
        metrics.rounds.labels(self.name, plugin.name, point, outcome).inc()
        metrics.cpu_seconds.labels(self.name, plugin.name).inc(meter.cpu_seconds - before)
        return error


class StagedProfile:
    """A change of a profile with all plugins that it needs, not in force yet."""

    def __init__(self, profile: ProfilePlugins, wanted: Profile, kept: dict[str, _Loaded]) -> None:
        self.wanted = wanted
        self.loaded = kept  # plugins of the changed profile
        self.filters: tuple[FilterPlugin, ...] = ()
        self.evictor: EvictPlugin | None = None
        self.profile = profile
        self._made: dict[str, _Loaded] = {}
        self._ended: Mapping[str, _Loaded] = {}

    def apply(self) -> None:
        """Put it into force, at once."""
        self._ended, self._made = self.profile.take(self), {}

    async def finish(self) -> None:
        """Let the plugins that it has replaced clean up."""
        for name, loaded in reversed([*self._ended.items()]):
            await self.profile.end(name, loaded)

    async def discard(self) -> None:
        """Let the plugins that were made clean up; the last one made first."""
        while self._made:
            await self.profile.end(*self._made.popitem())

    async def make(self, registry: PluginRegistry, build: Set[str]) -> None:
        """Make the plugins. Raises ProfileError as ProfilePlugins.stage."""
        errors: list[str] = []
        unmade: set[str] = set()  # whose factories have failed
        for name in _in_order(self.wanted):
            # An unknown name is reported where it is used.
            if name in build and registry.get(name) is not None:
                try:
                    made = await self.profile.make(registry, name, self.wanted.args.get(name))
                except PluginError as err:
                    unmade.add(name)
                    errors.append(str(err))
                else:
                    self.loaded[name] = self._made[name] = made
        self.filters = tuple(self._at(FilterPlugin, Point.FILTER, unmade, errors))  # type: ignore[type-abstract]
        evictors = self._at(EvictPlugin, Point.EVICT, unmade, errors)  # type: ignore[type-abstract]
        self._at(DeschedulePlugin, Point.DESCHEDULE, unmade, errors)  # type: ignore[type-abstract]
        self._at(BalancePlugin, Point.BALANCE, unmade, errors)  # type: ignore[type-abstract]
        if not self.wanted.enabled(Point.EVICT):
            errors.append("no evict plugin is enabled")
        elif len(self.wanted.enabled(Point.EVICT)) > 1:
            errors.append("only one evict plugin can be enabled")
        if errors:
            raise ProfileError(self.wanted.name, errors)
        self.evictor = evictors[0]

    def _at(self, interface: type[P], point: Point, unmade: Set[str], errors: list[str]) -> list[P]:
        """Return the plugins of an extension point, and add what is wrong there."""
        found: list[P] = []
        names = self.wanted.enabled(point)
        for index, name in enumerate(names):
            loaded = self.loaded.get(name)
            if loaded is None and name not in unmade:
                errors.append(f'{interface.__name__} "{name}" does not exist')
            elif loaded is not None and not isinstance(loaded.plugin, interface):
                errors.append(f'plugin "{name}" does not extend {interface.__name__} plugin')
            elif name in names[:index]:
                errors.append(f'plugin "{name}" already registered as "{interface.__name__}"')
            elif loaded is not None:
                found.append(cast(P, loaded.plugin))
        return found


async def build_profile(
    settings: Profile,
    registry: PluginRegistry,
    services: Services,
    limiter: EvictionLimiter,
    limits: TimeLimits = TimeLimits(),
) -> ProfilePlugins:
    """Make a profile and its plugins, one instance of each, in a fixed order.

    Raises:
        ProfileError: everything that is wrong; what was made is closed.
    """
    profile = ProfilePlugins(settings, services, limiter, limits)
    staged = await profile.stage(settings, registry, settings.names)
    staged.apply()
    return profile


def _in_order(profile: Profile) -> tuple[str, ...]:
    """All plugins of a profile, each once, in the order in which they are made."""
    points = (Point.FILTER, Point.EVICT, Point.DESCHEDULE, Point.BALANCE)
    return tuple(dict.fromkeys(name for point in points for name in profile.enabled(point)))


def _error_of(status: Any, plugin: str) -> BaseException | None:
    if status is None:
        return None
    if not isinstance(status, Status):
        return KoordError(f"plugin {plugin}: wanted a Status or None, found {status!r:.80}")
    return status.error


MIN_NODES = 2

ListNodes = Callable[[], Sequence[ClusterNode]]
"""Returns all nodes of the cluster, in a stable order."""

cycle_log = get_logger("koord_descheduler.cycle")


class ClusterTooSmall(KoordError):
    """There are too few nodes for a pod to move anywhere."""


@dataclass(slots=True)
class CycleResult:
    """One cycle, for people and for tests."""

    nodes: int = 0  # ready, and selected by the configuration
    errors: list[str] = field(default_factory=list)  # each with its profile; empty: it went well
    evictions: dict[str, dict[str, int]] = field(default_factory=dict)  # profile -> plugin -> pods
    cut: dict[str, int] = field(default_factory=dict)  # NodeFit that took too long, by namespace
    seconds: float = 0.0  # wall time
    cpu_seconds: float = 0.0  # of the whole process


class Descheduler:
    """Runs cycles; they never overlap."""

    def __init__(
        self,
        profiles: Sequence[ProfilePlugins],
        nodes: ListNodes,
        limiter: EvictionLimiter,
        metrics: FrameworkMetrics,
        clock: Clock,
        *,
        decisions: Decisions,
        interval: float,
        node_selector: LabelSelector | None = None,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        """interval is in seconds, from start to start; 0: a single cycle.

        node_selector None: all nodes. cpu returns the CPU seconds of this process.
        """
        self.profiles = tuple(profiles)
        self._nodes = nodes
        self._limiter = limiter
        self._metrics = metrics
        self._clock = clock
        self._decisions = decisions
        self._interval = interval
        self._selector = node_selector
        self._cpu = cpu
        self._errors: list[str] = []  # of the last cycle
        self._turn = asyncio.Lock()  # of a cycle, or of a change between two
        self._changed = asyncio.Event()

    def health(self) -> PartHealth:
        """Degraded: something went wrong in the last cycle; the rest of it was done."""
        if self._errors:
            return PartHealth(HealthStatus.DEGRADED, f"the last cycle: {'; '.join(self._errors)}")
        return OK

    @asynccontextmanager
    async def between_cycles(self) -> AsyncIterator[None]:
        """Wait for the end of a cycle that runs; none begins inside."""
        async with self._turn:
            yield

    def change(
        self,
        *,
        profiles: Sequence[ProfilePlugins],
        interval: float,
        node_selector: LabelSelector | None,
    ) -> None:
        """Go on with these; only between cycles. Arguments as those of the constructor."""
        self.profiles, self._interval, self._selector = tuple(profiles), interval, node_selector
        self._changed.set()

    async def run(self, stop: Stop) -> None:
        """Run a cycle now and then every interval, until stop, which ends one in its middle.

        A cycle that takes longer than the interval is followed by the next one at once. With the
        interval 0, the next cycle waits until it is changed.
        """
        while not stop.is_set():
            began = self._clock.monotonic()
            await stop.bound(self.run_once())
            await self._pause(began, stop)

    async def _pause(self, began: float, stop: Stop) -> None:
        """Wait for the next cycle."""
        while not stop.is_set():
            self._changed.clear()
            if self._interval <= 0:
                await first_completed(self._changed.wait(), stop.wait())
                continue
            left = began + self._interval - self._clock.monotonic()
            if left <= 0:
                return
            await stop.sleep(left, self._changed)

    async def run_once(self) -> CycleResult:
        """Run one cycle and return its result. Raises nothing but CancelledError."""
        async with self._turn:
            return await self._cycle()

    async def _cycle(self) -> CycleResult:
        result = CycleResult()
        began, cpu, fit_time = self._clock.monotonic(), self._cpu(), FitTime()
        cycle_log.info("cycle.started", profiles=[profile.name for profile in self.profiles])
        try:
            with fit_time.in_force():
                await self._run(result)
        except Exception as err:  # of the list of nodes; the next cycle has its chance
            result.errors.append(error_text(err))
        finally:
            result.seconds = self._clock.monotonic() - began
            result.cpu_seconds = self._cpu() - cpu
            result.evictions = {
                profile.name: dict(profile.evictions)
                for profile in self.profiles
                if profile.evictions
            }
            result.cut = dict(fit_time.cut)
            self._errors = result.errors
            self._metrics.cycles.observe(result.seconds)
            cycle_log.info(
                "cycle.ended",
                seconds=round(result.seconds, 6),
                cpu_seconds=round(result.cpu_seconds, 6),
                nodes=result.nodes,
                evictions=result.evictions,
                node_fit_cut=result.cut,
                errors=result.errors,
            )
        return result

    async def _run(self, result: CycleResult) -> None:
        self._limiter.reset()
        self._decisions.begin(self._clock.wall())
        for profile in self.profiles:
            profile.evictions.clear()
        nodes = self._selected()
        result.nodes = len(nodes)
        if len(nodes) < MIN_NODES:
            raise ClusterTooSmall(
                "the cluster size is 0 or 1 meaning eviction causes service disruption or "
                f"degradation: wanted {MIN_NODES} ready nodes, found {len(nodes)}"
            )
        ready = [profile for profile in self.profiles if not profile.waits_for()]
        for profile in self.profiles:
            if reason := profile.waits_for():  # what its plugins evict would be a guess
                result.errors.append(f"{profile.name}: left out: {reason}")
        for profile in ready:
            _note(result, profile, await profile.run_deschedule_plugins(profile.select(nodes)))
        for profile in ready:
            _note(result, profile, await profile.run_balance_plugins(profile.select(nodes)))

    def _selected(self) -> tuple[ClusterNode, ...]:
        selector = self._selector
        return tuple(
            node
            for node in self._nodes()
            if node.ready and (selector is None or selector.matches(node.labels))
        )


def _note(result: CycleResult, profile: ProfilePlugins, status: Status) -> None:
    if status.error is not None:
        result.errors.append(f"{profile.name}: {status}")
