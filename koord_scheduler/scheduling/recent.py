"""The latest decisions about pods, for people who look."""

from collections import deque
from dataclasses import dataclass

from koord.util.clock import Clock
from koord_scheduler.scheduling.attempt import Attempt, Failure

KEPT = 200
LONGEST_MESSAGE = 500  # characters


@dataclass(frozen=True, slots=True)
class Recent:
    """How one attempt ended."""

    at: float  # Unix seconds
    pod: str  # namespace/name
    node: str  # that it was bound to; "": none
    message: str  # why not
    seconds: float  # from the begin of the attempt
    attempts: int  # for this pod, with this one


class RecentDecisions:
    """The latest ones, the newest last, and how many there were. Belongs to the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.kept: deque[Recent] = deque(maxlen=KEPT)
        self.bound = 0
        self.failed = 0

    def note_bound(self, attempt: Attempt) -> None:
        """A pod is on its node."""
        self.bound += 1
        self._note(attempt, attempt.node, "")

    def note_failed(self, attempt: Attempt, failure: Failure) -> None:
        """A pod goes back into the queue."""
        self.failed += 1
        self._note(attempt, "", failure.status.message[:LONGEST_MESSAGE])

    def _note(self, attempt: Attempt, node: str, message: str) -> None:
        clock, queued = self._clock, attempt.queued
        seconds = clock.monotonic() - attempt.began
        ended = Recent(clock.wall(), queued.key, node, message, seconds, queued.attempts)
        self.kept.append(ended)
