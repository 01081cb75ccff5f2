"""CPU quota, burst budget and tokens of a container; the load of shared CPUs. Pure."""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from koord.api.qosstrategy import CPUBurst, CPUBurstPolicy

COOLING = 0.9  # share of the threshold from which on quotas do not grow any more


class PoolState(Enum):
    """Load of the share pool; it allows quotas to grow, to stay, or only to shrink."""

    IDLE = "idle"
    COOLING = "cooling"
    OVERLOAD = "overload"
    UNKNOWN = "unknown"  # no recent measurement


class SharePool(NamedTuple):
    """CPUs that no pod owns, and their usage; in cores."""

    total: float
    used: float

    @property
    def ratio(self) -> float:
        """Used share; a pool without CPUs is full."""
        return self.used / self.total if self.total > 0 else 1.0

    def state(self, threshold_percent: int) -> PoolState:
        threshold = threshold_percent / 100
        if self.ratio >= threshold:
            return PoolState.OVERLOAD
        return PoolState.COOLING if self.ratio >= threshold * COOLING else PoolState.IDLE


def share_pool(
    cpus: float, node_used: float, *, reserved: Iterable[float], elsewhere: Iterable[float]
) -> SharePool:
    """Return the shared CPUs of a node, and their usage.

    reserved: the requests of pods with CPUs of their own. elsewhere: the usage of these and of
    best-effort pods. All other usage, for example the system's, counts as used in the pool.
    """
    return SharePool(cpus - sum(reserved), node_used - sum(elsewhere))


GROW, SHRINK = 1.2, 0.8
_BURST_BUDGET = (CPUBurstPolicy.AUTO, CPUBurstPolicy.CPU_BURST_ONLY)
_QUOTA_BURST = (CPUBurstPolicy.AUTO, CPUBurstPolicy.CFS_QUOTA_BURST_ONLY)


class Operation(Enum):
    """A change of a container's quota."""

    UP = "up"
    DOWN = "down"
    REMAIN = "remain"
    RESET = "reset"


def uses_budget(settings: CPUBurst) -> bool:
    """Whether containers get a burst budget."""
    return settings.policy in _BURST_BUDGET


def uses_quota(settings: CPUBurst) -> bool:
    """Whether quotas of throttled containers grow."""
    return settings.policy in _QUOTA_BURST


def burst_budget(limit_milli: int, percent: int) -> int:
    """Return the unused CPU time that a container may save up and then use at once; 0: none."""
    return limit_milli * percent if limit_milli > 0 else 0  # 1/1000 core x 1/100 x 100,000 us


def operation(settings: CPUBurst, *, allowed: bool, throttled: float | None) -> Operation:
    """Return the change that a container itself needs.

    allowed: it may be above its limit at all. throttled: share of the latest periods in which it
    was throttled; None: not known.
    """
    if not uses_quota(settings):
        return Operation.RESET
    if not allowed:
        return Operation.DOWN
    return Operation.UP if throttled else Operation.REMAIN


def permitted(wanted: Operation, pool: PoolState) -> Operation:
    """Return the change that the load of the share pool permits."""
    if pool is PoolState.OVERLOAD and wanted in (Operation.UP, Operation.REMAIN):
        return Operation.DOWN
    if pool in (PoolState.COOLING, PoolState.UNKNOWN) and wanted is Operation.UP:
        return Operation.REMAIN
    return wanted


def ceiling(base: int, percent: int) -> int:
    """Return the highest quota of a container with this base, the quota of its limit."""
    return base * percent // 100 if percent > 100 else base


def next_quota(change: Operation, current: int, base: int, percent: int) -> int:
    """Return the quota that follows current: between base and the ceiling."""
    wanted = {
        Operation.UP: int(current * GROW),
        Operation.DOWN: int(current * SHRINK),
        Operation.REMAIN: current,
        Operation.RESET: base,
    }[change]
    return max(base, min(wanted, ceiling(base, percent)))


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
