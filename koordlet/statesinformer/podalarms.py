"""Who is told at once that pods may have changed."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from koord.util.alarm import Alarm


class CgroupEvents(Protocol):
    """Tells that pods' cgroups come and go; see koordlet.host.dirwatch. problem says why not."""

    problem: str

    def open(self) -> None: ...

    def follow(self, directories: Iterable[Path]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PodAlarms:
    """How those who learn something about pods wake each other."""

    look: Alarm = field(default_factory=Alarm)  # cgroups or the list may have changed: PodSource
    ask: Alarm = field(default_factory=Alarm)  # cgroups have changed, the list is old: the listing
