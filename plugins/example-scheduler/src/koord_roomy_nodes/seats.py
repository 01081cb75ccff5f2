"""Seats: at most so many pods with a label run in the whole cluster."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from koord.plugin.args import FieldError, Int32, invalid, takes_args
from koord_scheduler.plugin import (
    POD,
    Action,
    ClusterEvent,
    ClusterPod,
    CycleState,
    EnqueueExtensions,
    EventResource,
    Handle,
    HintedEvent,
    PreFilterPlugin,
    QueueingHint,
    ReservePlugin,
    Status,
    View,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SeatsArgs:
    """Which pods take a seat, and how many there are."""

    label: str = "example.com/seat"
    seats: Int32 = 10

    def validate(self) -> Iterator[FieldError]:
        if not self.label:
            yield invalid(("label",), self.label, "wanted the key of a label")
        if self.seats < 0:
            yield invalid(("seats",), self.seats, "wanted 0 or more")


@takes_args(SeatsArgs)
class Seats(PreFilterPlugin, ReservePlugin, EnqueueExtensions):
    """Keeps an account of the pods that have a seat, by uid."""

    def __init__(self, args: SeatsArgs, handle: Handle) -> None:
        self._args = args
        self._taken: set[str] = set()
        handle.services.changes.subscribe(POD, self._changed)

    @property
    def taken(self) -> int:
        return len(self._taken)

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        if not self._sits(pod):
            return Status.skip()
        if len(self._taken) < self._args.seats:
            return None
        return Status.unschedulable(f"all {self._args.seats} seats are taken")

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        if self._sits(pod):
            self._taken.add(pod.uid)
        return None

    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        self._taken.discard(pod.uid)

    def events_to_register(self) -> Iterable[HintedEvent]:
        gone = ClusterEvent(EventResource.ASSIGNED_POD, Action.DELETE)
        return (HintedEvent(gone, self._frees_a_seat),)

    def _frees_a_seat(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        frees = isinstance(old, ClusterPod) and self._sits(old)
        return QueueingHint.QUEUE if frees else QueueingHint.SKIP

    def _changed(self, old: ClusterPod | None, new: ClusterPod | None) -> None:
        """A pod was added, changed, ended, or was removed."""
        if new is not None and new.node and not new.finished and self._sits(new):
            self._taken.add(new.uid)
        elif old is not None and (new is None or new.finished):
            self._taken.discard(old.uid)

    def _sits(self, pod: ClusterPod) -> bool:
        return self._args.label in pod.labels
