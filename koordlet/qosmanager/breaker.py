"""A circuit breaker: decides when a failed plugin runs again, and when it counts as recovered."""

from koord.util.backoff import Backoff

SETTLED = 300.0  # seconds that a run has to go well: the cool-down, so none fails more often
SEVERAL = 3  # good rounds that it has to make in that time or later
RARE = 3600.0  # seconds after which fewer rounds will do: they are an hour apart


class Breaker:
    """Doubles the pause after each failure in a row; after several, one trial per cool-down.

    Pauses are jittered, so that a fleet that broke at once does not retry at once.
    """

    def __init__(self, *, threshold: int = 5, cooldown: float = 300.0) -> None:
        """threshold failures in a row open it; cooldown is in seconds."""
        self._threshold = threshold
        self._retry = Backoff(initial=1.0, cap=cooldown)
        self._trial = Backoff(initial=cooldown, cap=cooldown)
        self.failures = 0  # in a row

    @property
    def open(self) -> bool:
        return self.failures >= self._threshold

    def failed(self) -> float:
        """Note a failure and return the seconds to wait before the next attempt."""
        self.failures += 1
        return self._trial.next() if self.open else self._retry.next()

    def worked(self, seconds: float, rounds: int | None) -> bool:
        """Note for how long a run has gone well, with so many rounds; None: it makes none.

        Returns whether that closes the breaker: several good rounds, over as long as the cool-down.
        One good round would not do: a plugin that always fails in its second one would never be
        given a rest.
        """
        if not self.failures or seconds < SETTLED:
            return False
        if rounds is not None and rounds < SEVERAL and seconds < RARE:
            return False
        self.reset()
        return True

    def reset(self) -> None:
        """Close it: all failures are forgotten."""
        self.failures = 0
        self._retry.reset()
        self._trial.reset()
