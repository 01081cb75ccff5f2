"""Types that plugins get and return in a cycle: its state, statuses, scores, reject reasons."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import Protocol, Self, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.component.plugins.registry import PluginError
from koord.util.errors import KoordError, error_text


@runtime_checkable
class StateData(Protocol):
    """A value in a cycle's state.

    One that returns itself from clone is shared with every what-if of the cycle, which is right
    only if AddPod and RemovePod of its plugin never change it.
    """

    def clone(self) -> Self: ...


D = TypeVar("D", bound=StateData)

_NOTHING: Mapping[str, StateData] = {}


class StateNotFound(KoordError):
    """A key has no value."""

    def __init__(self, key: str) -> None:
        super().__init__("not found")
        self.key = key


class WrongStateType(KoordError):
    """A value is not of the type that its reader wants, or cannot be one at all."""


class CycleState:
    """Values by key, for one pod from its pop until it is bound. Any plugin reads any key.

    Plugins prefix their keys with their name, write in PreFilter and PreScore, and only read in
    Filter and Score. What is large and needed for scheduling only is deleted in Reserve.
    """

    __slots__ = (
        "_values",
        "_written",
        "dry_run",
        "measured",
        "skipped_filters",
        "skipped_pre_binds",
        "skipped_scores",
    )

    def __init__(self, *, dry_run: bool = False) -> None:
        """dry_run: nothing comes of the cycle, as it only explains; plugins change nothing."""
        self.dry_run = dry_run
        self._values: dict[str, StateData] = {}
        self._written: list[str] = []  # keys, in the order of the writes
        self.skipped_filters: frozenset[str] = frozenset()  # plugins; AddPod and RemovePod, too
        self.skipped_scores: frozenset[str] = frozenset()
        self.skipped_pre_binds: frozenset[str] = frozenset()
        self.measured = False  # whether the time of each plugin is recorded

    def read(self, key: str, kind: type[D]) -> D:
        """Return a value.

        Raises:
            StateNotFound: there is none.
            WrongStateType: it is of another type.
        """
        value = self._values.get(key)
        if value is None:
            raise StateNotFound(key)
        if not isinstance(value, kind):
            raise WrongStateType(
                f"state {key}: wanted {kind.__name__}, found {type(value).__name__}; another "
                "plugin has written it: prefix keys with the plugin's name"
            )
        return value

    def find(self, key: str, kind: type[D]) -> D | None:
        """Return a value; None: there is none of that type."""
        value = self._values.get(key)
        return value if isinstance(value, kind) else None

    def write(self, key: str, value: StateData) -> None:
        """Set a value, in the place of any other.

        Raises:
            WrongStateType: it has no clone().
        """
        if not callable(getattr(value, "clone", None)):  # isinstance takes ten times as long
            raise WrongStateType(
                f"state {key}: wanted a value with clone(), found {type(value).__name__}"
            )
        self._values[key] = value
        self._written.append(key)

    def delete(self, key: str) -> None:
        """Forget a value; one that is not there is none the less forgotten."""
        self._values.pop(key, None)

    def written_since(self, writes: int) -> Mapping[str, StateData]:
        """The values that were written after so many writes, as they are now."""
        if self.writes == writes:
            return _NOTHING
        keys = self._written[writes:]
        return {key: self._values[key] for key in keys if key in self._values}

    @property
    def writes(self) -> int:
        """How many values were written so far."""
        return len(self._written)

    def take(self, values: Mapping[str, StateData]) -> None:
        """Set values that another cycle has written."""
        self._values.update(values)

    def clone(self) -> "CycleState":
        """The same state for a what-if, with a clone of each value."""
        other = CycleState(dry_run=self.dry_run)
        other._values = {key: value.clone() for key, value in tuple(self._values.items())}
        other.skipped_filters = self.skipped_filters
        other.skipped_scores = self.skipped_scores
        other.skipped_pre_binds = self.skipped_pre_binds
        other.measured = self.measured
        return other


@dataclass(frozen=True, slots=True)
class CycleInput:
    """The state, the pod and the nodes that plugins see in a cycle."""

    state: CycleState
    pod: ClusterPod
    nodes: View
    is_altered: bool = False  # the nodes are not the cluster's any more: no cached result is right

    def changed(
        self, pod: ClusterPod | None, nodes: View | None, *, stable: bool = False
    ) -> "CycleInput":
        """The same with what a transformer has changed; None: it has not.

        stable: generations of the nodes' rows tell whether cached results are right.
        """
        if pod is None and nodes is None:
            return self
        altered = self.is_altered or (nodes is not None and not stable)
        return CycleInput(
            self.state, pod or self.pod, self.nodes if nodes is None else nodes, altered
        )


class Code(IntEnum):
    """Codes with Kubernetes' numbers."""

    SUCCESS = 0
    ERROR = 1
    """Unexpected; ends the whole cycle, and the pod is tried again soon."""
    UNSCHEDULABLE = 2
    """Rejected; it may help to remove pods."""
    UNSCHEDULABLE_AND_UNRESOLVABLE = 3
    """Rejected; it does not help to remove pods."""
    WAIT = 4
    """Only of Permit."""
    SKIP = 5
    """Only of PreFilter, PreScore, Bind and PreBindPreFlight."""
    PENDING = 6
    """Rejected until an event outside of the scheduler; then tried again without backoff."""

    @property
    def title(self) -> str:
        """The name as Kubernetes spells it, in metrics and logs."""
        return _TITLES[self]


_TITLES = {
    Code.SUCCESS: "Success",
    Code.ERROR: "Error",
    Code.UNSCHEDULABLE: "Unschedulable",
    Code.UNSCHEDULABLE_AND_UNRESOLVABLE: "UnschedulableAndUnresolvable",
    Code.WAIT: "Wait",
    Code.SKIP: "Skip",
    Code.PENDING: "Pending",
}
_REJECTED = (Code.UNSCHEDULABLE, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, Code.PENDING)


UNREAD = "UnreadParts"
"""The name, in place of a plugin's, of what rejects pods that could not be read in full."""


@dataclass(frozen=True, slots=True)
class Status:
    """The result of a plugin call. Where a plugin may return None, that is Success."""

    code: Code = Code.SUCCESS
    reasons: tuple[str, ...] = ()  # for people; events count nodes by them
    plugin: str = ""  # that it comes from; set by the framework
    error: BaseException | None = None  # of Code.ERROR, if an exception was the cause
    also_rejected_by: frozenset[str] = frozenset()
    """Further plugins after whose events a rejected pod is tried again."""

    @classmethod
    def unschedulable(cls, *reasons: str) -> Self:
        """Rejected; it may help to remove pods."""
        return cls(Code.UNSCHEDULABLE, reasons)

    @classmethod
    def unresolvable(cls, *reasons: str) -> Self:
        """Rejected; it does not help to remove pods."""
        return cls(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, reasons)

    @classmethod
    def pending(cls, *reasons: str) -> Self:
        """Return a rejection that lasts until an event outside of the scheduler."""
        return cls(Code.PENDING, reasons)

    @staticmethod
    def skip(*reasons: str) -> "Status":
        """There is nothing for this plugin to do."""
        return Status(Code.SKIP, reasons) if reasons else _SKIP

    @classmethod
    def failed(cls, cause: BaseException | str) -> Self:
        """Return an unexpected error; a text is its reason."""
        if isinstance(cause, str):
            return cls(Code.ERROR, (cause,))
        return cls(Code.ERROR, error=cause)

    @property
    def ok(self) -> bool:
        """Whether it is Success."""
        return self.code is Code.SUCCESS

    @property
    def rejected(self) -> bool:
        """Whether the pod, or the pod on this node, is rejected."""
        return self.code in _REJECTED

    @property
    def message(self) -> str:
        """The error, then the reasons."""
        texts = () if self.error is None else (error_text(self.error),)
        return ", ".join((*texts, *self.reasons))

    def of(self, plugin: str) -> "Status":
        """The same, coming from a plugin, unless it says which one already."""
        if self.plugin:
            return self
        if self is _SKIP:  # most plugins skip most pods
            return _skip_of(plugin)
        return replace(self, plugin=plugin)

    def __str__(self) -> str:
        return self.message or self.code.title


SUCCESS = Status()
_SKIP = Status(Code.SKIP)


@lru_cache(maxsize=256)
def _skip_of(plugin: str) -> Status:
    return Status(Code.SKIP, plugin=plugin)


MIN_NODE_SCORE = 0
MAX_NODE_SCORE = 100
MAX_PERMIT_WAIT = 900.0  # seconds

Numbers = NDArray[np.int32]
"""For each node 0, or one more than the place of its rejection; shape (nodes,)."""
Scores = NDArray[np.int64]
"""One score for each node; shape (nodes,)."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Which nodes pass, and why the others are rejected: where a mask is not enough."""

    numbers: Numbers  # 0: the node passes; k: it is rejected as rejections[k - 1] says
    rejections: tuple[Status, ...]

    @classmethod
    def of(cls, passes: Mask, rejection: Status) -> "Verdicts":
        """All nodes that do not pass are rejected for the same reason."""
        return cls((~passes).astype(np.int32), (rejection,))


@dataclass(frozen=True, slots=True)
class PreFilterResult:
    """The only nodes that are worth a look."""

    node_names: frozenset[str]


@dataclass(frozen=True, slots=True)
class PreFilterOutcome:
    """The result of PreFilter of all plugins together."""

    status: Status
    node_names: frozenset[str] | None = None  # None: all nodes
    plugins: tuple[str, ...] = ()  # that named nodes


@dataclass(frozen=True, slots=True)
class PostFilterResult:
    """The result of PostFilter for a pod that no node is feasible for."""

    nominated_node: str | None  # "": a nomination that there was is void; None: as it was
    status: Status = SUCCESS
    victims: tuple[ClusterPod, ...] = ()
    """Pods that leave the node for it; plans show them, and have them leave the plan's cluster."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Permit comes later, through the handle; after the time limit, the pod is rejected."""

    seconds: float  # at most MOST_PERMIT_WAIT


@dataclass(slots=True)
class NodeScore:
    """The score of a node, which the plain form of NormalizeScore changes."""

    name: str
    score: int


def default_normalize(scores: Scores, *, reverse: bool = False) -> Scores:
    """Scale scores, which are at least 0, so that the highest becomes MAX_NODE_SCORE.

    reverse: the highest becomes 0. When all are 0 they stay 0, or all become MAX_NODE_SCORE with
    reverse. Source: Kubernetes, plugins/helper DefaultNormalizeScore.
    """
    highest = int(scores.max(initial=0))
    if highest == 0:
        return np.full_like(scores, MAX_NODE_SCORE) if reverse else scores.copy()
    scaled: Scores = MAX_NODE_SCORE * scores // highest
    return MAX_NODE_SCORE - scaled if reverse else scaled


class PluginStatusError(PluginError):
    """A plugin answered with a status that ends the cycle."""

    def __init__(self, plugin: str, status: Status) -> None:
        super().__init__(status.message, plugin)
        self.status = status


def status_of(answer: object, plugin: str, *extra: Code) -> Status:
    """Return an answer as a status that names its plugin; None is Success.

    extra: codes beside Success, Error and the rejections that are right at this extension point.

    Raises:
        PluginError: it is no status, or has a code that is wrong here.
    """
    if answer is None:
        return SUCCESS
    if not isinstance(answer, Status):
        hint = "; return Status.unschedulable(…)" if isinstance(answer, str) else ""
        raise PluginError(
            f"plugin {plugin}: wanted a Status or None, found {answer!r:.80}{hint}", plugin
        )
    if answer.ok or answer.rejected or answer.code is Code.ERROR or answer.code in extra:
        return answer.of(plugin)
    raise PluginError(f"plugin {plugin}: found {answer.code.title}, which is wrong here", plugin)


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
