"""Token buckets: how often pods may be evicted, of one workload, of one namespace, and in total.

Source: Koordinator, pkg/descheduler/controllers/migration: object limiters.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from koord_descheduler.plugin import Clock

_KEPT = 1.5  # durations that an idle bucket is kept


@dataclass(slots=True)
class Bucket:
    """Fills at rate tokens a second up to burst; full at the beginning."""

    rate: float
    burst: int
    tokens: float
    filled: float  # monotonic seconds; when tokens was true
    kept_until: float = 0.0  # monotonic seconds

    def pause(self, now: float) -> float:
        """Seconds until there is a token; 0: there is one."""
        self._fill(now)
        return 0.0 if self.tokens >= 1 - 1e-9 else (1 - self.tokens) / self.rate

    def take(self, now: float) -> None:
        """Take a token, or what there is of one."""
        self._fill(now)
        self.tokens = max(self.tokens - 1, 0.0)

    def give_back(self) -> None:
        """Return a token that was not used."""
        self.tokens = min(self.tokens + 1, self.burst)

    def change(self, rate: float, now: float) -> None:
        """Fill at another rate from now on."""
        self._fill(now)
        self.rate = rate

    def _fill(self, now: float) -> None:
        self.tokens = min(self.tokens + (now - self.filled) * self.rate, self.burst)
        self.filled = now


@dataclass(frozen=True, slots=True)
class Pace:
    """How often pods of one object may be evicted."""

    kind: str  # "workload" or "namespace"
    name: str  # uid of the workload's controller, or name of the namespace
    rate: float  # evictions a second
    burst: int
    duration: float  # seconds, which rate was computed for


class ObjectLimiters:
    """Buckets of the objects of which pods were evicted lately. Belongs to the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, str], Bucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def pause(self, paces: Iterable[Pace]) -> float:
        """Seconds until an eviction under these paces may begin; 0: now."""
        now = self._clock.monotonic()
        return max((self._pause(pace, now) for pace in paces), default=0.0)

    def take(self, paces: Sequence[Pace], *, force: bool = False) -> float:
        """Take a token of each, or of none; return the seconds to wait, 0: they are taken.

        force: there is no wait, though what is there is taken.
        """
        now = self._clock.monotonic()
        if not force and (wait := self.pause(paces)):
            return wait
        for pace in paces:
            bucket = self._find(pace, now)
            if bucket is None:
                bucket = Bucket(pace.rate, pace.burst, pace.burst, now)
                self._buckets[pace.kind, pace.name] = bucket
            bucket.change(pace.rate, now)
            bucket.take(now)
            bucket.kept_until = now + _KEPT * pace.duration
        return 0.0

    def give_back(self, paces: Iterable[Pace]) -> None:
        """Return the tokens of an eviction that did not happen."""
        for pace in paces:
            bucket = self._buckets.get((pace.kind, pace.name))
            if bucket is not None:
                bucket.give_back()

    def forget_idle(self) -> None:
        """Drop the buckets that nothing was taken of for long."""
        now = self._clock.monotonic()
        idle = [key for key, bucket in self._buckets.items() if bucket.kept_until <= now]
        for key in idle:
            del self._buckets[key]

    def _pause(self, pace: Pace, now: float) -> float:
        bucket = self._find(pace, now)
        return 0.0 if bucket is None else bucket.pause(now)

    def _find(self, pace: Pace, now: float) -> Bucket | None:
        bucket = self._buckets.get((pace.kind, pace.name))
        return None if bucket is None or bucket.kept_until <= now else bucket


class EvictionRate:
    """Evictions of the whole process. Belongs to the event loop."""

    def __init__(self, clock: Clock, rate: float, burst: int) -> None:
        self._clock = clock
        self._bucket = Bucket(rate, burst, burst, clock.monotonic())

    def take(self) -> float:
        """Take a turn; return the seconds to wait, 0: it is taken."""
        now = self._clock.monotonic()
        wait = self._bucket.pause(now)
        if not wait:
            self._bucket.take(now)
        return wait
