"""Settings of the eviction features, and the amounts that victims must release by them."""

from collections.abc import Mapping
from dataclasses import dataclass

from koord.api.eviction import EvictionOutcome
from koord.api.node import Node
from koord.api.pod import amount
from koord.api.qosstrategy import ResourceThreshold
from koord.plugin import KoordError

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
    """Return the memory requests beyond the lower mark; all of them without an allocatable.

    The floats are multiplied in another order than in requested_cpu_release.
    """
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


DEFAULT_GAP = 2  # percent between a threshold and its lower mark
DEFAULT_BE_USAGE = 90  # percent of their limit that best-effort pods use when they want more
MAX_LOWER_SATISFACTION = 60  # percent
MAX_CEILING = 7999  # the highest priority of koord-mid


class EvictionBlocked(KoordError):
    """A feature whose gate is on cannot evict now; reason: what it would evict for."""

    def __init__(
        self, feature: str, outcome: EvictionOutcome, message: str, *, reason: str = "gate is on"
    ) -> None:
        super().__init__(message)
        self.feature = feature
        self.outcome = outcome
        self.reason = reason


def capacity_of(feature: str, node: Node, resource: str) -> int:
    """Return the node's capacity of cpu (milli-cores) or memory (bytes).

    Raises:
        EvictionBlocked: the Node has no such capacity.
    """
    capacity = amount(resource, node.capacity.get(resource, "0"))
    if capacity <= 0:
        message = f"wanted capacity.{resource} of the Node, found none"
        raise EvictionBlocked(feature, EvictionOutcome.NO_DATA, message)
    return capacity


def used_band(feature: str, key: str, threshold: int | None, lower: int | None) -> Band:
    """Return the band of a feature that compares usage.

    Raises:
        EvictionBlocked: no threshold, or the lower mark is not below it.
    """
    if threshold is None:
        raise _unset(feature, f"{key}ThresholdPercent")
    return _band(feature, key, threshold, threshold - DEFAULT_GAP if lower is None else lower)


def requested_band(feature: str, key: str, threshold: int | None, lower: int | None) -> Band:
    """Return the band of a feature that compares requests; raises as used_band. No defaults."""
    if threshold is None:
        raise _unset(feature, f"{key}ThresholdPercent")
    if lower is None:
        raise _unset(feature, f"{key}LowerPercent")
    return _band(feature, key, threshold, lower)


def usage_ceiling(feature: str, slo: ResourceThreshold) -> int:
    """Return the highest priority of victims of the features that compare usage."""
    ceiling = slo.evict_enabled_priority_threshold
    if ceiling is None:
        raise _unset(feature, "evictEnabledPriorityThreshold")
    return ceiling


def request_ceiling(feature: str, slo: ResourceThreshold) -> int:
    """Return the highest priority of victims of the features that compare requests."""
    ceiling = slo.allocatable_evict_priority_threshold
    if ceiling is None:
        raise _unset(feature, "allocatableEvictPriorityThreshold")
    if ceiling > MAX_CEILING:
        wanted = f"at most {MAX_CEILING}, so that production pods stay"
        raise _wrong(feature, "allocatableEvictPriorityThreshold", wanted, ceiling)
    return ceiling


def satisfaction_band(feature: str, slo: ResourceThreshold) -> SatisfactionBand:
    """Return the band of the feature that compares the satisfaction of best-effort pods."""
    key = "cpuEvictBESatisfaction"
    lower = slo.cpu_evict_be_satisfaction_lower_percent
    upper = slo.cpu_evict_be_satisfaction_upper_percent
    if lower is None:
        raise _unset(feature, f"{key}LowerPercent")
    if upper is None:
        raise _unset(feature, f"{key}UpperPercent")
    if not 0 < lower <= MAX_LOWER_SATISFACTION:
        wanted = f"1 to {MAX_LOWER_SATISFACTION}"
        raise _wrong(feature, f"{key}LowerPercent", wanted, lower)
    if not lower <= upper < 100:
        raise _wrong(feature, f"{key}UpperPercent", f"{lower} to 99", upper)
    usage = slo.cpu_evict_be_usage_threshold_percent
    return SatisfactionBand(lower, upper, DEFAULT_BE_USAGE if usage is None else usage)


def _band(feature: str, key: str, threshold: int, lower: int) -> Band:
    if lower >= threshold:
        wanted = f"less than {key}ThresholdPercent, which is {threshold}"
        raise _wrong(feature, f"{key}LowerPercent", wanted, lower)
    return Band(threshold, lower)


def _unset(feature: str, field: str) -> EvictionBlocked:
    message = f"resourceUsedThresholdWithBE.{field} of the NodeSLO is not set"
    return EvictionBlocked(feature, EvictionOutcome.NOT_CONFIGURED, message)


def _wrong(feature: str, field: str, wanted: str, found: int) -> EvictionBlocked:
    message = f"resourceUsedThresholdWithBE.{field}: wanted {wanted}, found {found}"
    return EvictionBlocked(feature, EvictionOutcome.NOT_CONFIGURED, message)
