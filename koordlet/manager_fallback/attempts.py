"""Backoff between attempts to write an object."""

import random
from collections.abc import Callable

from koord.kube.errors import (
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
    PatchRefused,
    RequestTooLarge,
    Unauthorized,
)
from koord.util.backoff import Backoff
from koord.util.clock import Clock

# Seconds between attempts, doubled at most by jitter.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # after an error that may pass by itself
FIRST_REST, LONGEST_REST = 60.0, 600.0  # after a fault to be mended: RBAC, a missing CRD
MISSING_REST = 8.0  # at most after 404, likewise: the CRD is missing, a request costs little
# From one write to the next, doubled each time: another writer may undo each at once.
FIRST_GAP, LONGEST_GAP = 10.0, 600.0
_USUAL_CONFLICTS = 3  # in a row; it was changed at the same time, and the watch will show it

_REFUSALS = (BadRequest, Unauthorized, Forbidden, NotFound, RequestTooLarge, Invalid)


class Attempts:
    """Paces the writes of one object by how the earlier ones went.

    uid is that of the object as the watch has shown it; empty while there is none.
    """

    def __init__(self, clock: Clock, *, draw: Callable[[], float] = random.random) -> None:
        self._clock = clock
        self._draw = draw
        self._pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE, jitter=1.0, draw=draw)
        self._rests = Backoff(FIRST_REST, LONGEST_REST, jitter=1.0, draw=draw)
        self._gaps = Backoff(FIRST_GAP, LONGEST_GAP)
        self._not_before = self._wrote_at = clock.monotonic()
        self._tried = ""  # uid in the latest attempt
        self._conflicts = 0

    @property
    def due_in(self) -> float:
        """Seconds until the next attempt; 0 or less: it may be made."""
        return self._not_before - self._clock.monotonic()

    def begin(self, uid: str) -> None:
        """Record that an attempt is made."""
        self._tried = uid

    def see(self, uid: str) -> None:
        """Record a version that the watch has shown: another object, or the cause of a conflict."""
        if uid != self._tried or self._conflicts:
            self._not_before = self._clock.monotonic()

    def wrote(self) -> None:
        """Record that the object was written; the next write waits for a while."""
        now = self._clock.monotonic()
        if now - self._wrote_at > 2 * LONGEST_GAP:
            self._gaps.reset()
        self._wrote_at, self._not_before = now, now + self._gaps.next()

    def works(self) -> None:
        """Forget failures: the object is in line, or the duty is another agent's from now on."""
        self._conflicts = 0
        self._pauses.reset()
        self._rests.reset()

    def failed(self, err: KubeError) -> bool:
        """Record a failure; return whether it is worth a log line: a rare conflict is not."""
        refused = isinstance(err, _REFUSALS) and not isinstance(err, PatchRefused)
        pause = (self._rests if refused else self._pauses).next()
        if isinstance(err, NotFound):
            pause = min(pause, MISSING_REST * (1 + self._draw()))
        wanted = err.retry_after if isinstance(err, ApiError) else None
        self._not_before = self._clock.monotonic() + max(pause, wanted or 0.0)
        self._conflicts = self._conflicts + 1 if isinstance(err, Conflict | PatchRefused) else 0
        return not 0 < self._conflicts <= _USUAL_CONFLICTS
