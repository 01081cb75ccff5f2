"""Arguments of LoadAwareScheduling, and estimates of what a pod is going to use."""

from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple
from weakref import WeakKeyDictionary

from koord.api.annotations import (
    AFTER_INITIALIZED,
    AFTER_SCHEDULED,
    SCALING_FACTORS,
    AggregationType,
    estimation_seconds,
    scaling_factors,
)
from koord.api.qos import KoordPriorityClass, KubeQoS, priority_class_with_default, qos_with_default
from koord.plugin import KoordError
from koord.plugin.args import FieldError, FieldPath, Key, Seconds, invalid
from koord_scheduler.plugin import ClusterPod, PodSpec

_WEIGHTS = {"cpu": 1, "memory": 1}
_THRESHOLDS = {"cpu": 65, "memory": 95}
_FACTORS = {"cpu": 85, "memory": 70}


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregated:
    """Settings for percentiles of usage, used instead of its mean."""

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

    def validate(self) -> Iterator[FieldError]:
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


def _faults_of(aggregated: Aggregated) -> Iterator[FieldError]:
    path = ("aggregated", "usageThresholds")
    yield from _within(path, aggregated.usage_thresholds, 0, 100)
    for key, seconds in (
        ("usageAggregatedDuration", aggregated.usage_aggregated_duration),
        ("scoreAggregatedDuration", aggregated.score_aggregated_duration),
    ):
        if seconds < 0:
            yield invalid(("aggregated", key), seconds, "wanted a duration of 0 or more")


def _within(
    path: FieldPath, found: Mapping[str, int], least: int, most: int
) -> Iterator[FieldError]:
    for name, value in found.items():
        if not least <= value <= most:
            yield invalid((*path, Key(name)), value, f"wanted {least} to {most}")


Vector = tuple[int, ...]
"""Amounts of the resources that are looked at: milli-cores, bytes, or units of what it is."""

_MIN_ESTIMATES = {
    "cpu": 250,
    "memory": 200 << 20,
}  # what a pod without requests is estimated to use
_MAX_CLASSES = 64  # of pods with one spec that are remembered
_MAX_ESTIMATE = 2**50  # of one resource, whatever the factor
_KUBE_QOS = {one.value: one for one in KubeQoS}
_TRANSLATED = {
    KoordPriorityClass.BATCH: {
        "cpu": "kubernetes.io/batch-cpu",
        "memory": "kubernetes.io/batch-memory",
    },
    KoordPriorityClass.MID: {"cpu": "kubernetes.io/mid-cpu", "memory": "kubernetes.io/mid-memory"},
    KoordPriorityClass.FREE: {},
}


class Assigned(NamedTuple):
    """A pod on a node, as far as loads depend on it."""

    pod: ClusterPod
    key: str
    is_prod: bool
    estimate: Vector | None  # None: nothing is estimated
    created: float  # Unix seconds; -inf: not known
    since: float  # Unix seconds; +inf: it is not there for good yet
    deadline: float  # Unix seconds until which it is estimated anyway; -inf: none


class _EquivalenceClass(NamedTuple):
    """The values that are common to pods with equal facts."""

    is_prod: bool
    estimate: Vector | None
    after_initialized: int  # seconds in which it is estimated anyway; 0: not
    after_scheduled: int  # as above


class Estimator:
    """Estimates pods by the arguments of the plugin."""

    def __init__(self, args: LoadAwareSchedulingArgs) -> None:
        self.resources = args.resources
        self._args = args
        self._nothing = (0,) * len(self.resources)
        self._kinds: WeakKeyDictionary[PodSpec, dict[Hashable, _EquivalenceClass]] = (
            WeakKeyDictionary()
        )

    def incoming(self, pod: ClusterPod) -> tuple[Vector, bool]:
        """Return what a pod is going to use, and whether it is a prod pod."""
        kind = self._kind(pod)
        return kind.estimate or self._nothing, kind.is_prod

    def assigned(self, pod: ClusterPod) -> Assigned:
        """Return what there is to know of a pod on a node."""
        kind = self._kind(pod)
        since, initialized = _times(pod)
        deadline = -inf
        if initialized is not None and kind.after_initialized:
            deadline = initialized + kind.after_initialized
        elif kind.after_scheduled:
            deadline = since + kind.after_scheduled
        created = -inf if pod.created is None else pod.created
        return Assigned(pod, pod.key, kind.is_prod, kind.estimate, created, since, deadline)

    def _kind(self, pod: ClusterPod) -> _EquivalenceClass:
        kinds = self._kinds.get(pod.spec)
        if kinds is None or len(kinds) > _MAX_CLASSES:
            kinds = self._kinds[pod.spec] = {}
        annotations = pod.annotations if self._args.allow_customize_estimation else ()
        facts = pod.label_set, pod.priority, pod.qos, annotations
        found = kinds.get(facts)
        if found is None:
            found = kinds[facts] = self._new_kind(pod, dict(annotations))
        return found

    def _new_kind(self, pod: ClusterPod, annotations: Mapping[str, str]) -> _EquivalenceClass:
        args, found = self._args, class_of(pod)
        factors: Mapping[str, int] = args.estimated_scaling_factors
        if SCALING_FACTORS in annotations:
            with suppress(KoordError):  # as in Koordinator, a malformed one counts as absent
                factors = {**factors, **scaling_factors(annotations[SCALING_FACTORS])}
        initialized = estimation_seconds(annotations.get(AFTER_INITIALIZED, ""))
        if initialized is None:
            initialized = args.estimated_seconds_after_initialized
        scheduled = estimation_seconds(annotations.get(AFTER_SCHEDULED, ""))
        if scheduled is None:
            scheduled = args.estimated_seconds_after_pod_scheduled
        return _EquivalenceClass(
            found is KoordPriorityClass.PROD,
            self._estimate(pod.spec, found, factors),
            max(initialized or 0, 0),
            max(scheduled or 0, 0),
        )

    def _estimate(
        self, spec: PodSpec, found: KoordPriorityClass, factors: Mapping[str, int]
    ) -> Vector | None:
        requests, limits = dict(spec.requests), dict(spec.limits)
        names = _TRANSLATED.get(found)
        vector = tuple(
            _estimated(
                resource,
                resource if names is None else names.get(resource, ""),
                factors.get(resource),
                requests,
                limits,
            )
            for resource in self.resources
        )
        return vector if any(vector) else None


def class_of(pod: ClusterPod) -> KoordPriorityClass:
    """Koordinator's priority class of a pod, by default that of its QoS class."""
    kube_qos = _KUBE_QOS.get(pod.qos)
    if kube_qos is None:  # not known; the classes of pods with requests stand for the same
        asks = any(name in _MIN_ESTIMATES for name, _ in (*pod.spec.requests, *pod.spec.limits))
        kube_qos = KubeQoS.BURSTABLE if asks else KubeQoS.BEST_EFFORT
    qos = qos_with_default(pod.labels, kube_qos)
    return priority_class_with_default(pod.labels, pod.priority, qos)


def _estimated(
    resource: str,
    name: str,
    factor: int | None,
    requests: Mapping[str, int],
    limits: Mapping[str, int],
) -> int:
    """The estimate of one resource, which the pod requests under some name; "": it cannot."""
    if factor is None:
        return 0
    limit = limits.get(name, 0)
    amount = max(requests.get(name, 0), limit)
    if not amount:
        return _MIN_ESTIMATES.get(resource, 0)
    estimate = (2 * amount * factor + 100) // 200  # rounded, halves up
    return min(estimate, limit or _MAX_ESTIMATE, _MAX_ESTIMATE)


def _times(pod: ClusterPod) -> tuple[float, float | None]:
    """When the pod was scheduled, since which it counts, and initialized.

    One that is only assumed to be on its node, or of which nothing has come since its binding, has
    no condition yet: no report knows of it.
    """
    scheduled: float | None = None
    initialized: float | None = None
    for condition, at in zip(pod.conditions, pod.condition_times, strict=False):
        if condition.status == "True" and at is not None:
            if condition.type == "PodScheduled":
                scheduled = at
            elif condition.type == "Initialized":
                initialized = at
    if scheduled is None:
        scheduled = inf if pod.started is None else pod.started
    return scheduled, initialized
