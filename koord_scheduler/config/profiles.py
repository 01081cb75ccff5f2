"""What a profile means: all defaults filled in, plugins by extension point."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from koord_scheduler.config.points import Point


@dataclass(frozen=True, slots=True)
class EnabledPlugin:
    """A plugin at an extension point."""

    name: str
    weight: int = 1  # of its scores; elsewhere without a meaning


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Plugins that schedule the pods of one scheduler name."""

    scheduler_name: str
    plugins: Mapping[Point, tuple[EnabledPlugin, ...]] = field(default_factory=dict)
    args: Mapping[str, object] = field(default_factory=dict)  # of enabled plugins, by their names
    percentage_of_nodes_to_score: int | None = None  # None: all; 0: fewer, the more there are
    not_built: tuple[str, ...] = ()  # plugins that it names, and that this build does not have

    def enabled(self, point: Point) -> tuple[EnabledPlugin, ...]:
        """The plugins of an extension point, in the order in which they run."""
        return self.plugins.get(point, ())

    @property
    def names(self) -> tuple[str, ...]:
        """All plugins of the profile, each once, in the order in which they are made."""
        return tuple(dict.fromkeys(one.name for point in Point for one in self.enabled(point)))
