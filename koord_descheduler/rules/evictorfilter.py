"""Pods that may not be evicted, and why; the order of the others, the least important first."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from koord.api.labelselector import LabelSelector
from koord.api.qos import (
    KoordPriorityClass,
    KubeQoS,
    QoSClass,
    priority_class_with_default,
    qos_with_default,
)
from koord.cluster.facts import ClusterPod, LabelSet, PriorityClass
from koord.cluster.keptfields import KeptFields
from koord_descheduler.config import Namespaces, PodSelector, PriorityThreshold

EVICT = "descheduler.alpha.kubernetes.io/evict"  # an annotation, whatever its value
PREFER_NO_EVICTION = "descheduler.alpha.kubernetes.io/prefer-no-eviction"  # the same
SYSTEM_CRITICAL = 2_000_000_000  # the lowest priority of Kubernetes' own classes
_MIRROR, _SOURCE = "kubernetes.io/config.mirror", "kubernetes.io/config.source"
EVICTOR_FILTER_FIELDS = KeptFields(
    pod_annotations=dict.fromkeys((EVICT, PREFER_NO_EVICTION, _MIRROR, _SOURCE), 4096)
)
"""Fields of pods that the constraints here read, for plugins to declare."""

Constraint = Callable[[ClusterPod], str]
"""Returns why a pod may not be evicted, as the end of a sentence about it; "": it may."""


def annotation(pod: ClusterPod, key: str) -> str | None:
    """Return an annotation of a pod, if it is one of those that are kept; None: it has none."""
    return next((text for name, text in pod.annotations if name == key), None)


def asks_to_stay(pod: ClusterPod) -> str:
    asks = annotation(pod, PREFER_NO_EVICTION) is not None
    return f"its annotation {PREFER_NO_EVICTION} asks to let it stay" if asks else ""


def is_mirror(pod: ClusterPod) -> str:
    return "it is a mirror pod" if annotation(pod, _MIRROR) is not None else ""


def is_static(pod: ClusterPod) -> str:
    source = annotation(pod, _SOURCE)
    return "" if source in (None, "api") else "it is a static pod"


def is_deleting(pod: ClusterPod) -> str:
    return "it is being deleted" if pod.deleting else ""


def is_of_daemon_set(pod: ClusterPod) -> str:
    of_one = any(owner.kind == "DaemonSet" for owner in pod.owners)
    return "it belongs to a DaemonSet" if of_one else ""


def is_bare(pod: ClusterPod) -> str:
    return "" if pod.owners else "it has no owner"


def is_bare_and_not_failed(pod: ClusterPod) -> str:
    bare = not pod.owners and pod.phase != "Failed"
    return "it has no owner and has not failed" if bare else ""


def has_local_storage(pod: ClusterPod) -> str:
    return "it has local storage" if pod.local_storage else ""


def has_claim(pod: ClusterPod) -> str:
    return "it has a PersistentVolumeClaim" if pod.claims else ""


def is_system_critical(pod: ClusterPod) -> str:
    critical = pod.priority is not None and pod.priority >= SYSTEM_CRITICAL
    return f"its priority {pod.priority} is system critical" if critical else ""


def priority_of(
    threshold: PriorityThreshold | None, classes: Mapping[str, PriorityClass]
) -> int | None:
    """Return the priority that a threshold stands for; None: it has neither value nor name.

    Raises:
        KeyError: there is no priority class of that name.
    """
    if threshold is None or (threshold.value is None and not threshold.name):
        return None
    return classes[threshold.name].value if threshold.value is None else threshold.value


def reaches_priority(
    threshold: PriorityThreshold | None, classes: Mapping[str, PriorityClass]
) -> Constraint:
    """Forbid pods of a priority and above.

    classes are looked at with each pod; while the one of that name is not there, no pod may go.
    """

    def constraint(pod: ClusterPod) -> str:
        try:
            most = priority_of(threshold, classes)
        except KeyError as err:
            return f"the priority class {err.args[0]} of priorityThreshold is not known"
        if most is None or pod.priority is None or pod.priority < most:
            return ""
        return f"its priority {pod.priority} reaches the threshold {most}"

    return constraint


def lacks_labels(selector: LabelSelector | None) -> Constraint:
    """Forbid pods that a selector does not match; None matches all."""

    def constraint(pod: ClusterPod) -> str:
        matches = selector is None or selector.matches(pod.labels)
        return "" if matches else "its labels are not those of labelSelector"

    return constraint


class EvictorFilter:
    """Constraints that a pod can override by the annotation EVICT, and some that it cannot."""

    def __init__(self, always: Iterable[Constraint], by_default: Iterable[Constraint]) -> None:
        self._always = tuple(always)
        self._by_default = tuple(by_default)

    def reason(self, pod: ClusterPod) -> str:
        """Return the first reason that forbids the eviction of a pod; "": nothing does."""
        for constraint in self._always:
            if text := constraint(pod):
                return text
        if pod.annotations and annotation(pod, EVICT) is not None:
            return ""
        for constraint in self._by_default:
            if text := constraint(pod):
                return text
        return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvictorRules:
    """The pods that MigrationController protects, by its args and feature gates."""

    evict_failed_bare_pods: bool = False
    evict_all_bare_pods: bool = False
    evict_local_storage_pods: bool = False
    evict_system_critical_pods: bool = False  # of any priority, whatever the threshold
    ignore_pvc_pods: bool = False
    priority_threshold: PriorityThreshold | None = None
    label_selector: LabelSelector | None = None


def evictor_filter(rules: EvictorRules, classes: Mapping[str, PriorityClass]) -> EvictorFilter:
    """Return MigrationController's filter. classes: all priority classes by name, live."""
    constraints: list[Constraint] = []
    if not rules.evict_all_bare_pods:
        constraints.append(is_bare_and_not_failed if rules.evict_failed_bare_pods else is_bare)
    if not rules.evict_system_critical_pods:
        constraints += [is_system_critical, reaches_priority(rules.priority_threshold, classes)]
    if not rules.evict_local_storage_pods:
        constraints.append(has_local_storage)
    if rules.ignore_pvc_pods:
        constraints.append(has_claim)
    if rules.label_selector is not None:
        constraints.append(lacks_labels(rules.label_selector))
    return EvictorFilter((is_of_daemon_set, is_mirror, is_static, is_deleting), constraints)


def not_selected(namespaces: Namespaces | None, selectors: Sequence[PodSelector]) -> Constraint:
    """Forbid pods of other namespaces, and pods that none of the selectors matches.

    Without a selector all labels will do; an entry without one is ignored.
    """
    include = frozenset(namespaces.include if namespaces else ())
    exclude = frozenset(namespaces.exclude if namespaces else ())
    wanted = [one.selector for one in selectors if one.selector is not None]

    def constraint(pod: ClusterPod) -> str:
        if pod.namespace in exclude or (include and pod.namespace not in include):
            return f"its namespace {pod.namespace} is not among evictableNamespaces"
        if wanted and not any(selector.matches(pod.labels) for selector in wanted):
            return "no podSelector matches its labels"
        return ""

    return constraint


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
