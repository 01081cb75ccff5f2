"""Admission of a plugin: its states, the quarantine, and conflicts of claim scopes."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from koord.component.plugins.execution import Meter
from koord.component.plugins.registry import PluginBlocked
from koord.util.clock import Clock
from koord.util.errors import KoordError, OptionError, error_text
from koord.util.logs import get_logger
from koord.util.ownedfiles import OwnedDirectory
from koordlet.plugin.registry import Registration

if TYPE_CHECKING:
    from koordlet.executor.claimmanager import ClaimManager
    from koordlet.executor.claims.claim import ClaimScope
    from koordlet.metriccache.cache import MetricCache
    from koordlet.plugin.interfaces import Client, States


MAX_BYTES = 1 << 20  # of the file

_UNUSABLE = (
    KoordError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError
)  # fmt: skip

log = get_logger("koordlet.qosmanager")


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """Reason and time of keeping one version of a plugin out."""

    reason: str
    at: str  # RFC 3339, UTC
    version: str  # of the distribution; another version is let in again


class Quarantine:
    """The list, kept in `quarantine.json` of the run directory until the next boot.

    A plugin comes off when its gates are switched off, when its version changes, or by hand.
    """

    def __init__(self, directory: OwnedDirectory | None, boot_id: str, clock: Clock) -> None:
        """Load the list; one of another boot, or that cannot be read, counts as empty."""
        self._file = directory / "quarantine.json" if directory else None
        self._boot_id = boot_id
        self._clock = clock
        self._entries = self._load()

    def get(self, plugin: str, version: str) -> QuarantineEntry | None:
        """The sentence of this version of a plugin; None: it may run."""
        entry = self._entries.get(plugin)
        return entry if entry is not None and entry.version == version else None

    def add(self, plugin: str, version: str, reason: str) -> QuarantineEntry:
        """Keep this version of a plugin out."""
        at = datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        entry = QuarantineEntry(reason, at, version)
        self._entries[plugin] = entry
        log.error("plugin.quarantined", plugin=plugin, version=version, reason=reason)
        self._save()
        return entry

    def clear(self, plugin: str) -> bool:
        """Let a plugin in again. Returns whether it was kept out."""
        if self._entries.pop(plugin, None) is None:
            return False
        log.info("plugin.released", plugin=plugin)
        self._save()
        return True

    def _load(self) -> dict[str, QuarantineEntry]:
        if self._file is None:
            return {}
        try:
            data = self._file.read(MAX_BYTES)
            if data is None:
                return {}
            stored = json.loads(data)
            if stored["boot_id"] != self._boot_id:
                return {}
            return {name: QuarantineEntry(**fields) for name, fields in stored["plugins"].items()}
        except _UNUSABLE as err:
            log.warning("quarantine.dropped", path=str(self._file), error=repr(err))
            return {}

    def _save(self) -> None:
        if self._file is None:
            return
        plugins = {name: asdict(entry) for name, entry in sorted(self._entries.items())}
        content = json.dumps({"boot_id": self._boot_id, "plugins": plugins}, indent=2)
        try:
            self._file.write(content.encode() + b"\n")
        except KoordError as err:
            log.error("quarantine.save_failed", error=str(err))  # noqa: TRY400 - the message says it all


class ClaimScopes:
    """Checks the claim scopes of a plugin that is switched on against those that are on."""

    def __init__(self, claims: "ClaimManager | None", freed: Callable[[], None]) -> None:
        """claims None: nothing can be claimed. freed: called when one that was on no longer is."""
        self._claims = claims
        self._freed = freed

    def acquire(self, plugin: str, may_claim: "tuple[ClaimScope, ...]") -> str:
        """Let a plugin claim what it declares; return why it may not, empty: it may.

        Calling it again for the plugin that has the turn changes nothing.
        """
        if self._claims is None:
            return ""
        try:
            self._claims.declare(plugin, may_claim)
        except OptionError as err:
            return str(err)
        return ""

    def release(self, plugin: str) -> None:
        """End a plugin's turn; call it when its claims are withdrawn."""
        if self._claims is not None and self._claims.retract(plugin):
            self._freed()


class PluginState(StrEnum):
    """State of a plugin under supervision."""

    DISABLED = "disabled"  # none of its gates is on
    RUNNING = "running"
    FINISHED = "finished"  # run returned without being asked to
    STOPPING = "stopping"
    RETRYING = "retrying"  # failed; starts again after a pause
    BROKEN = "broken"  # cannot be loaded, set up, or claim what another has; or gets rare trials
    QUARANTINED = "quarantined"  # kept out until its gates go off, or another version comes


class Outcome(StrEnum):
    """End of a round, or of a run without rounds."""

    OK = "ok"
    FAILED = "failed"  # raised
    LATE = "late"  # a round took longer than its deadline
    SILENT = "silent"  # did nothing for too long, outside any round
    BLOCKED = "blocked"  # held the event loop
    MEMORY = "memory"  # grew the process beyond its budget


class FailedRunError(Exception):
    """A run that did not go well; reason is for people."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


RejectReason = tuple[PluginState, str]
"""The state of a plugin that may not run, and why it may not."""


class Admission:
    """Decides each time whether the plugin may run. Belongs to the event loop's thread."""

    def __init__(
        self,
        registration: Registration,
        *,
        meter: Meter,
        quarantine: Quarantine,
        claim_scopes: ClaimScopes,
    ) -> None:
        self.rejected = False  # another plugin that is on may claim what this one may claim
        self.error = ""  # why it is left out for the life of this process; empty: it is not
        self._registration = registration
        self._meter = meter
        self._quarantine = quarantine
        self._claim_scopes = claim_scopes
        self._setup: Callable[[], None] | None = None  # None: called already, or not known yet

    def set_arguments(
        self, client: "Client", metric_cache: "MetricCache", states: "States"
    ) -> None:
        """Keep the arguments of the plugin's setup."""
        self._setup = partial(self._registration.plugin.setup, client, metric_cache, states)

    def enter(self) -> RejectReason | None:
        """Return why the plugin may not run; None: it may, and its setup has been called."""
        if not self.error and (held := self._quarantined() or self._conflict()):
            return held
        self._set_up()
        return (PluginState.BROKEN, self.error) if self.error else None

    def leave(self) -> None:
        """Forget what kept the plugin out: it was switched off, and its claims are withdrawn."""
        self._quarantine.clear(self._registration.name)
        self._release_scopes()

    def disable(self, error: str) -> None:
        """Refuse the plugin from now on."""
        self.error = error
        self._release_scopes()
        registration = self._registration
        log.error(
            "plugin.broken",
            plugin=registration.name,
            source=registration.source,
            error=error,
        )

    def _quarantined(self) -> RejectReason | None:
        registration = self._registration
        entry = self._quarantine.get(registration.name, registration.version)
        if entry is None:
            return None
        self._release_scopes()
        hint = f"to try again: koordletctl plugins release {registration.name}"
        return PluginState.QUARANTINED, f"{entry.reason} at {entry.at}; {hint}"

    def _conflict(self) -> RejectReason | None:
        registration = self._registration
        conflict = self._claim_scopes.acquire(registration.name, registration.plugin.may_claim)
        if conflict and not self.rejected:
            log.error("plugin.rejected", plugin=registration.name, error=conflict)
        self.rejected = bool(conflict)
        return (PluginState.BROKEN, conflict) if conflict else None

    def _set_up(self) -> None:
        setup, self._setup = self._setup, None
        if setup is None or self.error:
            return
        try:
            with self._meter.step():
                setup()
        except (Exception, PluginBlocked) as err:
            self.disable(f"setup: {error_text(err)}")

    def _release_scopes(self) -> None:
        self.rejected = False
        self._claim_scopes.release(self._registration.name)
