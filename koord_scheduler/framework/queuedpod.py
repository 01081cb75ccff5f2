"""A pod that waits to be scheduled, and what is known of its attempts."""

from dataclasses import dataclass

from koord.cluster.facts import ClusterPod


@dataclass(eq=False, kw_only=True, slots=True)
class QueuedPod:
    """A pod in the queue, or taken from it for an attempt. Plugins only read it."""

    pod: ClusterPod
    timestamp: float  # monotonic seconds, when it came into the queue, or into it again
    first_attempt: float | None = None  # monotonic seconds; None: there was none
    attempts: int = 0  # that were begun
    unschedulable_count: int = 0  # attempts that ended with a rejection; for the backoff
    consecutive_errors: int = 0  # attempts that ended with an error, in a row; for the backoff
    cuts: int = 0  # attempts that were ended for time, in a row; for the backoff
    unschedulable_plugins: frozenset[str] = frozenset()  # that rejected it in its last attempt
    pending_plugins: frozenset[str] = frozenset()  # that answered Pending in it
    gating_plugin: str = ""  # the PreEnqueue plugin that keeps it from being tried; "": none

    @property
    def key(self) -> str:
        """namespace/name."""
        return self.pod.key

    @property
    def rejecting_plugins(self) -> frozenset[str]:
        """All plugins whose hints are asked about it."""
        return self.unschedulable_plugins | self.pending_plugins
