"""Admission of one plugin: out of quarantine, with its claims to itself, and set up."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from koord.component.plugins.errors import PluginBlocked
from koord.component.plugins.meter import Meter
from koord.util.errors import error_text
from koord.util.logs import get_logger
from koordlet.plugin.registry import Registration
from koordlet.qosmanager.outcome import PluginState
from koordlet.qosmanager.quarantine import Quarantine
from koordlet.qosmanager.turns import ClaimTurns

if TYPE_CHECKING:
    from koordlet.metriccache.cache import MetricCache
    from koordlet.plugin.client import Client
    from koordlet.plugin.states import States

log = get_logger("koordlet.qosmanager")

Refusal = tuple[PluginState, str]
"""The state of a plugin that may not run, and why it may not."""


class Admission:
    """Decides each time whether the plugin may run. Belongs to the event loop's thread."""

    def __init__(
        self, registration: Registration, *, meter: Meter, quarantine: Quarantine, turns: ClaimTurns
    ) -> None:
        self.refused = False  # another plugin that is on may claim what this one may claim
        self.error = ""  # why it is left out for the life of this process; empty: it is not
        self._registration = registration
        self._meter = meter
        self._quarantine = quarantine
        self._turns = turns
        self._setup: Callable[[], None] | None = None  # None: called already, or not known yet

    def equip(self, client: "Client", metric_cache: "MetricCache", states: "States") -> None:
        """Keep the arguments of the plugin's setup."""
        self._setup = partial(self._registration.plugin.setup, client, metric_cache, states)

    def enter(self) -> Refusal | None:
        """Return why the plugin may not run; None: it may, and its setup has been called."""
        if not self.error and (held := self._sentence() or self._conflict()):
            return held
        self._set_up()
        return (PluginState.BROKEN, self.error) if self.error else None

    def leave(self) -> None:
        """Forget what kept the plugin out: it was switched off, and its claims are withdrawn."""
        self._quarantine.clear(self._registration.name)
        self._give_way()

    def break_for_good(self, error: str) -> None:
        """Refuse the plugin from now on."""
        self.error = error
        self._give_way()
        registration = self._registration
        log.error(
            "plugin.broken",
            plugin=registration.name,
            source=registration.source,
            error=error,
        )

    def _sentence(self) -> Refusal | None:
        registration = self._registration
        sentence = self._quarantine.get(registration.name, registration.version)
        if sentence is None:
            return None
        self._give_way()
        hint = f"to try again: koordletctl plugins release {registration.name}"
        return PluginState.QUARANTINED, f"{sentence.reason} at {sentence.at}; {hint}"

    def _conflict(self) -> Refusal | None:
        registration = self._registration
        conflict = self._turns.take(registration.name, registration.plugin.may_claim)
        if conflict and not self.refused:
            log.error("plugin.refused", plugin=registration.name, error=conflict)
        self.refused = bool(conflict)
        return (PluginState.BROKEN, conflict) if conflict else None

    def _set_up(self) -> None:
        setup, self._setup = self._setup, None
        if setup is None or self.error:
            return
        try:
            with self._meter.step():
                setup()
        except (Exception, PluginBlocked) as err:
            self.break_for_good(f"setup: {error_text(err)}")

    def _give_way(self) -> None:
        self.refused = False
        self._turns.give_up(self._registration.name)
