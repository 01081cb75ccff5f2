"""States of a plugin, and outcomes of its rounds."""

from enum import StrEnum


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
