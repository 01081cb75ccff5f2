"""Read and write KubeSchedulerConfiguration files."""

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass, replace
from pathlib import Path

from koord.component.config import componentconfig
from koord.component.config.componentconfig import read_component_config, settled, to_json
from koord.component.config.document import DocumentWithLines, ParseConfig, decode_with_lines
from koord.component.config.field_errors import FieldError
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

Fields = Mapping[str, object]
"""Fields of a section, by attribute, that flags set: they win over the file's."""


def config_parser(
    known: KnownPlugins, leader_election: Fields, kubeconfig: str = ""
) -> ParseConfig[ReadConfig]:
    """Return the function that reads a file, for read_config; see parse_configuration."""

    def parse(data: bytes, path: Path) -> ReadConfig:
        return parse_configuration(data, path, known, leader_election, kubeconfig)

    return parse


def parse_configuration(
    data: bytes,
    path: Path,
    known: KnownPlugins,
    leader_election: Fields | None = None,
    kubeconfig: str = "",
) -> ReadConfig:
    """Return the configuration of a file's bytes, YAML or JSON. path is for messages.

    kubeconfig is that of a file that names none.

    Raises:
        InvalidConfig: it has faults; all are named.
        InvalidObject: it cannot be decoded at all.
    """
    placed = decode_with_lines(data, str(path))
    external, faults = read_component_config(
        placed,
        KubeSchedulerConfiguration,
        group_version=GROUP_VERSION,
        kind=KIND,
        hint=version_hint,
    )
    if external is not None and kubeconfig and not external.client_connection.kubeconfig:
        client = replace(external.client_connection, kubeconfig=kubeconfig)
        external = replace(external, client_connection=client)
    return settled(external, faults, placed, path, _converter(known, leader_election or {}))


def default_configuration(
    known: KnownPlugins,
    leader_election: Fields | None = None,
    client_connection: Fields | None = None,
) -> ReadConfig:
    """Return the configuration of a start without a file. Raises InvalidConfig as above."""
    own = KubeSchedulerConfiguration()
    client = replace(own.client_connection, **(client_connection or {}))  # type: ignore[arg-type]
    external = replace(own, client_connection=client)
    placed = DocumentWithLines({})
    return settled(external, [], placed, Path("flags"), _converter(known, leader_election or {}))


def _converter(
    known: KnownPlugins, leader_election: Fields
) -> Callable[[KubeSchedulerConfiguration], tuple[Configuration | None, list[FieldError]]]:
    """Return what completes a document; leader_election wins over what it says."""

    def convert_completed(
        external: KubeSchedulerConfiguration,
    ) -> tuple[Configuration | None, list[FieldError]]:
        completed = external.complete()
        election = replace(completed.leader_election, **leader_election)  # type: ignore[arg-type]
        return convert(replace(completed, leader_election=election), known)

    return convert_completed


def to_document(config: Configuration) -> dict[str, object]:
    """Return the document of a configuration as JSON values, with all defaults.

    Each extension point disables what multiPoint would enable, and enables what runs, so that it
    reads back.
    """
    fields = to_json(_external(config))
    assert isinstance(fields, dict)  # noqa: S101
    return {"apiVersion": GROUP_VERSION, "kind": KIND, **fields}


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
