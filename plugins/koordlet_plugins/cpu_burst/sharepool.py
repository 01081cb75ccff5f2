"""Load of the CPUs that latency-sensitive pods share. Pure."""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

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
    """Return the pool of a node.

    reserved: the requests of pods with CPUs of their own. elsewhere: the usage of these and of
    best-effort pods. All other usage, for example the system's, counts as used in the pool.
    """
    return SharePool(cpus - sum(reserved), node_used - sum(elsewhere))
