"""The extension points of a profile, and the plugins that a build can run at each."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from koord.component.plugins.args import ArgsType


class Point(StrEnum):
    """An extension point, as profiles name it."""

    DESCHEDULE = "deschedule"
    BALANCE = "balance"
    EVICT = "evict"
    FILTER = "filter"

    @property
    def interface(self) -> str:
        """The interface that its plugins have, for messages."""
        return f"{self.value.capitalize()}Plugin"


@dataclass(frozen=True, slots=True)
class KnownPlugin:
    """What the configuration knows of a plugin."""

    points: frozenset[Point]
    args: ArgsType | None = None  # None: any object, which the plugin reads itself


KnownPlugins = Mapping[str, KnownPlugin]
"""The plugins that profiles may name."""
