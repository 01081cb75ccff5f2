"""Read and write KubeSchedulerConfiguration files."""

from dataclasses import is_dataclass, replace

from koord.component.config import componentconfig
from koord.component.config.componentconfig import to_json
from koord.controlplane.sections import ConfigFormat
from koord.util.text import snake_case
from koord_scheduler.config.configuration import Configuration, convert
from koord_scheduler.config.profiles import KnownPlugins, Point, Profile
from koord_scheduler.config.v1 import (
    ALL,
    GROUP_VERSION,
    KIND,
    Extender,
    KubeSchedulerConfiguration,
    KubeSchedulerProfile,
    NamedPlugin,
    PluginConfig,
    Plugins,
    PluginSet,
    version_hint,
)

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
        profiles=tuple(map(_profile, config.profiles)),
        extenders=config.extenders,
        delay_cache_until_active=config.delay_cache_until_active,
    )


def _profile(profile: Profile) -> KubeSchedulerProfile:
    nothing = PluginSet(disabled=(NamedPlugin(name=ALL),))
    return KubeSchedulerProfile(
        scheduler_name=profile.scheduler_name,
        percentage_of_nodes_to_score=profile.percentage_of_nodes_to_score,
        plugins=Plugins(
            **{snake_case(point): _plugin_set(profile, point) for point in Point},
            multi_point=nothing,
        ),
        plugin_config=tuple(
            PluginConfig(name=name, args=_args(name, args)) for name, args in profile.args.items()
        ),
    )


def _plugin_set(profile: Profile, point: Point) -> PluginSet:
    scores = point is Point.SCORE
    enabled = tuple(
        NamedPlugin(name=one.name, weight=one.weight if scores else 0)
        for one in profile.enabled(point)
    )
    return PluginSet(enabled=enabled, disabled=(NamedPlugin(name=ALL),))


def _args(name: str, args: object) -> object:
    """Arguments of a declared type with their kind; others are as they were given."""
    written = to_json(args)
    if not is_dataclass(args) or not isinstance(written, dict):
        return written
    return {"apiVersion": GROUP_VERSION, "kind": f"{name}Args", **written}
