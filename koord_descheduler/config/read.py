"""The bytes of a config file → the configuration that they mean, or all that is wrong in them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from koord.component.config.document import ParseConfig
from koord.component.config.faults import (
    Fault,
    FieldPath,
    InvalidConfig,
    independent,
    invalid,
    required,
)
from koord.component.config.places import PlacedDocument, decode_with_places
from koord.component.config.typed import Reader, Rejected
from koord_descheduler.config.configuration import Configuration
from koord_descheduler.config.convert import convert
from koord_descheduler.config.points import KnownPlugins
from koord_descheduler.config.v1alpha2 import GROUP_VERSION, KIND, DeschedulerConfiguration

_TYPE = {"apiVersion": GROUP_VERSION, "kind": KIND}


@dataclass(frozen=True, slots=True)
class ReadConfig:
    """A configuration that can be used, and what in its file is hardly meant."""

    configuration: Configuration
    warnings: tuple[Fault, ...]


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
    return _settle(*_read_external(placed), placed, path, known, leader_election or {})


def default_configuration(
    known: KnownPlugins, leader_election: Mapping[str, object] | None = None
) -> ReadConfig:
    """Return the configuration of a start without a file. Raises InvalidConfig as above."""
    placed = PlacedDocument({})
    external = DeschedulerConfiguration()
    return _settle(external, [], placed, Path("flags"), known, leader_election or {})


def _read_external(
    placed: PlacedDocument,
) -> tuple[DeschedulerConfiguration | None, list[Fault]]:
    """The document as it is, and its faults; None: it is none of this type."""
    value = placed.value
    if not isinstance(value, dict):
        return None, [invalid((), value, f"wanted an object of kind {KIND}")]
    if faults := [_wrong_type(value, key) for key in _TYPE if value.get(key) != _TYPE[key]]:
        return None, faults
    reader = Reader()
    fields = {key: item for key, item in value.items() if key not in _TYPE}
    try:
        external = reader.read(DeschedulerConfiguration, fields, ())
    except Rejected:  # not possible while each field has a default
        return None, reader.faults
    return external, reader.faults


def _wrong_type(value: Mapping[str, object], key: str) -> Fault:
    path: FieldPath = (key,)
    found = value.get(key)
    return required(path, _TYPE[key]) if found is None else invalid(path, found, _TYPE[key])


def _settle(
    external: DeschedulerConfiguration | None,
    faults: list[Fault],
    placed: PlacedDocument,
    path: Path,
    known: KnownPlugins,
    leader_election: Mapping[str, object],
) -> ReadConfig:
    configuration = None
    found = [*placed.duplicates, *faults]
    if external is not None:
        completed = external.complete()
        election = replace(completed.leader_election, **leader_election)  # type: ignore[arg-type]
        configuration, more = convert(replace(completed, leader_election=election), known)
        found += independent(more, faults)
    located = sorted(map(placed.place, found), key=lambda fault: fault.line)
    errors = [fault for fault in located if not fault.is_warning]
    if errors or configuration is None:
        raise InvalidConfig(path, errors)
    return ReadConfig(configuration, tuple(fault for fault in located if fault.is_warning))
