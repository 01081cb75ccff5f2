"""One profile: its plugins, one instance of each, and their rounds."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any, TypeVar, cast

from koord.api.labelselector import LabelSelector
from koord.cluster.facts import ClusterNode
from koord.util.errors import KoordError
from koord.util.logs import LimitedLog, get_logger
from koord_descheduler.framework.code import PluginCode, PluginHeldLoop, PluginLate
from koord_descheduler.framework.evictor import EvictionPath, EvictorProxy
from koord_descheduler.framework.handle import Handle, Services
from koord_descheduler.framework.interfaces import (
    BalancePlugin,
    DeschedulePlugin,
    EvictPlugin,
    FilterPlugin,
    Plugin,
)
from koord_descheduler.framework.limiter import EvictionLimiter
from koord_descheduler.framework.registry import PluginRegistry
from koord_descheduler.framework.status import Status
from koord_descheduler.framework.turn import Turn

P = TypeVar("P", bound=Plugin)

log = get_logger("koord_descheduler.framework")


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeLimits:
    """Bounds of plugins' code, in seconds."""

    build: float = 60.0  # a factory
    round: float = 300.0  # one round of a plugin
    step: float = 10.0  # real time without awaiting, which holds up everything else


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileSettings:
    """Settings of a profile: names of plugins at each extension point, in their order."""

    name: str
    node_selector: LabelSelector | None = None  # None: all nodes
    dry_run: bool = False
    deschedule: tuple[str, ...] = ()
    balance: tuple[str, ...] = ()
    evict: tuple[str, ...] = ()
    filter: tuple[str, ...] = ()
    args: Mapping[str, object] = field(default_factory=dict)  # by plugin; absent: None

    @property
    def plugins(self) -> tuple[str, ...]:
        """All plugins, each once."""
        named = (*self.filter, *self.evict, *self.deschedule, *self.balance)
        return tuple(dict.fromkeys(named))


class ProfileError(KoordError):
    """A profile cannot be built; the message has everything that is wrong with it."""

    def __init__(self, profile: str, errors: Sequence[str]) -> None:
        super().__init__(f"profile {profile}: {'; '.join(errors)}")
        self.errors = tuple(errors)


class PluginErrors(KoordError):
    """Errors of several plugins."""

    def __init__(self, errors: Sequence[BaseException]) -> None:
        super().__init__(f"[{', '.join(str(err) or repr(err) for err in errors)}]")
        self.errors = tuple(errors)


@dataclass(frozen=True, slots=True)
class _Loaded:
    plugin: Plugin
    code: PluginCode


class ProfilePlugins:
    """A profile whose plugins are made; see build_profile."""

    def __init__(
        self,
        settings: ProfileSettings,
        services: Services,
        limiter: EvictionLimiter,
        limits: TimeLimits,
    ) -> None:
        self.settings = settings
        self._services = services
        self._limits = limits
        self._path = EvictionPath(settings.name, settings.dry_run)
        failures = LimitedLog(log, services.clock)
        self._loaded: dict[str, _Loaded] = {}
        self._unmade: set[str] = set()  # plugins whose factories have failed
        self.handle = Handle(
            profile=settings.name,
            services=services,
            dry_run=settings.dry_run,
            node_selector=settings.node_selector,
            runner=self,
            evictor=lambda: EvictorProxy(
                self._path, limiter, services.metrics, services.decisions, failures
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

    def select(self, nodes: Sequence[ClusterNode]) -> tuple[ClusterNode, ...]:
        """Return those nodes that this profile is for."""
        selector = self.settings.node_selector
        return tuple(each for each in nodes if selector is None or selector.matches(each.labels))

    async def run_deschedule_plugins(self, nodes: Sequence[ClusterNode]) -> Status:
        """Run all Deschedule plugins in their order, whatever becomes of each."""
        return await self._run(
            self.settings.deschedule,
            "deschedule",
            lambda plugin: cast(DeschedulePlugin, plugin).deschedule(tuple(nodes)),
        )

    async def run_balance_plugins(self, nodes: Sequence[ClusterNode]) -> Status:
        """Run all Balance plugins in their order, whatever becomes of each."""
        return await self._run(
            self.settings.balance,
            "balance",
            lambda plugin: cast(BalancePlugin, plugin).balance(tuple(nodes)),
        )

    async def close(self) -> None:
        """Let the plugins clean up, the last one made first."""
        while self._loaded:
            name, loaded = self._loaded.popitem()
            try:
                await loaded.code.run(loaded.plugin.close, self._limits.build)
            except Exception as err:
                log.warning("plugin.unclosed", profile=self.name, plugin=name, error=str(err))

    async def load(self, registry: PluginRegistry) -> None:
        """Make the plugins.

        Raises:
            ProfileError: some cannot be made, or do not fit where the profile names them.
        """
        errors: list[str] = []
        for name in self.settings.plugins:
            errors += await self._make(registry, name)
        self._path.filters = tuple(self._at(FilterPlugin, self.settings.filter, errors))  # type: ignore[type-abstract]
        evictors = self._at(EvictPlugin, self.settings.evict, errors)  # type: ignore[type-abstract]
        self._at(DeschedulePlugin, self.settings.deschedule, errors)  # type: ignore[type-abstract]
        self._at(BalancePlugin, self.settings.balance, errors)  # type: ignore[type-abstract]
        if not self.settings.evict:
            errors.append("no evict plugin is enabled")
        elif len(self.settings.evict) > 1:
            errors.append("only one evict plugin can be enabled")
        if errors:
            raise ProfileError(self.name, errors)
        self._path.evictor = evictors[0]

    async def _make(self, registry: PluginRegistry, name: str) -> list[str]:
        """Make one plugin; return what went wrong. An unknown name is reported where it is used."""
        entry = registry.get(name)
        if entry is None:
            return []
        code = PluginCode(name, self._services.clock, step_seconds=self._limits.step)
        args = self.settings.args.get(name)

        async def make() -> object:
            made = entry.plugin(args, self.handle)
            return await made if isawaitable(made) else made

        try:
            plugin = await code.run(make, self._limits.build)
        except Exception as err:
            self._unmade.add(name)
            text = str(err) or repr(err)
            return [f'plugin "{name}" from {entry.source} could not be made: {text}']
        if not isinstance(plugin, Plugin):
            self._unmade.add(name)
            return [f'plugin "{name}" from {entry.source}: wanted a Plugin, found {plugin!r:.80}']
        plugin.name = name
        self._loaded[name] = _Loaded(plugin, code)
        return []

    def _at(self, interface: type[P], names: Sequence[str], errors: list[str]) -> list[P]:
        """Return the plugins of an extension point, and add what is wrong there."""
        found: list[P] = []
        for index, name in enumerate(names):
            loaded = self._loaded.get(name)
            if loaded is None and name not in self._unmade:
                errors.append(f'{interface.__name__} "{name}" does not exist')
            elif loaded is not None and not isinstance(loaded.plugin, interface):
                errors.append(f'plugin "{name}" does not extend {interface.__name__} plugin')
            elif name in names[:index]:
                errors.append(f'plugin "{name}" already registered as "{interface.__name__}"')
            elif loaded is not None:
                found.append(cast(P, loaded.plugin))
        return found

    async def _run(
        self, names: Sequence[str], point: str, call: Callable[[Plugin], Awaitable[object]]
    ) -> Status:
        errors: list[BaseException] = []
        for name in names:
            error = await self._round(self._loaded[name], point, call)
            if error is not None:
                errors.append(error)
                text = str(error) or repr(error)
                facts = {"profile": self.name, "plugin": name, "extension_point": point}
                log.error("plugin.failed", **facts, error=text)
        if len(errors) > 1:
            return Status(PluginErrors(errors))
        return Status(errors[0] if errors else None)

    async def _round(
        self, loaded: _Loaded, point: str, call: Callable[[Plugin], Awaitable[object]]
    ) -> BaseException | None:
        """Run one round of one plugin; return its error."""
        plugin, meter, metrics = loaded.plugin, loaded.code.meter, self._services.metrics
        before, turn = meter.cpu_seconds, Turn(plugin.name)
        error, outcome = None, "ok"
        try:
            status = await loaded.code.run(lambda: call(plugin), self._limits.round, turn)
            error = _error_of(status, plugin.name)
        except PluginLate as err:
            error, outcome = err, "late"
        except PluginHeldLoop as err:
            error, outcome = err, "blocked"
        except Exception as err:
            error = err
        if error is not None and outcome == "ok":
            outcome = "failed"
        metrics.rounds.labels(self.name, plugin.name, point, outcome).inc()
        metrics.cpu_seconds.labels(self.name, plugin.name).inc(meter.cpu_seconds - before)
        return error


async def build_profile(
    settings: ProfileSettings,
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
    try:
        await profile.load(registry)
    except BaseException:
        await profile.close()
        raise
    return profile


def _error_of(status: Any, plugin: str) -> BaseException | None:
    if status is None:
        return None
    if not isinstance(status, Status):
        return KoordError(f"plugin {plugin}: wanted a Status or None, found {status!r:.80}")
    return status.error
