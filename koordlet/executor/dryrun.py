"""Which plugins only pretend."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DryRun:
    """Plugins whose decisions are recorded and told, but not carried out."""

    everybody: bool = False
    plugins: frozenset[str] = frozenset()

    def covers(self, plugin: str) -> bool:
        """Whether this plugin only pretends."""
        return self.everybody or plugin in self.plugins

    def to_json(self) -> bool | list[str]:
        """As a config file may say it."""
        return sorted(self.plugins) or self.everybody
