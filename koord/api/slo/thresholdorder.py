"""Thresholds of a NodeSLO that contradict each other, which the CRD does not see."""

from collections.abc import Mapping

from koord.util.errors import InvalidObject

_LOWER_AND_UPPER = (
    ("memoryEvictLowerPercent", "memoryEvictThresholdPercent"),
    ("memoryAllocatableEvictLowerPercent", "memoryAllocatableEvictThresholdPercent"),
    ("cpuEvictLowerPercent", "cpuEvictThresholdPercent"),
    ("cpuAllocatableEvictLowerPercent", "cpuAllocatableEvictThresholdPercent"),
    ("cpuEvictBESatisfactionLowerPercent", "cpuEvictBESatisfactionUpperPercent"),
)


def check_order(threshold: Mapping[str, object], where: str) -> None:
    """Compare the two marks of each band of a resourceUsedThresholdWithBE as JSON.

    Raises:
        InvalidObject: they are reversed. Where one of them is not set there is no band.
    """
    for lower_key, upper_key in _LOWER_AND_UPPER:
        lower, upper = threshold.get(lower_key), threshold.get(upper_key)
        if isinstance(lower, int) and isinstance(upper, int) and lower > upper:
            wanted = f"at most {upper_key}, which is {upper}"
            raise InvalidObject(f"{where}.{lower_key}", wanted=wanted, found=str(lower))
