"""How an audit event calls a change: in the words of the plugin, or in those for any value."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wording:
    """Reason and message of the event for one kind of claim. "{value}" stands for the value."""

    reason: str
    message: str


ANY_CGROUP = Wording("UpdateCgroups", "update {path} to {value}")
ANY_FILE = Wording("UpdateSystemConfig", "update {path} to {value}")
