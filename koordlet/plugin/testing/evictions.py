"""Scripted evictions: an API server that accepts them, unless a test says otherwise."""

from collections import deque
from dataclasses import dataclass

from koord.api.eviction import EvictionAnswer, EvictionOutcome
from koord.api.pods.pod import Pod
from koord.util.clock import Clock


@dataclass(frozen=True, slots=True)
class AskedEviction:
    """A request as it reached the API server."""

    pod: Pod
    grace_seconds: int | None
    outcome: EvictionOutcome


@dataclass(frozen=True, slots=True)
class PodEvent:
    """A Kubernetes event on a pod."""

    pod: str  # namespace/name
    warning: bool
    reason: str
    message: str


class ScriptedEvictions:
    """Answers requests for evictions, and keeps them.

    What comes before the API server is real: dry-run, the budget, one request per pod at a time,
    and the pause after a no.
    """

    def __init__(self, clock: Clock) -> None:
        self.asked: list[AskedEviction] = []
        self.events: list[PodEvent] = []
        self._clock = clock
        self._next: deque[tuple[EvictionAnswer, float]] = deque()
        self._standing: dict[str, tuple[EvictionAnswer, float]] = {}  # by namespace/name

    def answer(
        self,
        outcome: EvictionOutcome,
        *,
        message: str = "",
        retry_after: float | None = None,
        after: float = 0.0,
        pod: str = "",
    ) -> None:
        """Set the answer to the next request, and its delay in seconds; one call per request.

        With a pod (namespace/name): answer all requests for this pod so from now on.
        """
        busy = outcome is EvictionOutcome.RATE_LIMITED
        certain = outcome is not EvictionOutcome.FAILED
        answer = EvictionAnswer(outcome, message, retry_after, busy, certain)
        if pod:
            self._standing[pod] = (answer, after)
        else:
            self._next.append((answer, after))

    @property
    def evicted(self) -> list[str]:
        """The pods whose eviction was accepted, as namespace/name, oldest first."""
        return [
            f"{asked.pod.namespace}/{asked.pod.name}"
            for asked in self.asked
            if asked.outcome is EvictionOutcome.EVICTED
        ]

    async def evict(self, pod: Pod, grace_seconds: int | None) -> EvictionAnswer:
        """As koordlet.executor's EvictionApi."""
        answer, after = EvictionAnswer(EvictionOutcome.EVICTED), 0.0
        if applied_values := self._standing.get(f"{pod.namespace}/{pod.name}"):
            answer, after = applied_values
        elif self._next:
            answer, after = self._next.popleft()
        await self._clock.sleep(after)
        self.asked.append(AskedEviction(pod, grace_seconds, answer.outcome))
        return answer

    def announce(self, pod: Pod, *, warning: bool, reason: str, message: str) -> None:
        """As koordlet.executor's EvictionApi."""
        self.events.append(PodEvent(f"{pod.namespace}/{pod.name}", warning, reason, message))
