"""The order in which pods are evicted: the least important and cheapest first.

Source: Koordinator, pkg/descheduler/utils/sorter.
"""

import re

from koord.api.qos import (
    KoordPriorityClass,
    KubeQoS,
    QoSClass,
    priority_class_with_default,
    qos_with_default,
)
from koord.cluster.facts import ClusterPod, LabelSet
from koord.cluster.keptfields import KeptFields

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
EVICTION_COST = "scheduling.koordinator.sh/eviction-cost"
POD_ORDER_FIELDS = KeptFields(pod_annotations={DELETION_COST: 256, EVICTION_COST: 256})
"""Fields of pods that eviction_order and PodOrder read, for plugins to declare."""

OrderKey = tuple[float, ...]
"""Key of a pod: the lower one of two is evicted first."""

_PRIORITY_RANK = {
    KoordPriorityClass.FREE: 1,
    KoordPriorityClass.BATCH: 2,
    KoordPriorityClass.MID: 3,
    KoordPriorityClass.PROD: 4,
    KoordPriorityClass.NONE: 5,
}
_KUBE_RANK = {KubeQoS.BEST_EFFORT: 1, KubeQoS.BURSTABLE: 2, KubeQoS.GUARANTEED: 3}
_KUBE_QOS = {each.value: each for each in KubeQoS}
_QOS_RANK = {
    QoSClass.BE: 1,
    QoSClass.LS: 2,
    QoSClass.LSR: 3,
    QoSClass.LSE: 4,
    QoSClass.SYSTEM: 4,
    QoSClass.NONE: 5,
}
_COST = re.compile(r"0|-[0-9]+|[1-9][0-9]*")  # a leading + or 0 is not valid
_INT32 = range(-(2**31), 2**31)
_COMPUTE = frozenset({"cpu", "memory"})


def kube_qos_of(pod: ClusterPod) -> KubeQoS:
    """Kubernetes' class of a pod: as its status has it, else by its requests.

    Without requests it is best effort: the API server sets requests where only limits are given.
    """
    found = _KUBE_QOS.get(pod.qos)
    if found is None:
        asks = any(name in _COMPUTE for name, _ in pod.spec.requests)
        return KubeQoS.BURSTABLE if asks else KubeQoS.BEST_EFFORT
    return found


def qos_of(pod: ClusterPod) -> QoSClass:
    """Koordinator's QoS class of a pod, by default that of Kubernetes' class; never NONE."""
    return qos_with_default(pod.labels, kube_qos_of(pod))


def priority_class_of(pod: ClusterPod) -> KoordPriorityClass:
    """Koordinator's priority class of a pod, by default that of its QoS class."""
    return priority_class_with_default(pod.labels, pod.priority, qos_of(pod))


def cost(pod: ClusterPod, annotation: str) -> int:
    """A cost that an annotation of a pod holds; 0 where there is none, or an invalid one.

    Source: Kubernetes, helper.GetDeletionCostFromPodAnnotations.
    """
    text = next((value for key, value in pod.annotations if key == annotation), "")
    if len(text) > len("-2147483648") or not _COST.fullmatch(text):
        return 0
    value = int(text)
    return value if value in _INT32 else 0


def eviction_order(pod: ClusterPod, usage_score: float = 0.0) -> OrderKey:
    """Return the key by which pods are sorted; equal pods have equal keys.

    By priority class, priority, Kubernetes' QoS class, Koordinator's, deletion cost, eviction
    cost, usage_score (the highest first), and age (the youngest first).
    """
    return PodOrder()(pod, usage_score)


class PodOrder:
    """eviction_order for many pods: what equal ones have in common is found once.

    For one round; it keeps what it has seen.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[LabelSet, int | None, object], tuple[bool, OrderKey]] = {}

    def __call__(self, pod: ClusterPod, usage_score: float = 0.0) -> OrderKey:
        """Return what eviction_order says."""
        _, classes = self._classes(pod)
        costs = _NO_COSTS
        if pod.annotations:
            costs = cost(pod, DELETION_COST), cost(pod, EVICTION_COST)
        return (*classes, *costs, -usage_score, -(pod.created or 0.0))

    def is_prod(self, pod: ClusterPod) -> bool:
        """Whether a pod is of Koordinator's priority class prod, with default."""
        return self._classes(pod)[0]

    def _classes(self, pod: ClusterPod) -> tuple[bool, OrderKey]:
        key = pod.label_set, pod.priority, pod.qos or pod.spec
        found = self._known.get(key)
        if found is None:
            priority_class = priority_class_of(pod)
            ranks = (
                _PRIORITY_RANK[priority_class],
                pod.priority or 0,
                _KUBE_RANK[kube_qos_of(pod)],
                _QOS_RANK[qos_of(pod)],
            )
            found = self._known[key] = priority_class is KoordPriorityClass.PROD, ranks
        return found


_NO_COSTS = 0, 0


def least_important(pod: ClusterPod) -> OrderKey:
    """Return Kubernetes' key: by priority, none being the lowest, then by Kubernetes' QoS class.

    Source: Kubernetes descheduler, SortPodsBasedOnPriorityLowToHigh.
    """
    priority = float("-inf") if pod.priority is None else pod.priority
    return priority, _KUBE_RANK[kube_qos_of(pod)]
