"""What plugins suggest about a pod that no node is feasible for; the first suggestion counts.

Source: Koordinator, pkg/scheduler/frameworkext/schedulingphase and diagnosis (Suggestion).
"""

from dataclasses import dataclass
from enum import StrEnum

from koord_scheduler.framework.cyclestate import CycleState

_KEY = "scheduling.koordinator.sh/suggestion"


class SuggestionType(StrEnum):
    """What would help."""

    EVICT_WORKLOAD_SELF = "EvictWorkloadSelf"
    WAITING_VICTIM_RELEASED = "WaitingVictimReleased"
    DELETE_CONFLICT_PVC = "DeleteConflictPVC"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Shown in the event and in the pod's condition, after PostFilter's message."""

    type: SuggestionType
    message: str

    def clone(self) -> "Suggestion":
        return self

    def __str__(self) -> str:
        return f"Suggestion: {{type: {self.type}, message: {self.message}}}"


def suggest(state: CycleState, suggestion: Suggestion) -> bool:
    """Make a suggestion in this cycle; return whether it is the first one."""
    if suggestion_of(state) is not None:
        return False
    state.write(_KEY, suggestion)
    return True


def suggestion_of(state: CycleState) -> Suggestion | None:
    """The suggestion of this cycle; None: there is none."""
    return state.find(_KEY, Suggestion)
