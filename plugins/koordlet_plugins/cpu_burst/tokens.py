"""Budgets of CPU time above the limit: saved while a container is quiet, spent in a burst."""

from koord.api.slo.strategies import CPUBurst

QUIET = 60.0  # percent of the limit below which a container saves
FIRST_SHARE = 0.25  # of its capacity that a bucket holds at first: the average of Koordinator's


class BurstTokens:
    """The tokens of one container, in percent of its limit times seconds.

    Above its limit a container spends tokens for the excess, below QUIET it saves the unused part.
    A bucket goes down to minus its capacity. Times are monotonic seconds.
    """

    def __init__(self, capacity: float, now: float) -> None:
        self.capacity = capacity
        self.tokens = capacity * FIRST_SHARE
        self.updated = now

    def allow(self, now: float, usage_percent: float) -> bool:
        """Account for the time since the last call; return whether there are tokens left."""
        seconds, self.updated = now - self.updated, now
        if usage_percent >= 100 or usage_percent < QUIET:
            self.tokens += (100 - usage_percent) * seconds
            self.tokens = max(-self.capacity, min(self.tokens, self.capacity))
        return self.tokens > 0


class BurstLimits:
    """Limits the time that containers may stay above their limits, by container id."""

    def __init__(self) -> None:
        self._buckets: dict[str, tuple[BurstTokens, float]] = {}  # with its lifetime in seconds

    def allow(self, container: str, settings: CPUBurst, now: float, usage_percent: float) -> bool:
        """Return whether a container may have more than its limit now."""
        period, percent = settings.cfs_quota_burst_period_seconds, settings.cfs_quota_burst_percent
        if period < 0:
            return True
        if percent < 100:
            return False
        capacity = float(period * (percent - 100))
        bucket, _ = self._buckets.get(container, (None, 0.0))
        if bucket is None or bucket.capacity != capacity:
            bucket = BurstTokens(capacity, now)
        self._buckets[container] = (bucket, 2.0 * period)
        return bucket.allow(now, usage_percent)

    def recycle(self, now: float) -> None:
        """Forget containers without a call of allow for twice their period."""
        self._buckets = {
            container: (bucket, lifetime)
            for container, (bucket, lifetime) in self._buckets.items()
            if now - bucket.updated <= lifetime
        }
