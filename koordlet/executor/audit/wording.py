"""The words of an audit event about a change: the plugin's own, or those for any value."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wording:
    """Reason and message of the event for one kind of claim. "{value}" is replaced by the value."""

    reason: str
    message: str


ANY_CGROUP = Wording("UpdateCgroups", "update {path} to {value}")
ANY_FILE = Wording("UpdateSystemConfig", "update {path} to {value}")
