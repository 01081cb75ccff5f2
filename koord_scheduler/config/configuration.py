"""KubeSchedulerConfiguration files: read, converted to the configuration in force, and written."""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from koord.component.config import componentconfig
from koord.component.config.componentconfig import to_json
from koord.component.config.field_errors import (
    FieldError,
    FieldPath,
    Key,
    duplicate,
    invalid,
    required,
    warning,
)
from koord.controlplane.sections import ClientConnection, ConfigFormat, check_sections
from koord.util.text import snake_case
from koord_scheduler.config.profiles import (
    DEFAULT_PRE_BIND,
    MISSING_PLUGINS,
    KnownPlugins,
    Point,
    Profile,
    is_not_built,
    plugins_by_point,
)
from koord_scheduler.config.v1 import (
    ALL,
    DEFAULT_SCHEDULER_NAME,
    GROUP_VERSION,
    KIND,
    Extender,
    ExtenderTLSConfig,
    KubeSchedulerConfiguration,
    KubeSchedulerProfile,
    LeaderElection,
    NamedPlugin,
    PluginConfig,
    Plugins,
    PluginSet,
    version_hint,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """The configuration of one koord-scheduler."""

    leader_election: LeaderElection
    client_connection: ClientConnection
    parallelism: int  # without effect
    enable_profiling: bool  # without effect
    enable_contention_profiling: bool  # without effect
    delay_cache_until_active: bool  # without effect
    percentage_of_nodes_to_score: int | None  # of all profiles; each has its own in effect
    pod_initial_backoff: int  # seconds
    pod_max_backoff: int  # seconds; 0: no backoff
    profiles: tuple[Profile, ...]
    extenders: tuple[Extender, ...]  # as they are asked: those that may fail come last

    @property
    def not_built(self) -> tuple[str, ...]:
        """Plugins that profiles name and this build does not have, each once."""
        return tuple(dict.fromkeys(name for one in self.profiles for name in one.not_built))


_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_NATIVE = "kubernetes.io"  # resources below it are Kubernetes' own


def check_extenders(extenders: Sequence[Extender]) -> Iterator[FieldError]:
    """Yield the faults of completed extenders."""
    binding, managed = 0, set[str]()
    for index, one in enumerate(extenders):
        path: FieldPath = ("extenders", index)
        yield from _check_url(one, path)
        if one.prioritize_verb and one.weight <= 0:
            wanted = "wanted more than 0, as there is a prioritizeVerb"
            yield invalid((*path, "weight"), one.weight, wanted)
        if one.http_timeout < 0:
            yield invalid((*path, "httpTimeout"), f"{one.http_timeout:g}s", "wanted more than 0s")
        if one.bind_verb:
            binding += 1
            if binding == 2:
                wanted = "only one extender can bind pods"
                yield invalid((*path, "bindVerb"), one.bind_verb, wanted)
        if one.tls_config is not None:
            yield from _check_tls(one.tls_config, (*path, "tlsConfig"))
        for at, resource in enumerate(one.managed_resources):
            place = (*path, "managedResources", at, "name")
            if not is_extended_resource(resource.name):
                wanted = "wanted the name of an extended resource, such as example.com/gpu"
                yield invalid(place, resource.name, wanted)
            elif resource.name in managed:
                yield duplicate(place, resource.name)
            managed.add(resource.name)
        is_asked = one.filter_verb or one.prioritize_verb or one.preempt_verb or one.bind_verb
        if not is_asked and not any(each.ignored_by_scheduler for each in one.managed_resources):
            yield warning(path, "without a verb it is never asked")


def is_extended_resource(name: str) -> bool:
    """Whether a name is one of an extended resource: with a domain that is not Kubernetes' own."""
    domain, slash, rest = name.partition("/")
    if not slash or not _DOMAIN.fullmatch(domain) or len(domain) > 253 or not _NAME.fullmatch(rest):
        return False
    return (
        domain != _NATIVE
        and not domain.endswith(f".{_NATIVE}")
        and not domain.startswith("requests.")
    )


def _check_url(one: Extender, path: FieldPath) -> Iterator[FieldError]:
    place = (*path, "urlPrefix")
    if not one.url_prefix:
        yield required(place)
        return
    try:
        url = urlsplit(one.url_prefix)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        usable = False
    if not usable:
        yield invalid(place, one.url_prefix, "wanted a URL, such as https://extender.example:8888")


def _check_tls(tls: ExtenderTLSConfig, path: FieldPath) -> Iterator[FieldError]:
    for key, text in (
        ("certData", tls.cert_data),
        ("keyData", tls.key_data),
        ("caData", tls.ca_data),
    ):
        try:
            base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            yield FieldError((*path, key), "Invalid value: wanted base64")  # it may be a secret
    has_certificate = bool(tls.cert_file or tls.cert_data)
    if has_certificate != bool(tls.key_file or tls.key_data):
        missing = "keyFile" if has_certificate else "certFile"
        yield required((*path, missing), "a certificate and its key belong together")


_FIT = "NodeResourcesFit"
_IGNORED = "ignored_resources"  # of its arguments


def convert(
    external: KubeSchedulerConfiguration, known: KnownPlugins
) -> tuple[Configuration, list[FieldError]]:
    """Return what a completed configuration means, and its faults; errors make it unusable."""
    faults = [
        *check_sections(external.leader_election, external.client_connection),
        *_check(external),
        *check_extenders(external.extenders),
    ]
    profiles, more = profiles_of(external.profiles, known, external.percentage_of_nodes_to_score)
    ignored = [
        resource.name
        for extender in external.extenders
        for resource in extender.managed_resources
        if resource.ignored_by_scheduler
    ]
    profiles = tuple(_ignoring(one, ignored) for one in profiles)
    return (
        Configuration(
            leader_election=external.leader_election,
            client_connection=external.client_connection,
            parallelism=external.parallelism,
            enable_profiling=external.enable_profiling,
            enable_contention_profiling=external.enable_contention_profiling,
            delay_cache_until_active=external.delay_cache_until_active,
            percentage_of_nodes_to_score=external.percentage_of_nodes_to_score,
            pod_initial_backoff=external.pod_initial_backoff_seconds,
            pod_max_backoff=external.pod_max_backoff_seconds,
            profiles=profiles,
            extenders=tuple(sorted(external.extenders, key=lambda one: one.ignorable)),
        ),
        [*faults, *more],
    )


def _ignoring(profile: Profile, resources: Sequence[str]) -> Profile:
    """The profile whose NodeResourcesFit does not look at resources that extenders manage."""
    args: Any = profile.args.get(_FIT)
    if not resources or not is_dataclass(args) or isinstance(args, type):
        return profile
    merged = dict.fromkeys((*getattr(args, _IGNORED), *resources))
    changed = replace(args, **{_IGNORED: tuple(merged)})
    return replace(profile, args={**profile.args, _FIT: changed})


def profiles_of(
    external: Sequence[KubeSchedulerProfile],
    known: KnownPlugins,
    percentage: int | None = None,
) -> tuple[tuple[Profile, ...], list[FieldError]]:
    """Return what profiles mean, and their faults; errors make them unusable.

    Without a profile there is one of defaults. percentage is the percentageOfNodesToScore of all
    profiles that have none of their own.
    """
    given = external or (KubeSchedulerProfile(),)
    faults: list[FieldError] = []
    made, names, sorts = [], set[str](), set[str]()
    for index, one in enumerate(given):
        path: FieldPath = ("profiles", index)
        name = one.scheduler_name or (DEFAULT_SCHEDULER_NAME if len(given) == 1 else "")
        if not name:
            faults.append(required((*path, "schedulerName")))
        elif name in names:
            faults.append(duplicate((*path, "schedulerName"), name))
        names.add(name)
        profile, found = _profile(name, one, known, path)
        faults += found
        sorts |= {each.name for each in profile.enabled(Point.QUEUE_SORT)}
        own = one.percentage_of_nodes_to_score
        faults += _check_percentage(own, path)
        made.append(replace(profile, percentage_of_nodes_to_score=_either(own, percentage)))
    if len(sorts) > 1:
        hint = "wanted the same queueSort plugin in all profiles"
        faults.append(invalid(("profiles",), sorted(sorts), hint))
    return tuple(made), faults


def _profile(
    name: str, external: KubeSchedulerProfile, known: KnownPlugins, path: FieldPath
) -> tuple[Profile, list[FieldError]]:
    given = _with_missing_plugins(_with_pre_bind(external.plugins, known), known)
    plugins, faults = plugins_by_point(given, known, (*path, "plugins"))
    profile = Profile(scheduler_name=name, plugins=plugins.enabled, not_built=plugins.not_built)
    faults += _check_plugin_config(external.plugin_config, path)
    args, found = _args(external.plugin_config, profile, known, path)
    return replace(profile, args=args), [*faults, *found]


def _with_pre_bind(given: Plugins | None, known: KnownPlugins) -> Plugins:
    """The plugins of a profile that says something of them: with what sends PreBind's patch.

    Source: Koordinator, DefaultPreBind is added to preBind unless it is listed or disabled.
    """
    if given is None or DEFAULT_PRE_BIND not in known:
        return given or Plugins()
    own = given.pre_bind
    out = {one.name for one in own.disabled} & {ALL, DEFAULT_PRE_BIND}
    if out or DEFAULT_PRE_BIND in [one.name for one in own.enabled]:
        return given
    added = replace(own, enabled=(*own.enabled, NamedPlugin(name=DEFAULT_PRE_BIND)))
    return replace(given, pre_bind=added)


def _with_missing_plugins(given: Plugins, known: KnownPlugins) -> Plugins:
    """Return the plugins of a profile, with the one that rejects pods that need a missing plugin.

    It is in every profile that does not list or disable it by its name: with "*" alone, as in
    Koordinator's profiles, such pods would be bound without the missing plugin.
    """
    own, wide = given.pre_filter, given.multi_point
    named = (*own.disabled, *own.enabled, *wide.disabled, *wide.enabled)
    if MISSING_PLUGINS not in known or MISSING_PLUGINS in [one.name for one in named]:
        return given
    added = replace(own, enabled=(*own.enabled, NamedPlugin(name=MISSING_PLUGINS)))
    return replace(given, pre_filter=added)


def _either(own: int | None, common: int | None) -> int | None:
    return common if own is None else own


def _check(external: KubeSchedulerConfiguration) -> Iterator[FieldError]:
    """The rules of what concerns the whole process."""
    if external.parallelism <= 0:
        yield invalid(("parallelism",), external.parallelism, "wanted more than 0")
    yield from _check_percentage(external.percentage_of_nodes_to_score, ())
    first, most = external.pod_initial_backoff_seconds, external.pod_max_backoff_seconds
    if first <= 0:
        yield invalid(("podInitialBackoffSeconds",), first, "wanted more than 0")
    if most != 0 and most < first:
        wanted = "wanted podInitialBackoffSeconds or more, or 0 for no backoff"
        yield invalid(("podMaxBackoffSeconds",), most, wanted)


def _check_percentage(percentage: int | None, path: FieldPath) -> Iterator[FieldError]:
    if percentage is not None and not 0 <= percentage <= 100:
        place = (*path, "percentageOfNodesToScore")
        yield invalid(place, percentage, "not in valid range [0-100]")


def _check_plugin_config(given: Sequence[PluginConfig], path: FieldPath) -> Iterator[FieldError]:
    """The rules of pluginConfig: a name once, arguments of the plugin's own kind."""
    seen: set[str] = set()
    for index, one in enumerate(given):
        place: FieldPath = (*path, "pluginConfig", index)
        if not one.name:
            yield required((*place, "name"))
        elif one.name in seen:
            yield duplicate((*place, "name"), one.name)
        seen.add(one.name)
        if one.args is None:
            continue
        if not isinstance(one.args, Mapping):
            yield invalid((*place, "args"), one.args, "wanted an object")
            continue
        kind = one.args.get("kind")
        if kind is not None and kind != f"{one.name}Args":
            yield invalid((*place, "args", "kind"), kind, f'wanted "{one.name}Args"')
        version = one.args.get("apiVersion")
        if version is not None and version != GROUP_VERSION:
            hint = version_hint(version)
            wanted = f'wanted "{GROUP_VERSION}"{f"; {hint}" if hint else ""}'
            yield invalid((*place, "args", "apiVersion"), version, wanted)


def _args(
    given: Sequence[PluginConfig], profile: Profile, known: KnownPlugins, path: FieldPath
) -> tuple[dict[str, object], list[FieldError]]:
    """The arguments of the enabled plugins by their names, and the faults of all pluginConfig."""
    args: dict[str, object] = {}
    faults: list[FieldError] = []
    for index, one in enumerate(given):
        place: FieldPath = (*path, "pluginConfig", index)
        found, wrong = _read_args(one.name, one.args, (*place, "args"), known)
        faults += wrong
        if one.name not in profile.names:
            faults += _unused(one.name, known, place)
        elif found is not None:
            args[one.name] = found
    configured = {one.name for one in given}
    for name in profile.names:
        plugin = known.get(name)
        if name not in configured and plugin is not None and plugin.args is not None:
            place = (*path, "pluginConfig", Key(name), "args")
            args[name], wrong = plugin.args.read(None, place)
            faults += wrong
    return args, faults


def _read_args(
    name: str, value: object, path: FieldPath, known: KnownPlugins
) -> tuple[object, list[FieldError]]:
    """Return the arguments as the plugin gets them; those of an undeclared type as they are."""
    args_type = known[name].args if name in known else None
    if args_type is None or not isinstance(value, Mapping | None):
        return value, []
    return args_type.read(value, path)


def _unused(name: str, known: KnownPlugins, place: FieldPath) -> Iterator[FieldError]:
    if not name or is_not_built(name, known):
        return  # what is wrong with these is said elsewhere
    if name not in known:
        yield warning(place, f'"{name}" is configured, but there is no such plugin')
    else:
        places = " or ".join(f"plugins.{point}.enabled" for point in sorted(known[name].points))
        yield warning(place, f'"{name}" is configured, but not enabled; add it to {places}')


ReadConfig = componentconfig.ReadConfig[Configuration]

FORMAT: ConfigFormat[KubeSchedulerConfiguration, KnownPlugins, Configuration] = ConfigFormat(
    document=KubeSchedulerConfiguration,
    group_version=GROUP_VERSION,
    kind=KIND,
    convert=convert,
    hint=version_hint,
)
config_parser = FORMAT.parser
parse_configuration = FORMAT.parse
default_configuration = FORMAT.default


def to_document(config: Configuration) -> dict[str, object]:
    """Return the document of a configuration as JSON values, with all defaults.

    Each extension point disables what multiPoint would enable, and enables what runs, so that it
    reads back.
    """
    return FORMAT.to_json(_external(config))


def without_secrets(config: Configuration) -> Configuration:
    """Return what may be shown: without the keys of extenders' certificates."""
    return replace(config, extenders=tuple(map(_without_key, config.extenders)))


def _without_key(extender: Extender) -> Extender:
    if extender.tls_config is None:
        return extender
    return replace(extender, tls_config=replace(extender.tls_config, key_data=""))


def _external(config: Configuration) -> KubeSchedulerConfiguration:
    return KubeSchedulerConfiguration(
        parallelism=config.parallelism,
        leader_election=config.leader_election,
        client_connection=config.client_connection,
        enable_profiling=config.enable_profiling,
        enable_contention_profiling=config.enable_contention_profiling,
        percentage_of_nodes_to_score=config.percentage_of_nodes_to_score,
        pod_initial_backoff_seconds=config.pod_initial_backoff,
        pod_max_backoff_seconds=config.pod_max_backoff,
        profiles=tuple(map(_written_profile, config.profiles)),
        extenders=config.extenders,
        delay_cache_until_active=config.delay_cache_until_active,
    )


def _written_profile(profile: Profile) -> KubeSchedulerProfile:
    nothing = PluginSet(disabled=(NamedPlugin(name=ALL),))
    return KubeSchedulerProfile(
        scheduler_name=profile.scheduler_name,
        percentage_of_nodes_to_score=profile.percentage_of_nodes_to_score,
        plugins=Plugins(
            **{snake_case(point): _plugin_set(profile, point) for point in Point},
            multi_point=nothing,
        ),
        plugin_config=tuple(
            PluginConfig(name=name, args=_written_args(name, args))
            for name, args in profile.args.items()
        ),
    )


def _plugin_set(profile: Profile, point: Point) -> PluginSet:
    scores = point is Point.SCORE
    enabled = tuple(
        NamedPlugin(name=one.name, weight=one.weight if scores else 0)
        for one in profile.enabled(point)
    )
    return PluginSet(enabled=enabled, disabled=(NamedPlugin(name=ALL),))


def _written_args(name: str, args: object) -> object:
    """Arguments of a declared type with their kind; others are as they were given."""
    written = to_json(args)
    if not is_dataclass(args) or not isinstance(written, dict):
        return written
    return {"apiVersion": GROUP_VERSION, "kind": f"{name}Args", **written}
