"""A container's CPU quota and burst budget, from throttling and load. Pure; times in us."""

from enum import Enum

from koord.api.slo.strategies import CPUBurst, CPUBurstPolicy
from koordlet_plugins.cpu_burst.sharepool import PoolState

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
