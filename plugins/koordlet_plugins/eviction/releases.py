"""Formulas for the amounts that the victims of an eviction must release.

CPU is in milli-cores, memory in bytes, thresholds in percent. Arithmetic is Koordinator's to the
last unit: where it divides integers or multiplies floats, so does this, in the same order.

Source: Koordinator, pkg/koordlet/qosmanager/plugins/cpuevict and memoryevict.
"""

from collections.abc import Mapping
from dataclasses import dataclass

THIRD = 3  # a window with fewer than a third of its possible samples does not count


@dataclass(frozen=True, slots=True)
class Band:
    """The percentage from which on pods are evicted, and the one down to which."""

    threshold: int
    lower: int

    def while_under_way(self) -> "Band":
        """The band in force from the first victim until the lower mark is reached."""
        return Band(self.lower, self.lower)


@dataclass(frozen=True, slots=True)
class Satisfaction:
    """CPU of best-effort pods: request, limit and usage. In milli-cores."""

    request: float
    limit: float
    used: float


@dataclass(frozen=True, slots=True)
class SatisfactionBand:
    """Marks of best-effort satisfaction: limit in percent of request, usage in percent of limit."""

    lower: int
    upper: int
    usage: int

    def while_under_way(self) -> "SatisfactionBand":
        """The band in force from the first victim until the lower mark is reached."""
        return SatisfactionBand(self.upper, self.upper, self.usage)


def used_percent(used: int, capacity: int) -> int:
    """Return usage in whole percent of the capacity, which is above zero."""
    return used * 100 // capacity


def used_release(used: int, capacity: int, band: Band) -> int:
    """Return the usage beyond the lower mark; 0 below the threshold."""
    percent = used_percent(used, capacity)
    if percent < band.threshold:
        return 0
    return max(capacity * (percent - band.lower) // 100, 0)


def requested_cpu_release(asked: int, allocatable: int, band: Band) -> int:
    """Return the CPU requests beyond the lower mark; all of them without an allocatable."""
    if not _exceeds(asked, allocatable, band):
        return 0
    if allocatable == 0:
        return asked
    return int(asked - band.lower / 100 * allocatable)


def requested_memory_release(asked: int, allocatable: int, band: Band) -> int:
    """As requested_cpu_release, for memory; the floats are multiplied in another order."""
    if not _exceeds(asked, allocatable, band):
        return 0
    if allocatable == 0:
        return asked
    return int((asked / allocatable - band.lower / 100) * allocatable)


def satisfaction_release(mean: Satisfaction, now: Satisfaction, band: SatisfactionBand) -> int:
    """Return the batch CPU requests to release; 0 unless both the mean and now are too low."""
    if not (_is_busy(mean, band.usage) and _is_busy(now, band.usage)):
        return 0
    by_mean = missing_requests(mean.request, mean.limit, band)
    if by_mean <= 0 or (now.request, now.limit) == (mean.request, mean.limit):
        return by_mean
    return max(min(by_mean, missing_requests(now.request, now.limit, band)), 0)


def missing_requests(request: float, limit: float, band: SatisfactionBand) -> int:
    """Return the requests beyond what the limit satisfies; 0 above the lower mark."""
    if request <= 0:
        return 0
    satisfaction = limit / request
    gap = band.upper / 100 - satisfaction
    if satisfaction > band.lower / 100 or gap <= 0:
        return 0
    return int(request * gap)


def allocatable_batch_cpu(found: int | None) -> int:
    """Return the limit in milli-cores that follows from allocatable batch CPU.

    -1: the node has no such limit. An allocatable of 0 counts as 1.
    """
    if found is None or found < 0:
        return -1
    return found or 1


def is_covered(counts: Mapping[str, int], interval: float, window: float) -> bool:
    """Whether each series has enough samples for a window in seconds."""
    return min(counts.values()) * interval >= int(window) // THIRD


def _exceeds(asked: int, allocatable: int, band: Band) -> bool:
    return asked > 0 and (allocatable == 0 or asked / allocatable > band.threshold / 100)


def _is_busy(cpu: Satisfaction, usage: int) -> bool:
    """Whether best-effort pods would use more CPU; below one core this is assumed."""
    if cpu.limit <= 0:
        return False
    return cpu.limit < 1000 or cpu.used / cpu.limit >= usage / 100
