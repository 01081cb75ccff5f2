"""Pauses evictions after a refusal, and remembers the answer meanwhile."""

from dataclasses import dataclass

from koord.api.eviction import EvictionAnswer
from koord.util.backoff import Backoff
from koord.util.clock import Clock
from koordlet.executor.evictions.eviction import Eviction

FIRST_PAUSE, LONGEST_PAUSE = 10.0, 300.0  # seconds; doubled with each answer in a row
REMEMBERED = 256  # pods
_EVERY_POD = ""  # in place of a pod's UID


@dataclass(slots=True)
class _Pause:
    backoff: Backoff
    answer: EvictionAnswer
    until: float  # monotonic


class EvictionBackoff:
    """After a refusal, the pod (or, when the server is busy, every pod) is left alone for a while.

    The pause is what the server asked for, and at least one of our own that grows: a plugin looks
    each second, and a PodDisruptionBudget does not open within one.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pauses: dict[str, _Pause] = {}  # by UID; latest last

    def begin(self, uid: str, answer: EvictionAnswer) -> float:
        """Hold off after this answer; return for how many seconds."""
        key = _EVERY_POD if answer.busy else uid
        earlier = self._pauses.pop(key, None)
        now = self._clock.monotonic()
        if earlier is None or now - earlier.until > LONGEST_PAUSE:
            backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        else:
            backoff = earlier.backoff
        seconds = max(backoff.next(), answer.retry_after or 0.0)
        self._pauses[key] = _Pause(backoff, answer, now + seconds)
        if len(self._pauses) > REMEMBERED:
            del self._pauses[next(iter(self._pauses))]
        return seconds

    def end(self, uid: str) -> None:
        """The server has accepted an eviction: it is not busy."""
        self._pauses.pop(uid, None)
        self._pauses.pop(_EVERY_POD, None)

    def find(self, uid: str) -> Eviction | None:
        """The answer that still holds for this pod; None: ask."""
        now = self._clock.monotonic()
        for key in (_EVERY_POD, uid):
            pause = self._pauses.get(key)
            if pause is not None and pause.until > now:
                answer = pause.answer
                return Eviction(answer.outcome, answer.message, pause.until - now)
        return None
