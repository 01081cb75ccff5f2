"""Dry-run: plugins whose decisions are recorded, but not carried out."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DryRun:
    """The configured dry-run: all plugins, or those named."""

    all_plugins: bool = False
    plugins: frozenset[str] = frozenset()

    def covers(self, plugin: str) -> bool:
        """Whether this plugin is in dry-run."""
        return self.all_plugins or plugin in self.plugins


class LiveDryRun:
    """The plugins in dry-run, by --dry-run or the config file, and by hand since.

    The latter lasts until the process ends or forget is called.
    """

    def __init__(
        self, configured: Callable[[], DryRun], plugins: Callable[[], Iterable[str]]
    ) -> None:
        """configured is asked each time, as it may change; plugins are those there are."""
        self._configured = configured
        self._plugins = plugins
        self._by_hand: dict[str, bool] = {}

    def covers(self, plugin: str) -> bool:
        """Whether this plugin is in dry-run."""
        return self._by_hand.get(plugin, self._configured().covers(plugin))

    def switch(self, plugins: Iterable[str], on: bool) -> None:
        """Put plugins into dry-run, or let them act."""
        self._by_hand |= dict.fromkeys(plugins, on)

    def forget(self) -> Mapping[str, bool]:
        """Go back to what is configured; return what was switched by hand."""
        forgotten, self._by_hand = self._by_hand, {}
        return forgotten

    def by_hand(self, plugin: str) -> bool:
        """Whether it was switched by hand."""
        return plugin in self._by_hand

    def to_json(self) -> bool | list[str]:
        """The plugins in dry-run; true: all, also those to come."""
        if self._configured().all_plugins and not self._by_hand:
            return True
        return sorted(filter(self.covers, self._plugins())) or False
