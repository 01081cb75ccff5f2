"""What plugins may do to the scheduler itself: its cache and its queue."""

from abc import ABC, abstractmethod
from collections.abc import Iterable

from koord.cluster.facts import ClusterPod


class SchedulerControl(ABC):
    """The scheduler's cache and queue, for plugins that have pods of their own.

    There is none yet while plugins are made; ask the handle for it each time.

    Source: Koordinator, pkg/scheduler/frameworkext (Scheduler).
    """

    @abstractmethod
    def pod(self, key: str) -> ClusterPod | None:
        """A pod by namespace/name, on the node that it is assumed to be on; None: not known."""

    @abstractmethod
    def is_assumed(self, uid: str) -> bool:
        """Whether a pod is on its node though the API server does not say so yet."""

    @abstractmethod
    def forget_pod(self, pod: ClusterPod) -> bool:
        """Take an assumed pod off its node; return whether it was assumed.

        All forget handlers are called, whether it was or not.
        """

    @abstractmethod
    def put_own_pod(self, pod: ClusterPod) -> None:
        """Put a pod that the API server does not have, such as one that stands for a reservation.

        Bound to a node, it takes its room there; without one, and asking for one of our profiles,
        it is queued. Put again, it is changed. Lists of the API server do not remove it.

        Raises:
            ValueError: the API server has a pod of this name.
        """

    @abstractmethod
    def remove_own_pod(self, key: str) -> None:
        """Remove such a pod; one that is none is left alone."""

    @abstractmethod
    def activate(self, uids: Iterable[str]) -> None:
        """Have pods be tried now, whatever they wait for; gates still count."""

    @abstractmethod
    def activate_all(self) -> None:
        """Have all rejected pods be tried again, after their backoff."""


class ControlSlot:
    """Where the scheduler is found once it is there."""

    def __init__(self) -> None:
        self._control: SchedulerControl | None = None

    def set(self, control: SchedulerControl) -> None:
        self._control = control

    def get(self) -> SchedulerControl:
        """Raises LookupError: it is not there."""
        if self._control is None:
            raise LookupError("there is no scheduler yet: ask for it when pods are scheduled")
        return self._control
