"""Why nodes are not feasible, node by node and in one sentence, and what plugins suggest."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from koord.cluster.columns import Mask
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.status import Code, Numbers, Status

FEASIBLE = 0
ABSENT = -1  # not looked at

NO_NODES = "no nodes available to schedule pods"
NO_STATUS = Status.unresolvable()


@dataclass(frozen=True, slots=True)
class NodeStatuses:
    """The status of each node of a view after Filter."""

    numbers: Numbers  # FEASIBLE, ABSENT, or one more than the place in statuses
    statuses: tuple[Status, ...]
    absent: Status = NO_STATUS  # of the nodes that were not looked at
    known: Mask | None = None  # feasible nodes, where they are known already; not to be written

    @property
    def feasible(self) -> Mask:
        """Nodes that pass; shape (nodes,). While they stay the same, it may be the same mask."""
        if self.known is not None:
            return self.known
        found: Mask = self.numbers == FEASIBLE
        return found

    def status(self, row: int) -> Status | None:
        """Return the status of one node; None: it is feasible."""
        return self.of_number(int(self.numbers[row]))

    def of_number(self, number: int) -> Status | None:
        """Return the status of the nodes with a number; None: they are feasible."""
        if number == FEASIBLE:
            return None
        return self.absent if number == ABSENT else self.statuses[number - 1]

    def having(self, code: Code) -> Mask:
        """Nodes whose status has this code; shape (nodes,)."""
        of_number = [
            False,
            *(status.code is code for status in self.statuses),
            self.absent.code is code,  # ABSENT, which is -1, finds it
        ]
        return np.array(of_number, np.bool_)[self.numbers]

    def reasons(self) -> Counter[str]:
        """How many nodes have each reason."""
        found: Counter[str] = Counter()
        counts = np.bincount(self.numbers + 1, minlength=len(self.statuses) + 2)
        for status, nodes in zip(
            (*self.statuses, self.absent), (*counts[2:], counts[0]), strict=True
        ):
            if nodes:
                for reason in status.reasons:
                    found[reason] += int(nodes)
        return found


@dataclass(kw_only=True, slots=True)
class Diagnosis:
    """Why a pod cannot be scheduled."""

    nodes: int  # in the cluster
    node_statuses: NodeStatuses | None = None  # None: Filter was not reached
    pre_filter_message: str = ""
    post_filter_message: str = ""
    unschedulable_plugins: set[str] = field(default_factory=set)
    pending_plugins: set[str] = field(default_factory=set)

    def note(self, status: Status) -> None:
        """Remember the plugins of a rejection: their hints are asked when something happens."""
        self.unschedulable_plugins.update(status.also_rejected_by)
        if not status.plugin:
            return
        pending = status.code is Code.PENDING
        (self.pending_plugins if pending else self.unschedulable_plugins).add(status.plugin)

    def message(self) -> str:
        """For the event FailedScheduling and the pod's condition, in kube-scheduler's words."""
        if not self.nodes:
            return NO_NODES
        text = f"0/{self.nodes} nodes are available:"
        if self.pre_filter_message:
            text += f" {self.pre_filter_message}."
        elif self.node_statuses is not None:
            counted = sorted(f"{n} {reason}" for reason, n in self.node_statuses.reasons().items())
            if counted:
                text += f" {', '.join(counted)}."
        if self.post_filter_message:
            text += f" {self.post_filter_message}"
        return text


_KEY = "scheduling.koordinator.sh/suggestion"


class SuggestionType(StrEnum):
    """A kind of action that would help a pod."""

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
