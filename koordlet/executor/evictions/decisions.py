"""The latest decisions and their reasons, for `koordletctl explain` and /explain."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from koord.api.nodemetric import time_text
from koord.util.clock import Clock

KEPT = 256  # decisions
SAME_FOR = 600.0  # seconds after which the same decision about the same pod is a new one
LONGEST_TEXT = 1000  # characters


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """Something that was done, would have been done, or was not done, and why.

    pod is empty when it is about none. inputs are the numbers that decided, candidates the pods
    that came in question, first choice first, freed what was released.
    """

    plugin: str
    feature: str
    action: str
    namespace: str
    pod: str
    uid: str
    reason: str
    outcome: str
    message: str
    dry_run: bool
    inputs: Mapping[str, float | str] = field(default_factory=dict)
    candidates: tuple[str, ...] = ()
    freed: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def what(self) -> tuple[object, ...]:
        """Decisions that are equal in this are one decision taken again."""
        return self.plugin, self.feature, self.action, self.uid, self.outcome, self.dry_run


@dataclass(slots=True)
class _DecisionEntry:
    decision: Decision  # as taken last
    first: float  # Unix seconds, as last
    last: float
    times: int = 1


class Decisions:
    """A bounded record. A decision that is repeated, for example each second, is one entry."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[tuple[object, ...], _DecisionEntry] = {}  # latest last

    def note(self, decision: Decision) -> bool:
        """Keep a decision; return whether it is a new one."""
        now = self._clock.wall()
        entry = self._entries.pop(decision.what, None)
        is_new = entry is None or not 0 <= now - entry.last <= SAME_FOR
        if entry is None or is_new:
            entry = _DecisionEntry(decision, now, now)
        else:
            entry.decision, entry.last, entry.times = decision, now, entry.times + 1
        self._entries[decision.what] = entry
        if len(self._entries) > KEPT:
            del self._entries[next(iter(self._entries))]
        return is_new

    def note_freed(self, uid: str, freed: Mapping[str, float | str]) -> None:
        """Add what a pod has released to the latest decision about it, if that is still kept."""
        for entry in reversed(self._entries.values()):
            if entry.decision.uid == uid:
                entry.decision = replace(entry.decision, freed=freed)
                return

    def explain(self, pod: str = "") -> list[dict[str, object]]:
        """The decisions as JSON, latest first: all, or those about one pod.

        pod is namespace/name, name or UID; the pod may be gone by now.
        """
        entries = reversed(self._entries.values())
        return [_as_json(entry) for entry in entries if _is_about(entry.decision, pod)]


def _is_about(decision: Decision, pod: str) -> bool:
    names = (decision.uid, decision.pod, f"{decision.namespace}/{decision.pod}")
    return not pod or pod in names


def _as_json(entry: _DecisionEntry) -> dict[str, object]:
    decision = entry.decision
    return {
        "first": time_text(entry.first),
        "last": time_text(entry.last),
        "times": entry.times,
        "plugin": decision.plugin,
        "feature": decision.feature,
        "action": decision.action,
        "pod": f"{decision.namespace}/{decision.pod}" if decision.pod else "",
        "uid": decision.uid,
        "outcome": decision.outcome,
        "reason": decision.reason[:LONGEST_TEXT],
        "message": decision.message[:LONGEST_TEXT],
        "dryRun": decision.dry_run,
        "inputs": dict(decision.inputs),
        "candidates": list(decision.candidates),
        "freed": dict(decision.freed),
    }
