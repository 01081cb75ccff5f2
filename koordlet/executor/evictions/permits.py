"""Permits killing a pod, by what the API server has answered about its eviction."""

from dataclasses import dataclass

from koord.api.eviction import EvictionAnswer, EvictionOutcome
from koord.api.pods.pod import Pod
from koord.util.clock import Clock
from koordlet.executor.evictions.eviction import Eviction, EvictionRequest

REMEMBERED = 256  # pods


@dataclass(frozen=True, slots=True)
class _Accepted:
    grace: int  # seconds
    over: float  # monotonic; the end of the grace period


class Permits:
    """Remembers accepted evictions. The latest answer about a pod counts, and only a yes permits.

    Nothing is kept over a restart: the API server is asked again, and says yes to a pod that ends.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._accepted: dict[str, _Accepted] = {}  # by UID; latest last

    def note(self, request: EvictionRequest, answer: EvictionAnswer) -> None:
        """Take what the API server answered."""
        uid = request.pod.uid
        earlier = self._accepted.pop(uid, None)
        if answer.outcome is not EvictionOutcome.EVICTED:
            return
        own = request.pod.grace_seconds
        grace = own if request.grace_seconds is None else request.grace_seconds
        over = self._clock.monotonic() + grace
        if earlier is not None and earlier.over < over:
            grace, over = earlier.grace, earlier.over  # a pod that ends gets no second period
        self._accepted[uid] = _Accepted(grace, over)
        if len(self._accepted) > REMEMBERED:
            del self._accepted[next(iter(self._accepted))]

    def refusal(self, pod: Pod) -> Eviction | None:
        """Return why a pod may not be killed now; None: it may."""
        accepted = self._accepted.get(pod.uid)
        if accepted is None:
            message = "the API server has not accepted an eviction of this pod"
            return Eviction(EvictionOutcome.IGNORED, message)
        left = max(
            accepted.over - self._clock.monotonic(), (pod.gone_by or 0.0) - self._clock.wall()
        )
        if left <= 0:
            return None
        message = f"accepted; its grace period of {accepted.grace} s is not over"
        return Eviction(EvictionOutcome.UNDER_WAY, message, left)
