"""Read and write DeschedulerConfiguration files."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from koord.component.config import componentconfig
from koord.component.config.componentconfig import read_component_config, settled, to_json
from koord.component.config.document import DocumentWithLines, ParseConfig, decode_with_lines
from koord.component.config.field_errors import FieldError
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


def config_parser(
    known: KnownPlugins, leader_election: Mapping[str, object] | None = None
) -> ParseConfig[ReadConfig]:
    """Return the function that reads a file, for read_config and ConfigFollower.

    leader_election has the fields, by attribute, that flags set: they win over the file's.
    """

    def parse(data: bytes, path: Path) -> ReadConfig:
        return parse_configuration(data, path, known, leader_election)

    return parse


def parse_configuration(
    data: bytes,
    path: Path,
    known: KnownPlugins,
    leader_election: Mapping[str, object] | None = None,
) -> ReadConfig:
    """Return the configuration of a file's bytes, YAML or JSON. path is for messages.

    Raises:
        InvalidConfig: it has faults; all are named.
        InvalidObject: it cannot be decoded at all.
    """
    placed = decode_with_lines(data, str(path))
    external, faults = read_component_config(
        placed, DeschedulerConfiguration, group_version=GROUP_VERSION, kind=KIND
    )
    return settled(external, faults, placed, path, _converter(known, leader_election or {}))


def default_configuration(
    known: KnownPlugins, leader_election: Mapping[str, object] | None = None
) -> ReadConfig:
    """Return the configuration of a start without a file. Raises InvalidConfig as above."""
    placed = DocumentWithLines({})
    external = DeschedulerConfiguration()
    return settled(external, [], placed, Path("flags"), _converter(known, leader_election or {}))


def _converter(
    known: KnownPlugins, leader_election: Mapping[str, object]
) -> Callable[[DeschedulerConfiguration], tuple[Configuration | None, list[FieldError]]]:
    """Return what completes a document; leader_election wins over what it says."""

    def convert_completed(
        external: DeschedulerConfiguration,
    ) -> tuple[Configuration | None, list[FieldError]]:
        completed = external.complete()
        election = replace(completed.leader_election, **leader_election)  # type: ignore[arg-type]
        return convert(replace(completed, leader_election=election), known)

    return convert_completed


def to_document(config: Configuration) -> dict[str, object]:
    """Return the document of a configuration as JSON values, with all defaults.

    Each extension point disables the defaults and enables what runs, so that it reads back.
    """
    fields = to_json(_external(config))
    assert isinstance(fields, dict)  # noqa: S101
    return {"apiVersion": GROUP_VERSION, "kind": KIND, **fields}


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
