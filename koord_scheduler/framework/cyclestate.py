"""The input of plugins in a cycle: the state that they share, the pod and the nodes.

Source: Kubernetes, pkg/scheduler/framework/cycle_state.go.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar, runtime_checkable

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.util.errors import KoordError


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
