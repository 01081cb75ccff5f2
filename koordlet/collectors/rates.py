"""From cumulative counters to rates: what the previous reading was, and whether it still counts."""

from typing import Generic, TypeVar

V = TypeVar("V")

EXPIRES_AFTER = 20  # intervals without a reading, after which the previous one no longer counts
ZERO_COUNTS_FOR = 3  # intervals for which "the group did not exist yet" is used as a zero reading


class Previous(Generic[V]):
    """The latest reading of each key, until it expires.

    Times are monotonic seconds. Not for several threads.
    """

    def __init__(self, interval: float) -> None:
        self._lifetime = EXPIRES_AFTER * interval
        self._readings: dict[str, tuple[V, float]] = {}
        self._next_purge = 0.0

    def swap(self, key: str, value: V, at: float) -> tuple[V, float] | None:
        """Remember a reading and return the one before it, or None if that is missing or old."""
        before = self._readings.get(key)
        self._readings[key] = (value, at)
        if before is None or at - before[1] > self._lifetime:
            return None
        return before

    def purge(self, now: float) -> None:
        """Forget what has expired. Cheap enough for every tick: it looks once per lifetime."""
        if now < self._next_purge:
            return
        self._next_purge = now + self._lifetime
        oldest = now - self._lifetime
        self._readings = {key: kept for key, kept in self._readings.items() if kept[1] >= oldest}

    def __len__(self) -> int:
        return len(self._readings)


class Rates(Previous[int]):
    """Increase per second of cumulative counters, by key."""

    def __init__(self, interval: float) -> None:
        super().__init__(interval)
        self._zero_lifetime = ZERO_COUNTS_FOR * interval

    def rate(self, key: str, value: int, at: float, absent_at: float | None = None) -> float | None:
        """Return the increase per second since the key's previous reading.

        None without a usable previous reading: there was none, it is too old, no time passed, or
        the counter went back (its group was created anew). absent_at is a time at which the
        counter did not exist yet, hence was zero; it replaces a missing previous reading.
        """
        before = self.swap(key, value, at)
        if before is None:
            if absent_at is None or at - absent_at > self._zero_lifetime:
                return None
            before = (0, absent_at)
        increase, seconds = value - before[0], at - before[1]
        if increase < 0 or seconds <= 0:
            return None
        return increase / seconds
