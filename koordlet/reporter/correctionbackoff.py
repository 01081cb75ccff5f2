"""Backoff between corrections of fields that another writer keeps changing."""

import random
from collections.abc import Callable

from koord.util.backoff import Backoff
from koord.util.clock import Clock

PEACE = 600.0  # seconds without a correction after which the next one is made at once
LONGEST_PAUSE = 300.0  # seconds


class CorrectionBackoff:
    """Allows the first correction at once and the next ones ever more rarely.

    Two writers that overwrite each other all the time load the API server and settle nothing.
    """

    def __init__(
        self, clock: Clock, interval: float, *, draw: Callable[[], float] = random.random
    ) -> None:
        """interval: seconds between the first two corrections."""
        self._clock = clock
        self._backoff = Backoff(interval, LONGEST_PAUSE, draw=draw)
        self._latest = clock.monotonic() - PEACE
        self._next = clock.monotonic()

    def may_correct(self) -> bool:
        """Whether it is time for a correction; it counts as made if so."""
        now = self._clock.monotonic()
        if now < self._next:
            return False
        if now - self._latest >= PEACE:
            self._backoff.reset()
        self._latest, self._next = now, now + self._backoff.next()
        return True
