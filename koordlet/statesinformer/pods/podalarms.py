"""Alarms that wake the sources of pods as soon as pods may have changed."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from koord.util.alarm import Alarm


class CgroupEvents(Protocol):
    """Notifies of new and removed pod cgroups; see koord.util.dirwatch.

    problem is the reason why it cannot; "": it works.
    """

    problem: str

    def open(self) -> None: ...

    def follow(self, directories: Iterable[Path]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PodAlarms:
    """The alarms by which the listing and PodSource wake each other."""

    look: Alarm = field(default_factory=Alarm)  # cgroups or the list may have changed: PodSource
    ask: Alarm = field(default_factory=Alarm)  # cgroups have changed, the list is old: the listing
