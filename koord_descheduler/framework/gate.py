"""Eviction gate: a voice beside the limits in whether a pod may be evicted now."""

from typing import Protocol

from koord.cluster.facts import ClusterPod
from koord_descheduler.framework.interfaces import EvictOptions


class AdmissionGate(Protocol):
    """Asked before each eviction, of a dry-run too, and notified of those that are begun.

    Times are Unix seconds. Belongs to the event loop.
    """

    def refusal(self, pod: ClusterPod, options: EvictOptions, now: float, *, dry_run: bool) -> str:
        """Why the pod may not be evicted now, for people; "": it may."""

    def noted(self, pod: ClusterPod, options: EvictOptions, now: float, *, dry_run: bool) -> None:
        """An eviction is about to be carried out; what is refused from now on may depend on it."""

    def undone(self, pod: ClusterPod) -> None:
        """The eviction that was noted last did not happen."""


class OpenGate:
    """Refuses nothing and keeps nothing."""

    def refusal(self, pod: ClusterPod, options: EvictOptions, now: float, *, dry_run: bool) -> str:
        return ""

    def noted(self, pod: ClusterPod, options: EvictOptions, now: float, *, dry_run: bool) -> None:
        return

    def undone(self, pod: ClusterPod) -> None:
        return
