"""Dry-run, switched while the daemon runs: `koordletctl dry-run`."""

from collections.abc import Mapping
from dataclasses import dataclass

from koord.util.logs import get_logger
from koordlet.daemon.act.actions import Actions
from koordlet.daemon.settings.settings import Settings

ALL = "all"  # in place of a plugin's name

log = get_logger("koordlet.daemon")


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRunSwitch:
    """Lists the plugins in dry-run, and switches it."""

    settings: Settings
    actions: Actions

    def describe(self) -> Mapping[str, object]:
        """All plugins: whether they are in dry-run, and whether that was switched by hand."""
        dry_run = self.settings.dry_run
        return {
            "observeOnly": self.actions.observe_only(),
            "plugins": [
                {
                    "name": name,
                    "dryRun": dry_run.covers(name),
                    "byHand": dry_run.by_hand(name),
                }
                for name in self.settings.plugins.acting_names()
            ],
        }

    async def switch(self, plugin: str, *, on: bool) -> Mapping[str, object]:
        """Put a plugin, or all, in dry-run or have it act; return the new description.

        Switched on, the values that it has in force are restored first.

        Raises:
            OptionError: there is no such plugin.
        """
        plugins = self.settings.plugins
        if plugin != ALL:
            plugins.check_names("plugin", [plugin])
        self.settings.dry_run.switch(plugins.acting_names() if plugin == ALL else [plugin], on)
        log.warning("dry_run.switched", plugin=plugin, on=on)
        await self.actions.claims.refresh()
        await self.actions.lock.settle()
        return self.describe()
