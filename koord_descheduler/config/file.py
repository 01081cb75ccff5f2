"""Read and write DeschedulerConfiguration files."""

from koord.component.config import componentconfig
from koord.component.config.componentconfig import to_json
from koord.controlplane.sections import ConfigFormat
from koord_descheduler.config.configuration import (
    ALL,
    Configuration,
    KnownPlugins,
    Point,
    Profile,
    convert,
)
from koord_descheduler.config.v1alpha2 import (
    GROUP_VERSION,
    KIND,
    DeschedulerConfiguration,
    DeschedulerProfile,
    PluginConfig,
    PluginName,
    Plugins,
    PluginSet,
)

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
        plugins=Plugins(**{point.value: _plugin_set(profile, point) for point in Point}),
        plugin_config=tuple(
            PluginConfig(name=name, args=to_json(args)) for name, args in profile.args.items()
        ),
        dry_run=profile.dry_run,
    )


def _plugin_set(profile: Profile, point: Point) -> PluginSet:
    enabled = tuple(PluginName(name=name) for name in profile.enabled(point))
    return PluginSet(enabled=enabled, disabled=(PluginName(name=ALL),))
