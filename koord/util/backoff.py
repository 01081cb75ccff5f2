"""Growing pauses between attempts that keep failing."""

import random
from collections.abc import Callable


class Backoff:
    """Seconds to wait before the next attempt: initial, then factor times more each time, to cap.

    Each pause is lengthened by a random share of up to jitter, so that a fleet that failed
    together does not come back together.
    """

    def __init__(
        self,
        initial: float,
        cap: float,
        *,
        factor: float = 2.0,
        jitter: float = 0.1,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._initial, self._cap = initial, cap
        self._factor, self._jitter = factor, jitter
        self._draw = draw  # a number from 0 to 1
        self._pause = initial

    def next(self) -> float:
        """Return the pause before the next attempt, in seconds."""
        pause = min(self._pause, self._cap)
        self._pause = min(pause * self._factor, self._cap)
        return pause * (1 + self._jitter * self._draw())

    def reset(self) -> None:
        """Begin again: an attempt has succeeded."""
        self._pause = self._initial
