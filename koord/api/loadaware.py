"""Annotations of nodes and pods that load-aware scheduling heeds.

Source: Koordinator, apis/extension/load_aware.go.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from koord.api.decoding.annotation import annotation_fields
from koord.api.decoding.fields import Fields
from koord.api.decoding.jsonrules import parse_json
from koord.util import goduration
from koord.util.errors import InvalidObject

USAGE_THRESHOLDS = "scheduling.koordinator.sh/usage-thresholds"  # of a node
SCALING_FACTORS = "scheduling.koordinator.sh/load-estimated-scaling-factors"  # of a pod, as below
AFTER_SCHEDULED = "scheduling.koordinator.sh/load-estimated-seconds-after-pod-scheduled"
AFTER_INITIALIZED = "scheduling.koordinator.sh/load-estimated-seconds-after-initialized"
_MOST_PERCENT = 10_000
_MOST_SECONDS = 10**9


class AggregationType(StrEnum):
    """Ways to make one figure of a window of usage."""

    NONE = ""
    AVG = "avg"
    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"


_TYPES = {one.value: one for one in AggregationType}


@dataclass(frozen=True, slots=True)
class UsageThresholds:
    """Percentages of a node by resource, beyond which no pod is to come; empty: not given."""

    usage: Mapping[str, int] = field(default_factory=dict)
    prod: Mapping[str, int] = field(default_factory=dict)  # of what prod pods use
    aggregated: Mapping[str, int] = field(default_factory=dict)
    aggregation: AggregationType = AggregationType.NONE  # of aggregated
    duration: float = 0.0  # seconds; window of aggregated; 0: the longest that is reported


def usage_thresholds(text: str) -> UsageThresholds:
    """Return what a node's annotation says.

    A part with a threshold below 0 counts as not given: it would keep all pods away for ever.

    Raises:
        InvalidObject: it is malformed.
    """
    found = annotation_fields(text, USAGE_THRESHOLDS)
    aggregated = found.nested("aggregatedUsage")
    return UsageThresholds(
        _percentages(found, "usageThresholds"),
        _percentages(found, "prodUsageThresholds"),
        _percentages(aggregated, "usageThresholds"),
        _aggregation(aggregated),
        _duration(aggregated),
    )


def scaling_factors(text: str) -> dict[str, int]:
    """Return the percentages of a pod's requests that it is estimated to use, by resource.

    Raises:
        InvalidObject: it is malformed, or one is not 1 to 10000.
    """
    found = Fields({"factors": parse_json(text, SCALING_FACTORS)}, SCALING_FACTORS)
    factors = found.integers("factors")
    for name, factor in factors.items():
        if not 1 <= factor <= _MOST_PERCENT:
            where, wanted = f"{SCALING_FACTORS}: {name}", f"1 to {_MOST_PERCENT}"
            raise InvalidObject(where, wanted=wanted, found=factor)
    return factors


def estimation_seconds(text: str) -> int | None:
    """Return how long a pod is estimated; None: as in Koordinator, anything else means nothing."""
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(_MOST_SECONDS))):
        return None
    return min(int(digits), _MOST_SECONDS)


def _percentages(found: Fields, key: str) -> dict[str, int]:
    percentages = found.integers(key)
    return {} if any(one < 0 for one in percentages.values()) else percentages


def _aggregation(found: Fields) -> AggregationType:
    return _TYPES.get(found.text("usageAggregationType"), AggregationType.NONE)


def _duration(found: Fields) -> float:
    text = found.text("usageAggregatedDuration")
    try:
        return max(goduration.parse(text), 0.0) if text else 0.0
    except ValueError as err:
        where = found.path("usageAggregatedDuration")
        raise InvalidObject(where, wanted="a duration like 5m0s", found=text) from err
