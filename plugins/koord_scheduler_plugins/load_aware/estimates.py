"""How much a pod is going to use, by what it requests.

Source: Koordinator, pkg/scheduler/plugins/loadaware/estimator/default_estimator.go.
"""

from collections.abc import Hashable, Mapping
from contextlib import suppress
from math import inf
from typing import NamedTuple
from weakref import WeakKeyDictionary

from koord.api.loadaware import (
    AFTER_INITIALIZED,
    AFTER_SCHEDULED,
    SCALING_FACTORS,
    estimation_seconds,
    scaling_factors,
)
from koord.api.priority import PriorityClass, priority_class_with_default
from koord.api.qos import KubeQoS, qos_with_default
from koord_scheduler.plugin import ClusterPod, KoordError, PodSpec
from koord_scheduler_plugins.load_aware.args import LoadAwareSchedulingArgs

Vector = tuple[int, ...]
"""Amounts of the resources that are looked at: milli-cores, bytes, or units of what it is."""

_LEAST = {"cpu": 250, "memory": 200 << 20}  # what a pod without requests is estimated to use
_MOST_KINDS = 64  # of pods with one spec that are remembered
_MOST = 2**50  # of one resource, whatever the factor
_KUBE_QOS = {one.value: one for one in KubeQoS}
_TRANSLATED = {
    PriorityClass.BATCH: {
        "cpu": "kubernetes.io/batch-cpu",
        "memory": "kubernetes.io/batch-memory",
    },
    PriorityClass.MID: {"cpu": "kubernetes.io/mid-cpu", "memory": "kubernetes.io/mid-memory"},
    PriorityClass.FREE: {},
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


class _Kind(NamedTuple):
    """What pods with equal facts have in common."""

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
        self._kinds: WeakKeyDictionary[PodSpec, dict[Hashable, _Kind]] = WeakKeyDictionary()

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

    def _kind(self, pod: ClusterPod) -> _Kind:
        kinds = self._kinds.get(pod.spec)
        if kinds is None or len(kinds) > _MOST_KINDS:
            kinds = self._kinds[pod.spec] = {}
        annotations = pod.annotations if self._args.allow_customize_estimation else ()
        facts = pod.label_set, pod.priority, pod.qos, annotations
        found = kinds.get(facts)
        if found is None:
            found = kinds[facts] = self._new_kind(pod, dict(annotations))
        return found

    def _new_kind(self, pod: ClusterPod, annotations: Mapping[str, str]) -> _Kind:
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
        return _Kind(
            found is PriorityClass.PROD,
            self._estimate(pod.spec, found, factors),
            max(initialized or 0, 0),
            max(scheduled or 0, 0),
        )

    def _estimate(
        self, spec: PodSpec, found: PriorityClass, factors: Mapping[str, int]
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


def class_of(pod: ClusterPod) -> PriorityClass:
    """Koordinator's priority class of a pod, by default that of its QoS class."""
    kube_qos = _KUBE_QOS.get(pod.qos)
    if kube_qos is None:  # not known; the classes of pods with requests stand for the same
        asks = any(name in _LEAST for name, _ in (*pod.spec.requests, *pod.spec.limits))
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
        return _LEAST.get(resource, 0)
    estimate = (2 * amount * factor + 100) // 200  # rounded, halves up
    return min(estimate, limit or _MOST, _MOST)


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
