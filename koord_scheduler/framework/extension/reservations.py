"""Interfaces about reservations: room that is kept on a node for pods that come later.

What a reservation is, its plugin says; the framework knows its name, its labels and its owner's
order only.

Source: Koordinator, pkg/scheduler/frameworkext/interface.go.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from koord.cluster.facts import ClusterPod
from koord_scheduler.framework.cyclestate import CycleState, StateData
from koord_scheduler.framework.interfaces import Plugin
from koord_scheduler.framework.nodeinfo import NodeInfo
from koord_scheduler.framework.status import Status

ORDER_LABEL = "scheduling.koordinator.sh/reservation-order"
"""Of several reservations that a pod could have, it has the one with the least positive number."""


class Reservation(Protocol):
    """A reservation on a node."""

    @property
    def name(self) -> str: ...

    @property
    def labels(self) -> Mapping[str, str]: ...


@dataclass(slots=True)
class ReservationScore:
    """The score of a reservation, which a plugin may normalize."""

    name: str
    score: int


class ReservationRestorePlugin(Plugin, ABC):
    """Gives back what reservations hold beyond amounts of resources, such as CPUs and devices."""

    def pre_restore_reservation(self, state: CycleState, pod: ClusterPod) -> Status | None:
        """Prepare it for one pod; anything but success ends the cycle."""
        return None

    @abstractmethod
    def restore_reservation(
        self,
        state: CycleState,
        pod: ClusterPod,
        matched: Sequence[Reservation],
        unmatched: Sequence[Reservation],
        node: NodeInfo,
    ) -> StateData | Status | None:
        """Return what the plugin's Filter needs of this node; None: nothing.

        matched: reservations that the pod could have. unmatched: those that other pods have.
        """


class ReservationPreAllocationRestorePlugin(Plugin, ABC):
    """The same for a reservation that takes over what running pods have."""

    def pre_restore_reservation_pre_allocation(
        self, state: CycleState, reservation: Reservation
    ) -> Status | None:
        """Prepare it for one reservation; anything but success ends the cycle."""
        return None

    @abstractmethod
    def restore_reservation_pre_allocation(
        self,
        state: CycleState,
        reservation: Reservation,
        pods: Sequence[ClusterPod],
        node: NodeInfo,
    ) -> StateData | Status | None:
        """Return what the plugin's Filter needs of this node; None: nothing."""


class ReservationFilterPlugin(Plugin, ABC):
    """Says which reservations a pod can use."""

    @abstractmethod
    def filter_reservation(
        self, state: CycleState, pod: ClusterPod, reservation: Reservation, node_name: str
    ) -> Status | None:
        """Let the pod have it, in Filter, or reject it."""

    def filter_nominate_reservation(
        self, state: CycleState, pod: ClusterPod, reservation: Reservation, node_name: str
    ) -> Status | None:
        """Let it be nominated, when the node is looked at alone, or reject it."""
        return None


class ReservationScorePlugin(Plugin, ABC):
    """Ranks the reservations of one node."""

    @abstractmethod
    def score_reservation(
        self, state: CycleState, pod: ClusterPod, reservation: Reservation, node_name: str
    ) -> int:
        """Return the score: 0 to 100, unless the plugin normalizes it."""


class ReservationScoreExtensions(Plugin, ABC):
    """Brings the scores of one plugin into the range from 0 to 100."""

    @abstractmethod
    def normalize_reservation_score(
        self, state: CycleState, pod: ClusterPod, scores: list[ReservationScore]
    ) -> Status | None:
        """Change the scores."""


class ReservationNominator(Plugin, ABC):
    """Remembers which reservation a pod is to have; of several such plugins the last one counts."""

    @abstractmethod
    def nominate_reservation(
        self, state: CycleState, pod: ClusterPod, node_name: str
    ) -> Reservation | Status | None:
        """Return the reservation that a pod would have on a node; None: none."""

    @abstractmethod
    def add_nominated_reservation(
        self, pod: ClusterPod, node_name: str, reservation: Reservation
    ) -> None:
        """Remember it."""

    @abstractmethod
    def nominated_reservation(self, pod: ClusterPod, node_name: str) -> Reservation | None:
        """Return what is remembered; None: nothing."""

    @abstractmethod
    def delete_nominated(self, pod: ClusterPod) -> None:
        """Forget a pod, or a reservation's own pod; called after Reserve, whatever came of it."""

    def reservation_nominate(
        self, state: CycleState, pod: ClusterPod, node_name: str
    ) -> Status | None:
        """Called when the node is chosen, before Reserve; anything but success ends the cycle."""
        return None


class ReservationCache(Plugin, ABC):
    """Finds reservations; of several such plugins the last one counts."""

    @abstractmethod
    def delete_reservation(self, reservation: Reservation) -> None:
        """Forget one that has gone."""

    @abstractmethod
    def reservation_of(self, pod: ClusterPod, node_name: str) -> Reservation | None:
        """Return the reservation that a pod has; None: none."""


class ReservationPreBindPlugin(Plugin, ABC):
    """Prepares what a reservation needs before it is bound; active where enabled at preBind."""

    @abstractmethod
    async def pre_bind_reservation(
        self, state: CycleState, reservation: Reservation, node_name: str
    ) -> Status | None:
        """Prepare it; anything but success ends the binding."""
