"""The arguments of LoadAwareScheduling.

Source: Koordinator, pkg/scheduler/apis/config/v1 LoadAwareSchedulingArgs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from koord.api.loadaware import AggregationType
from koord_scheduler.plugin import Fault, FieldPath, Key, Seconds, invalid

_WEIGHTS = {"cpu": 1, "memory": 1}
_THRESHOLDS = {"cpu": 65, "memory": 95}
_FACTORS = {"cpu": 85, "memory": 70}


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregated:
    """What to take from percentiles of usage instead of its mean."""

    usage_thresholds: Mapping[str, int] = field(default_factory=dict)  # percent
    usage_aggregation_type: AggregationType = AggregationType.NONE
    usage_aggregated_duration: Seconds = 0.0  # 0: the longest window that is reported
    score_aggregation_type: AggregationType = AggregationType.NONE
    score_aggregated_duration: Seconds = 0.0  # as usage_aggregated_duration


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadAwareSchedulingArgs:
    """Arguments; all percentages are of what a node has."""

    filter_expired_node_metrics: bool = True
    node_metric_expiration_seconds: int = 180
    enable_schedule_when_node_metrics_expired: bool = False
    resource_weights: Mapping[str, int] = field(default_factory=dict)
    dominant_resource_weight: int = 0  # of the resource that is scarcest on a node
    usage_thresholds: Mapping[str, int] = field(default_factory=dict)  # 0: not looked at
    prod_usage_thresholds: Mapping[str, int] = field(default_factory=dict)
    prod_usage_include_sys: bool = False
    score_according_prod_usage: bool = False
    estimator: str = ""  # there is one; as in Koordinator, any name stands for it
    estimated_scaling_factors: Mapping[str, int] = field(default_factory=dict)  # percent
    estimated_seconds_after_pod_scheduled: int | None = None
    estimated_seconds_after_initialized: int | None = None
    allow_customize_estimation: bool = False  # by annotations of pods
    aggregated: Aggregated | None = None
    supported_resources: tuple[str, ...] = ()  # beside those of the maps

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources that are looked at, by name."""
        aggregated = () if self.aggregated is None else self.aggregated.usage_thresholds
        return tuple(
            sorted(
                {
                    "cpu",
                    "memory",
                    *self.resource_weights,
                    *self.usage_thresholds,
                    *self.prod_usage_thresholds,
                    *self.estimated_scaling_factors,
                    *aggregated,
                    *self.supported_resources,
                }
            )
        )

    def complete(self) -> "LoadAwareSchedulingArgs":
        """With all defaults. Thresholds are not merged with theirs, scaling factors are."""
        weights = self.resource_weights
        if not weights and not self.dominant_resource_weight:
            weights = _WEIGHTS
        return replace(
            self,
            resource_weights=weights,
            usage_thresholds=self.usage_thresholds or _THRESHOLDS,
            estimated_scaling_factors={**_FACTORS, **self.estimated_scaling_factors},
        )

    def validate(self) -> Iterator[Fault]:
        """The faults, as Koordinator finds them; and of prodUsageThresholds, too."""
        seconds = self.node_metric_expiration_seconds
        if seconds <= 0:
            yield invalid(("nodeMetricExpirationSeconds",), seconds, "wanted more than 0")
        if not 0 <= self.dominant_resource_weight <= 100:
            found = self.dominant_resource_weight
            yield invalid(("dominantResourceWeight",), found, "wanted 0 to 100")
        yield from _within(("resourceWeights",), self.resource_weights, 1, 100)
        yield from _within(("usageThresholds",), self.usage_thresholds, 0, 100)
        yield from _within(("prodUsageThresholds",), self.prod_usage_thresholds, 0, 100)
        yield from _within(("estimatedScalingFactors",), self.estimated_scaling_factors, 1, 100)
        for name, weight in self.resource_weights.items():
            if name not in self.estimated_scaling_factors:
                wanted = "wanted a resource that estimatedScalingFactors has"
                yield invalid(("resourceWeights", Key(name)), weight, wanted)
        if self.aggregated is not None:
            yield from _faults_of(self.aggregated)


def _faults_of(aggregated: Aggregated) -> Iterator[Fault]:
    path = ("aggregated", "usageThresholds")
    yield from _within(path, aggregated.usage_thresholds, 0, 100)
    for key, seconds in (
        ("usageAggregatedDuration", aggregated.usage_aggregated_duration),
        ("scoreAggregatedDuration", aggregated.score_aggregated_duration),
    ):
        if seconds < 0:
            yield invalid(("aggregated", key), seconds, "wanted a duration of 0 or more")


def _within(path: FieldPath, found: Mapping[str, int], least: int, most: int) -> Iterator[Fault]:
    for name, value in found.items():
        if not least <= value <= most:
            yield invalid((*path, Key(name)), value, f"wanted {least} to {most}")
