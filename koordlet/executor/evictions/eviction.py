"""Evictions: a plugin's request, and the response."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from koord.api.eviction import EvictionOutcome, EvictionResponse
from koord.api.pod import Pod
from koord.util.errors import Unavailable


class EvictionFallback(StrEnum):
    """The action on a victim that runs on after its accepted eviction, or without an API server."""

    NONE = "none"
    KILL = "kill"


_ACCEPTED = (EvictionOutcome.EVICTED, EvictionOutcome.WOULD_EVICT, EvictionOutcome.KILLED)


@dataclass(frozen=True, slots=True)
class Eviction:
    """The answer to one request. retry_after: seconds in which asking again changes nothing."""

    outcome: EvictionOutcome
    message: str = ""  # for people; empty when the outcome is enough
    retry_after: float = 0.0

    @property
    def accepted(self) -> bool:
        """Whether this request is what ends the pod, or in dry-run would be."""
        return self.outcome in _ACCEPTED

    @property
    def ending(self) -> bool:
        """Whether the pod ends or has ended, at any request; in dry-run: would."""
        return self.accepted or self.outcome in (EvictionOutcome.UNDER_WAY, EvictionOutcome.GONE)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvictionRequest:
    """A plugin's request to evict a pod, with the reason.

    feature is the feature gate that it belongs to; reason is a sentence for people with the
    numbers that decided; grace_seconds None leaves the pod its own grace period. inputs are these
    numbers in base units; candidates the pods that come in question, first victim first. cgroup is
    the pod's; empty: not known, so that it can only be evicted through the API server.
    """

    plugin: str
    feature: str
    pod: Pod
    reason: str
    grace_seconds: int | None = None
    cgroup: str = ""
    inputs: Mapping[str, float | str] = field(default_factory=dict)
    candidates: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SuppressedEviction:
    """Evictions that were due, but not requested: outcome and message give the reason."""

    plugin: str
    feature: str
    outcome: EvictionOutcome
    reason: str
    message: str


class EvictionHandler(Protocol):
    """Decides on evictions for plugins."""

    async def evict(self, request: EvictionRequest) -> Eviction:
        """Return the response, within about ten seconds.

        Raises:
            Unavailable: there is no API server.
        """

    async def kill_overdue(self, request: EvictionRequest) -> Eviction:
        """The pod's eviction was accepted, its grace is over, and it is still there.

        Kill it where that is asked for, and both were seen here; else only record that it stays.
        """

    def record_freed(self, pod: Pod, freed: Mapping[str, float | str]) -> None:
        """Add to the record of a pod's eviction what it has released."""

    def record_suppressed(self, held: SuppressedEviction) -> None:
        """Record evictions that were not requested."""

    def announce(self, pod: Pod, *, warning: bool, reason: str, message: str) -> None:
        """Report it in the cluster as an event on the pod. Never waits."""


def unavailable(pod: Pod) -> Unavailable:
    """The error for an eviction request without an API server."""
    return Unavailable(
        f"evict {pod.namespace}/{pod.name}: wanted the Kubernetes API server, found standalone "
        "mode; run the agent in a cluster or with --kubeconfig, or with --evict-fallback=kill"
    )


class UnavailableEvictor:
    """Rejects all evictions: there is no API server."""

    async def evict(self, request: EvictionRequest) -> Eviction:
        raise unavailable(request.pod)

    async def kill_overdue(self, request: EvictionRequest) -> Eviction:
        return await self.evict(request)

    def record_freed(self, pod: Pod, freed: Mapping[str, float | str]) -> None:
        pass

    def record_suppressed(self, held: SuppressedEviction) -> None:
        pass

    def announce(self, pod: Pod, *, warning: bool, reason: str, message: str) -> None:
        """Do nothing: there is no cluster to report to."""


class EvictionApi(Protocol):
    """The API server, as far as evictions need it."""

    async def evict(self, pod: Pod, grace_seconds: int | None) -> EvictionResponse:
        """Ask for the eviction of exactly this pod, once. Never raises for what a server does."""

    def announce(self, pod: Pod, *, warning: bool, reason: str, message: str) -> None:
        """Report it in the cluster as an event on the pod. Never waits."""


@dataclass(frozen=True, slots=True)
class KillResult:
    """The result of killing a pod's processes. error is for people; empty: none is left."""

    killed: int
    error: str = ""


class PodProcessKiller(Protocol):
    """Ends the processes of a pod, at once."""

    async def kill(self, group: str, uid: str) -> KillResult:
        """Kill all processes in the cgroup of the pod with this uid, and see that it is empty."""
