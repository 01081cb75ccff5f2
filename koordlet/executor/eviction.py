"""Evictions: what a plugin asks for, and what becomes of it."""

from dataclasses import dataclass
from typing import Protocol

from koordlet.api.eviction import EvictionAnswer, EvictionOutcome
from koordlet.api.pod import Pod
from koordlet.util.errors import Unavailable


@dataclass(frozen=True, slots=True)
class Eviction:
    """The answer to one request. retry_after: seconds in which asking again changes nothing."""

    outcome: EvictionOutcome
    message: str = ""  # for people; empty when the outcome says it all
    retry_after: float = 0.0

    @property
    def accepted(self) -> bool:
        """Whether this request is what ends the pod, or in dry-run would be."""
        return self.outcome in (EvictionOutcome.EVICTED, EvictionOutcome.WOULD_EVICT)

    @property
    def ending(self) -> bool:
        """Whether the pod ends or has ended, whoever asked for it; in dry-run: would."""
        return self.accepted or self.outcome in (EvictionOutcome.UNDER_WAY, EvictionOutcome.GONE)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvictionRequest:
    """Who wants which pod evicted, and why.

    feature is the feature gate that stands behind it; reason is a sentence for people with the
    numbers that decided; grace_seconds None leaves the pod its own grace period.
    """

    plugin: str
    feature: str
    pod: Pod
    reason: str
    grace_seconds: int | None = None


class Evicts(Protocol):
    """Decides on evictions for plugins."""

    async def evict(self, request: EvictionRequest) -> Eviction:
        """Return what became of it, within about ten seconds.

        Raises:
            Unavailable: there is no API server.
        """


class UnavailableEvictor:
    """What evicts where there is no API server: nobody."""

    async def evict(self, request: EvictionRequest) -> Eviction:
        pod = request.pod
        raise Unavailable(
            f"evict {pod.namespace}/{pod.name}: wanted the Kubernetes API server, found standalone "
            "mode; run the agent in a cluster or with --kubeconfig, or do without"
        )


class EvictionApi(Protocol):
    """The API server, as far as evictions need it."""

    async def evict(self, pod: Pod, grace_seconds: int | None) -> EvictionAnswer:
        """Ask for the eviction of exactly this pod, once. Never raises for what a server does."""

    def announce(self, pod: Pod, *, warning: bool, reason: str, message: str) -> None:
        """Tell it in the cluster as an event on the pod. Never waits."""
