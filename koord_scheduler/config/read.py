"""The bytes of a config file → the configuration that they mean, or all that is wrong in them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from koord.component.config import componentconfig
from koord.component.config.componentconfig import read_component_config, settled
from koord.component.config.document import ParseConfig
from koord.component.config.faults import Fault
from koord.component.config.places import PlacedDocument, decode_with_places
from koord_scheduler.config.configuration import Configuration
from koord_scheduler.config.convert import convert
from koord_scheduler.config.known import KnownPlugins
from koord_scheduler.config.oldversions import version_hint
from koord_scheduler.config.v1 import GROUP_VERSION, KIND, KubeSchedulerConfiguration

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
    placed = decode_with_places(data, str(path))
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
    placed = PlacedDocument({})
    return settled(external, [], placed, Path("flags"), _converter(known, leader_election or {}))


def _converter(
    known: KnownPlugins, leader_election: Fields
) -> Callable[[KubeSchedulerConfiguration], tuple[Configuration | None, list[Fault]]]:
    """Return what completes a document; leader_election wins over what it says."""

    def convert_completed(
        external: KubeSchedulerConfiguration,
    ) -> tuple[Configuration | None, list[Fault]]:
        completed = external.complete()
        election = replace(completed.leader_election, **leader_election)  # type: ignore[arg-type]
        return convert(replace(completed, leader_election=election), known)

    return convert_completed
