"""When a plugin that failed may try again."""

from koordlet.util.backoff import Backoff


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

    def succeeded(self) -> None:
        """Close it: the plugin did its work."""
        self.failures = 0
        self._retry.reset()
        self._trial.reset()
