"""A component config: the bytes of its file → what it means, or all that is wrong in it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from koord.component.config.faults import (
    Fault,
    FieldPath,
    InvalidConfig,
    independent,
    invalid,
    required,
)
from koord.component.config.places import PlacedDocument
from koord.component.config.typed import Reader, Rejected

T = TypeVar("T")
C = TypeVar("C")
E = TypeVar("E")

Hint = Callable[[object], str]
"""Returns what to do about an apiVersion that is not the wanted one; "": nothing to say."""


@dataclass(frozen=True, slots=True)
class ReadConfig(Generic[C]):
    """A configuration that can be used, and what in its file is hardly meant."""

    configuration: C
    warnings: tuple[Fault, ...]


def read_component_config(
    placed: PlacedDocument,
    cls: type[T],
    *,
    group_version: str,
    kind: str,
    hint: Hint = lambda found: "",
) -> tuple[T | None, list[Fault]]:
    """Return the document as it is, and its faults; None: it is none of this type.

    Each field of cls has a default.
    """
    value = placed.value
    if not isinstance(value, dict):
        return None, [invalid((), value, f"wanted an object of kind {kind}")]
    wanted = {"apiVersion": group_version, "kind": kind}
    wrong = [key for key in wanted if value.get(key) != wanted[key]]
    if wrong:
        return None, [_wrong_type(value, key, wanted[key], hint) for key in wrong]
    reader = Reader()
    fields = {key: item for key, item in value.items() if key not in wanted}
    try:
        external = reader.read(cls, fields, ())
    except Rejected:  # not possible while each field has a default
        return None, reader.faults
    return external, reader.faults


def _accepted(
    configuration: C | None, faults: Iterable[Fault], placed: PlacedDocument, path: Path
) -> ReadConfig[C]:
    """Return a configuration that has no errors, with its warnings. path is for messages.

    Raises:
        InvalidConfig: it has some; all are named, each with its line.
    """
    found = [*placed.duplicates, *faults]
    located = sorted(map(placed.place, found), key=lambda fault: fault.line)
    errors = [fault for fault in located if not fault.is_warning]
    if errors or configuration is None:
        raise InvalidConfig(path, errors)
    return ReadConfig(configuration, tuple(fault for fault in located if fault.is_warning))


def settled(
    external: E | None,
    faults: Iterable[Fault],
    placed: PlacedDocument,
    path: Path,
    convert: Callable[[E], tuple[C | None, list[Fault]]],
) -> ReadConfig[C]:
    """Return what a document means, whose faults so far are given; external None: nothing.

    convert completes it, returns what it means, and its faults; those that follow from earlier ones
    are left out.

    Raises:
        InvalidConfig: it has errors; all are named, each with its line.
    """
    earlier, configuration = list(faults), None
    found = list(earlier)
    if external is not None:
        configuration, more = convert(external)
        found += independent(more, earlier)
    return _accepted(configuration, found, placed, path)


def _wrong_type(value: Mapping[str, object], key: str, wanted: str, hint: Hint) -> Fault:
    path: FieldPath = (key,)
    found = value.get(key)
    if found is None:
        return required(path, wanted)
    more = hint(found) if key == "apiVersion" else ""
    return invalid(path, found, f"{wanted}; {more}" if more else wanted)
