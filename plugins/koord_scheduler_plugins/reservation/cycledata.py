"""What the cycle of a pod keeps in its state about reservations. It never changes."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from koord_scheduler.plugin import ClusterPod, View
from koord_scheduler_plugins.reservation.demands import Demands
from koord_scheduler_plugins.reservation.matches import ByNode
from koord_scheduler_plugins.reservation.objects import Reservation


@dataclass(frozen=True, slots=True)
class CycleData:
    """What the cycle of a pod knows of reservations."""

    nodes: View  # without the pods of what matches
    demands: Demands | None = None  # None: of a reserve pod
    by_node: ByNode = field(default_factory=dict)
    key: Hashable = ()
    ordered: bool = False
    reservation: Reservation | None = None  # that a reserve pod stands for
    candidates: Mapping[str, Sequence[ClusterPod]] = field(default_factory=dict)
    """Pods that this reservation may take over, by node; they are not in nodes."""

    def clone(self) -> "CycleData":
        return self


@dataclass(frozen=True, slots=True)
class Chosen:
    """The reservation that a pod is given, or the pods that a reservation takes over."""

    reservation: Reservation | None = None
    pods: tuple[ClusterPod, ...] = ()

    def clone(self) -> "Chosen":
        return self


@dataclass(frozen=True, slots=True)
class Preferred:
    """The node with the first reservation by order; None: no feasible node has one."""

    node: str | None

    def clone(self) -> "Preferred":
        return self
