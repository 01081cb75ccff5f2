"""Settings of the eviction features in the NodeSLO: checks and defaults.

A key is the part of a field's name that its threshold and its lower mark have in common, for
example "cpuEvict". Source: Koordinator, pkg/koordlet/qosmanager/plugins.
"""

from koord.api.eviction import EvictionOutcome
from koord.api.nodes.node import Node
from koord.api.pods.requests import amount
from koord.api.slo.strategies import ResourceThreshold
from koordlet.plugin import KoordError
from koordlet_plugins.eviction.releases import Band, SatisfactionBand

DEFAULT_GAP = 2  # percent between a threshold and its lower mark
DEFAULT_BE_USAGE = 90  # percent of their limit that best-effort pods use when they want more
HIGHEST_LOWER_SATISFACTION = 60  # percent
HIGHEST_CEILING = 7999  # the highest priority of koord-mid


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
    if ceiling > HIGHEST_CEILING:
        wanted = f"at most {HIGHEST_CEILING}, so that production pods stay"
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
    if not 0 < lower <= HIGHEST_LOWER_SATISFACTION:
        wanted = f"1 to {HIGHEST_LOWER_SATISFACTION}"
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
