"""Flags of the program that a daemon takes the place of, which mean nothing to the daemon."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from koord.component.flagkinds import Kind
from koord.component.flags import FlagSet


@dataclass(frozen=True, slots=True)
class InertFlag:
    """A flag that is accepted, with one warning; durations are in seconds."""

    name: str
    kind: Kind[Any]
    default: object
    help: str
    check: Callable[[Any], str] | None = None


def define_inert_flags(flags: FlagSet, rows: Iterable[InertFlag]) -> None:
    """Have the flags accepted and their values checked."""
    for row in rows:
        flags.define(row.name, row.kind, row.default, row.help, check=row.check, inert=True)
