"""DeschedulerConfiguration: as files have it (v1alpha2), checked, and as it is in force.

Source: Koordinator, pkg/descheduler/apis/config/v1alpha2; dryRun of a profile and evictionLedger
are not in it.
"""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol, Self, runtime_checkable

from koord.api.labelselector import LabelSelector, check_selector, parse_selector_text
from koord.component.config import componentconfig
from koord.component.config.componentconfig import Int32, Seconds, UInt, to_json
from koord.component.config.field_errors import (
    FieldError,
    FieldPath,
    Key,
    duplicate,
    invalid,
    invalid_duration,
    required,
    warning,
)
from koord.component.plugins.args import ArgsType
from koord.controlplane import sections
from koord.controlplane.sections import ClientConnection, ConfigFormat, check_sections
from koord.util.errors import InvalidObject
from koord.util.goformat import split_address
from koord.util.text import nearest

GROUP_VERSION = "descheduler/v1alpha2"
KIND = "DeschedulerConfiguration"

DEFAULT_NAME = "koord-descheduler"
DEFAULT_PORT = 10251


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaderElection(sections.LeaderElection):
    """One of several replicas is the leader, which holds a Lease and does the work."""

    resource_name: str = DEFAULT_NAME  # name of the Lease


@dataclass(frozen=True, kw_only=True, slots=True)
class EvictionLedger:
    """Measures the relief of evictions for load; pauses workloads whose evictions bring none."""

    enabled: bool = True  # off: nothing is measured, and nothing rejected
    spacing: Seconds = 60.0  # least seconds from any eviction of a workload to one for load
    settle_time: Seconds = 300.0  # from when a pod has left until reports are without it


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginName:
    """One plugin of a set."""

    name: str = ""  # of the plugin; "*" under disabled: all


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginSet:
    """The difference to the default plugins of an extension point. Enabled wins over disabled."""

    enabled: tuple[PluginName, ...] = ()  # run in this order, after the defaults
    disabled: tuple[PluginName, ...] = ()  # defaults that do not run


@dataclass(frozen=True, kw_only=True, slots=True)
class Plugins:
    """The plugins of a profile."""

    deschedule: PluginSet | None = None  # evict pods that violate a rule; by default none
    balance: PluginSet | None = None  # even out the load; by default none
    evict: PluginSet | None = None  # exactly one; by default MigrationController
    filter: PluginSet | None = None  # all must let a pod go; by default MigrationController


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginConfig:
    """The arguments of one plugin."""

    name: str = ""  # of the plugin
    args: object = None  # see the plugin; not set: its defaults


@dataclass(frozen=True, kw_only=True, slots=True)
class DeschedulerProfile:
    """Plugins that run together."""

    name: str = ""  # unique; koord-descheduler when it is the only profile
    node_selector: LabelSelector | None = None  # nodes of this profile; not set: all
    plugins: Plugins | None = None  # differences to the default plugins
    plugin_config: tuple[PluginConfig, ...] = ()  # arguments, one entry for a plugin
    dry_run: bool = False  # decide, but evict nothing in this profile


@dataclass(frozen=True, kw_only=True, slots=True)
class DeschedulerConfiguration:
    """The configuration of one koord-descheduler."""

    leader_election: LeaderElection = LeaderElection()  # see below
    client_connection: ClientConnection = ClientConnection()  # see below
    enable_profiling: bool = True  # serve profiles of the process
    enable_contention_profiling: bool | None = None  # not set: as enableProfiling
    healthz_bind_address: str | None = None  # HOST:PORT of plain HTTP; not set: 127.0.0.1:10251
    metrics_bind_address: str | None = None  # HOST:PORT of plain HTTP; not set: 127.0.0.1:10251
    descheduling_interval: Seconds = 0.0  # seconds from start to start; 0: a single cycle
    dry_run: bool = False  # decide, but evict nothing
    profiles: tuple[DeschedulerProfile, ...] = ()  # run in this order; none: one of defaults
    node_selector: LabelSelector | None = None  # nodes of all profiles; not set: all
    max_no_of_pods_to_evict_per_node: UInt | None = None  # in a cycle; not set: no limit, 0: none
    max_no_of_pods_to_evict_per_namespace: UInt | None = None  # in a cycle; not set: no limit
    max_no_of_pods_to_evict_total: UInt | None = None  # in a cycle; not set: no limit
    eviction_ledger: EvictionLedger = EvictionLedger()  # see below

    def complete(self) -> Self:
        """Return it with all defaults but those of profiles' plugins."""
        contention = self.enable_contention_profiling
        return replace(
            self,
            leader_election=self.leader_election.complete(),
            client_connection=self.client_connection.complete(),
            enable_contention_profiling=self.enable_profiling if contention is None else contention,
            healthz_bind_address=_bind_address(self.healthz_bind_address),
            metrics_bind_address=_bind_address(self.metrics_bind_address),
            profiles=_named(self.profiles or (DeschedulerProfile(),)),
        )


def _named(profiles: tuple[DeschedulerProfile, ...]) -> tuple[DeschedulerProfile, ...]:
    """The profiles; a single one has a name."""
    if len(profiles) > 1 or profiles[0].name:
        return profiles
    return (replace(profiles[0], name=DEFAULT_NAME),)


def _bind_address(given: str | None) -> str:
    """The address to listen on: host and port are filled in, what is neither stays.

    Source: Koordinator, SetDefaults_DeschedulerConfiguration; there with 0.0.0.0 when not set.
    """
    if given is None:
        return f"127.0.0.1:{DEFAULT_PORT}"
    try:
        host, port = split_address(given)
    except ValueError:
        return _with_port(given)
    return given if host else f"0.0.0.0:{port}"


def _with_port(given: str) -> str:
    try:
        address = ipaddress.ip_address(given)
    except ValueError:
        return given
    host = f"[{address}]" if address.version == 6 else str(address)
    return f"{host}:{DEFAULT_PORT}"


Percents = Mapping[str, float]
"""Percent by name of resource."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Namespaces:
    """Names of namespaces; without include all but those in exclude."""

    include: tuple[str, ...] = ()  # names; only these
    exclude: tuple[str, ...] = ()  # names; all but these


@dataclass(frozen=True, kw_only=True, slots=True)
class PriorityThreshold:
    """Pods of this priority and above stay."""

    value: Int32 | None = None  # priority
    name: str = ""  # of the PriorityClass; used when value is not set


@dataclass(frozen=True, kw_only=True, slots=True)
class PodSelector:
    """A selector of pods, with a name for people."""

    name: str = ""  # for people
    selector: LabelSelector | None = None  # not set: the entry is ignored


def check_namespaces(path: FieldPath, namespaces: Namespaces | None) -> Iterator[FieldError]:
    """Check that at most one of the two lists has names."""
    if namespaces is not None and namespaces.include and namespaces.exclude:
        wanted = "only one of Include/Exclude namespaces can be set"
        yield invalid(path, to_json(namespaces), wanted)


def check_label_selector(path: FieldPath, selector: LabelSelector | None) -> Iterator[FieldError]:
    """Kubernetes must accept it."""
    if selector is None:
        return
    try:
        check_selector(selector, "selector")
    except InvalidObject as err:
        yield invalid(path, to_json(selector), str(err))


def check_selector_text(path: FieldPath, text: str) -> Iterator[FieldError]:
    """A selector as kubectl has it; empty: everything."""
    try:
        parse_selector_text(text, "selector")
    except InvalidObject as err:
        yield invalid(path, text, str(err))


def check_pod_selectors(selectors: Sequence[PodSelector]) -> Iterator[FieldError]:
    """Each selector must be valid."""
    for index, one in enumerate(selectors):
        yield from check_label_selector(("podSelectors", index, "selector"), one.selector)


def check_percents(path: FieldPath, percents: Percents) -> Iterator[FieldError]:
    """Shares of something that cannot exceed 100 percent."""
    for name, percent in percents.items():
        if not 0 <= percent <= 100:
            yield invalid((*path, Key(name)), percent, "wanted 0 to 100 percent")


def check_unique(path: FieldPath, names: Sequence[str], key: str = "") -> Iterator[FieldError]:
    """No item of a list may repeat another one; key: the field of the item that has the name."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name and name in seen:
            yield duplicate((*path, index, key) if key else (*path, index), name)
        seen.add(name)


@runtime_checkable
class IntervalDependent(Protocol):
    """Arguments that depend on how often the descheduler runs."""

    def for_interval(self, interval: float) -> Self:
        """Return the arguments for an interval in seconds; 0: there is a single cycle."""
        ...


@runtime_checkable
class HistoryDependent(Protocol):
    """Arguments that wait for what is seen in several cycles."""

    def as_if_lasting(self) -> Self:
        """Return the arguments for a plan, whose only cycle counts as if it had lasted."""
        ...


def check_pods(
    namespaces: Namespaces | None, selector: LabelSelector | None
) -> Iterator[FieldError]:
    yield from check_namespaces(("namespaces",), namespaces)
    yield from check_label_selector(("labelSelector",), selector)


@runtime_checkable
class HotThresholds(Protocol):
    """Arguments with thresholds above which nodes are hot."""

    def hot_thresholds(self) -> Iterator[tuple[Percents, LabelSelector | None]]:
        """Yield thresholds in percent of allocatable, and the nodes they are for; None: all."""
        ...


class Point(StrEnum):
    """An extension point, as profiles name it."""

    DESCHEDULE = "deschedule"
    BALANCE = "balance"
    EVICT = "evict"
    FILTER = "filter"

    @property
    def interface(self) -> str:
        """The interface that its plugins have, for messages."""
        return f"{self.value.capitalize()}Plugin"


@dataclass(frozen=True, slots=True)
class KnownPlugin:
    """The extension points and the args type of a plugin, for checks of the configuration."""

    points: frozenset[Point]
    args: ArgsType | None = None  # None: any object, which the plugin reads itself


KnownPlugins = Mapping[str, KnownPlugin]
"""The plugins that profiles may name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvictionLimits:
    """Pods that may be evicted in one cycle, of all profiles together. None: no limit."""

    per_node: int | None = None
    per_namespace: int | None = None
    total: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Plugins that run together."""

    name: str
    node_selector: LabelSelector | None = None  # None: all nodes
    dry_run: bool = False  # of this profile; the configuration's holds for all
    plugins: Mapping[Point, tuple[str, ...]] = field(default_factory=dict)  # in their order
    args: Mapping[str, object] = field(default_factory=dict)  # of enabled plugins, by their names

    def enabled(self, point: Point) -> tuple[str, ...]:
        """The plugins of an extension point, in the order in which they run."""
        return self.plugins.get(point, ())

    @property
    def names(self) -> frozenset[str]:
        """All plugins of the profile; each is built once."""
        return frozenset(name for point in Point for name in self.enabled(point))


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """The configuration of one koord-descheduler."""

    leader_election: LeaderElection
    client_connection: ClientConnection
    enable_profiling: bool
    enable_contention_profiling: bool
    healthz_bind_address: str  # HOST:PORT of plain HTTP; port 0: off
    metrics_bind_address: str  # the same
    descheduling_interval: float  # seconds from start to start; 0: a single cycle
    dry_run: bool  # of all profiles
    node_selector: LabelSelector | None  # of all profiles; None: all nodes
    limits: EvictionLimits
    profiles: tuple[Profile, ...]  # in the order in which they run
    eviction_ledger: EvictionLedger = field(default_factory=EvictionLedger)

    def is_dry_run(self, profile: Profile) -> bool:
        """Whether a profile evicts nothing."""
        return self.dry_run or profile.dry_run


DEFAULT_PLUGINS = {
    Point.DESCHEDULE: (),
    Point.BALANCE: (),
    Point.EVICT: ("MigrationController",),
    Point.FILTER: ("MigrationController",),
}
ALL = "*"
_MAX_LEDGER_SECONDS = 1800.0  # seconds; it waits an hour for what it measures

_HOST = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9.]{0,251}[A-Za-z0-9])?")


def convert(
    external: DeschedulerConfiguration, known: KnownPlugins
) -> tuple[Configuration, list[FieldError]]:
    """Return what a completed configuration means, and its faults; errors make it unusable."""
    faults = list(_check(external))
    profiles = []
    for index, profile in enumerate(external.profiles):
        path: FieldPath = ("profiles", index)
        plugins = {
            point: merged(DEFAULT_PLUGINS[point], _plugin_set(profile.plugins, point))
            for point in Point
        }
        faults += _check_profile(profile, path)
        for point, names in plugins.items():
            faults += _check_plugins(profile, point, names, path, known)
        enabled = frozenset(name for names in plugins.values() for name in names)
        args, found = _args(profile, enabled, path, known)
        faults += found
        profiles.append(
            Profile(
                name=profile.name,
                node_selector=profile.node_selector,
                dry_run=profile.dry_run,
                plugins=plugins,
                args={
                    name: _for_interval(item, external.descheduling_interval)
                    for name, item in sorted(args.items())
                },
            )
        )
    return _configuration(external, tuple(profiles)), faults


def merged(defaults: Sequence[str], user: PluginSet) -> tuple[str, ...]:
    """The plugins of an extension point: the defaults, changed by what a profile says.

    Source: Koordinator, mergePluginSet.
    """
    enabled = [plugin.name for plugin in user.enabled]
    disabled = {plugin.name for plugin in user.disabled}
    if ALL in disabled:
        return tuple(enabled)
    last = {name: index for index, name in enumerate(enabled)}
    kept = [name for name in defaults if name not in disabled]
    in_place = {last[name] for name in kept if name in last}
    return (*kept, *(name for index, name in enumerate(enabled) if index not in in_place))


def _configuration(
    external: DeschedulerConfiguration, profiles: tuple[Profile, ...]
) -> Configuration:
    return Configuration(
        leader_election=external.leader_election,
        client_connection=external.client_connection,
        enable_profiling=external.enable_profiling,
        enable_contention_profiling=bool(external.enable_contention_profiling),
        healthz_bind_address=external.healthz_bind_address or "",
        metrics_bind_address=external.metrics_bind_address or "",
        descheduling_interval=external.descheduling_interval,
        dry_run=external.dry_run,
        node_selector=external.node_selector,
        limits=EvictionLimits(
            per_node=external.max_no_of_pods_to_evict_per_node,
            per_namespace=external.max_no_of_pods_to_evict_per_namespace,
            total=external.max_no_of_pods_to_evict_total,
        ),
        profiles=profiles,
        eviction_ledger=external.eviction_ledger,
    )


def _check(external: DeschedulerConfiguration) -> Iterator[FieldError]:
    """The rules of what concerns the whole process."""
    yield from check_sections(external.leader_election, external.client_connection)
    for key, address in (
        ("healthzBindAddress", external.healthz_bind_address),
        ("metricsBindAddress", external.metrics_bind_address),
    ):
        yield from _check_address((key,), address or "")
    if external.descheduling_interval < 0:
        interval = external.descheduling_interval
        yield invalid_duration(("deschedulingInterval",), interval, "wanted 0s or more")
    elif external.descheduling_interval == 0:
        yield warning(("deschedulingInterval",), "0s: there is a single cycle; set it to go on")
    yield from check_label_selector(("nodeSelector",), external.node_selector)
    yield from _check_ledger(external.eviction_ledger)
    first: set[str] = set()
    for index, profile in enumerate(external.profiles):
        if profile.name and profile.name in first:
            yield duplicate(("profiles", index, "name"), profile.name)
        first.add(profile.name)


def _check_ledger(ledger: EvictionLedger) -> Iterator[FieldError]:
    for key, seconds in (("spacing", ledger.spacing), ("settleTime", ledger.settle_time)):
        if not 0 <= seconds <= _MAX_LEDGER_SECONDS:
            yield invalid_duration(("evictionLedger", key), seconds, "wanted 0s to 30m0s")


def _check_address(path: FieldPath, address: str) -> Iterator[FieldError]:
    try:
        host, _ = split_address(address)
    except ValueError as err:
        yield invalid(path, address, str(err))
        return
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not _HOST.fullmatch(host):
            yield invalid(path, address, "wanted an IP address or the name of a host")


def _check_profile(profile: DeschedulerProfile, path: FieldPath) -> Iterator[FieldError]:
    if not profile.name:
        yield required((*path, "name"))
    yield from check_label_selector((*path, "nodeSelector"), profile.node_selector)
    seen: set[str] = set()
    for index, config in enumerate(profile.plugin_config):
        place = (*path, "pluginConfig", index, "name")
        if not config.name:
            yield required(place)
        elif config.name in seen:
            yield duplicate(place, config.name)
        seen.add(config.name)


def _plugin_set(plugins: Plugins | None, point: Point) -> PluginSet:
    return getattr(plugins, point.value, None) or PluginSet()


def _check_plugins(
    profile: DeschedulerProfile,
    point: Point,
    names: Iterable[str],
    path: FieldPath,
    known: KnownPlugins,
) -> Iterator[FieldError]:
    """The rules of the plugins that are enabled at one extension point."""
    section = (*path, "plugins", point.value)
    enabled = [plugin.name for plugin in _plugin_set(profile.plugins, point).enabled]
    places = {name: (*section, "enabled", at, "name") for at, name in enumerate(enabled)}
    seen: set[str] = set()
    for name in names:
        place = places.get(name, section)
        if not name:
            yield required(place)
        elif name in seen:
            wanted = f'plugin "{name}" already registered as "{point.interface}"'
            yield invalid(place, name, wanted)
        elif name not in known:
            close = nearest(name, (one for one in known if point in known[one].points))
            hint = f'; did you mean "{close}"?' if close else ""
            yield invalid(place, name, f'{point.interface} "{name}" does not exist{hint}')
        elif point not in known[name].points:
            points = " and ".join(sorted(known[name].points))
            wanted = f'plugin "{name}" does not extend {point.interface} plugin; it is for {points}'
            yield invalid(place, name, wanted)
        seen.add(name)
    if point is Point.EVICT and not seen:
        yield required(section, "no evict plugin is enabled")
    if point is Point.EVICT and len(seen) > 1:
        hint = f"disable one of {', '.join(sorted(seen))}"
        yield invalid(section, enabled, f"only one evict plugin can be enabled; {hint}")


def _args(
    profile: DeschedulerProfile, enabled: frozenset[str], path: FieldPath, known: KnownPlugins
) -> tuple[dict[str, object], list[FieldError]]:
    """The arguments of the enabled plugins by their names, and the faults of all pluginConfig."""
    args: dict[str, object] = {}
    faults: list[FieldError] = []
    for index, config in enumerate(profile.plugin_config):
        place: FieldPath = (*path, "pluginConfig", index)
        found, wrong = _read_args(config.name, config.args, (*place, "args"), known)
        faults += wrong
        if config.name in enabled:
            args[config.name] = found
        elif config.name:
            faults.append(warning(place, _unused(config.name, known)))
    configured = {config.name for config in profile.plugin_config}
    for name in sorted(enabled - configured):
        if name in known and known[name].args is not None:
            place = (*path, "pluginConfig", Key(name), "args")
            args[name], wrong = _read_args(name, None, place, known)
            faults += wrong
    return args, faults


def _read_args(
    name: str, value: object, path: FieldPath, known: KnownPlugins
) -> tuple[object, list[FieldError]]:
    args_type = known[name].args if name in known else None
    if args_type is not None:
        return args_type.read(value, path)
    if value is None or isinstance(value, dict):
        return value or {}, []
    return None, [invalid(path, value, "wanted an object")]


def _unused(name: str, known: KnownPlugins) -> str:
    if name not in known:
        return f'"{name}" is configured, but there is no such plugin'
    places = " or ".join(f"plugins.{point}.enabled" for point in sorted(known[name].points))
    return f'"{name}" is configured, but not enabled; add it to {places}'


def _for_interval(args: object, interval: float) -> object:
    return args.for_interval(interval) if isinstance(args, IntervalDependent) else args


ReadConfig = componentconfig.ReadConfig[Configuration]

FORMAT: ConfigFormat[DeschedulerConfiguration, KnownPlugins, Configuration] = ConfigFormat(
    document=DeschedulerConfiguration, group_version=GROUP_VERSION, kind=KIND, convert=convert
)
config_parser = FORMAT.parser
parse_configuration = FORMAT.parse
default_configuration = FORMAT.default


def to_document(config: Configuration) -> dict[str, object]:
    """Return the document of a configuration as JSON values, with all defaults.

    Each extension point disables the defaults and enables what runs, so that it reads back.
    """
    return FORMAT.to_json(_external(config))


def _external(config: Configuration) -> DeschedulerConfiguration:
    return DeschedulerConfiguration(
        leader_election=config.leader_election,
        client_connection=config.client_connection,
        enable_profiling=config.enable_profiling,
        enable_contention_profiling=config.enable_contention_profiling,
        healthz_bind_address=config.healthz_bind_address,
        metrics_bind_address=config.metrics_bind_address,
        descheduling_interval=config.descheduling_interval,
        dry_run=config.dry_run,
        profiles=tuple(map(_profile, config.profiles)),
        node_selector=config.node_selector,
        max_no_of_pods_to_evict_per_node=config.limits.per_node,
        max_no_of_pods_to_evict_per_namespace=config.limits.per_namespace,
        max_no_of_pods_to_evict_total=config.limits.total,
        eviction_ledger=config.eviction_ledger,
    )


def _profile(profile: Profile) -> DeschedulerProfile:
    return DeschedulerProfile(
        name=profile.name,
        node_selector=profile.node_selector,
        plugins=Plugins(**{point.value: _written_set(profile, point) for point in Point}),
        plugin_config=tuple(
            PluginConfig(name=name, args=to_json(args)) for name, args in profile.args.items()
        ),
        dry_run=profile.dry_run,
    )


def _written_set(profile: Profile, point: Point) -> PluginSet:
    enabled = tuple(PluginName(name=name) for name in profile.enabled(point))
    return PluginSet(enabled=enabled, disabled=(PluginName(name=ALL),))
