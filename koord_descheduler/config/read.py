"""The bytes of a config file → the configuration that they mean, or all that is wrong in them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from koord.component.config import componentconfig
from koord.component.config.componentconfig import read_component_config, settled
from koord.component.config.document import ParseConfig
from koord.component.config.faults import Fault
from koord.component.config.places import PlacedDocument, decode_with_places
from koord_descheduler.config.configuration import Configuration
from koord_descheduler.config.convert import convert
from koord_descheduler.config.points import KnownPlugins
from koord_descheduler.config.v1alpha2 import GROUP_VERSION, KIND, DeschedulerConfiguration

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
    placed = decode_with_places(data, str(path))
    external, faults = read_component_config(
        placed, DeschedulerConfiguration, group_version=GROUP_VERSION, kind=KIND
    )
    return settled(external, faults, placed, path, _converter(known, leader_election or {}))


def default_configuration(
    known: KnownPlugins, leader_election: Mapping[str, object] | None = None
) -> ReadConfig:
    """Return the configuration of a start without a file. Raises InvalidConfig as above."""
    placed = PlacedDocument({})
    external = DeschedulerConfiguration()
    return settled(external, [], placed, Path("flags"), _converter(known, leader_election or {}))


def _converter(
    known: KnownPlugins, leader_election: Mapping[str, object]
) -> Callable[[DeschedulerConfiguration], tuple[Configuration | None, list[Fault]]]:
    """Return what completes a document; leader_election wins over what it says."""

    def convert_completed(
        external: DeschedulerConfiguration,
    ) -> tuple[Configuration | None, list[Fault]]:
        completed = external.complete()
        election = replace(completed.leader_election, **leader_election)  # type: ignore[arg-type]
        return convert(replace(completed, leader_election=election), known)

    return convert_completed
