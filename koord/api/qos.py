"""QoS and priority classes of Koordinator and Kubernetes, and how one follows from the other."""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from koord.api.quantity import Quantity

QOS_LABEL = "koordinator.sh/qosClass"


class QoSClass(StrEnum):
    """Koordinator's QoS class of a pod; the values are what the label holds."""

    LSE = "LSE"  # exclusive cores, which not even best-effort pods may use
    LSR = "LSR"  # reserved cores; best-effort pods may use their idle time
    LS = "LS"  # latency sensitive, shared pool
    BE = "BE"  # best effort
    SYSTEM = "SYSTEM"  # system daemons that run as pods
    NONE = ""  # not specified


class KubeQoS(StrEnum):
    """Kubernetes' QoS class; the values are those of pod.status.qosClass."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


_DEFAULTS = {
    KubeQoS.GUARANTEED: QoSClass.LSR,
    KubeQoS.BURSTABLE: QoSClass.LS,
    KubeQoS.BEST_EFFORT: QoSClass.BE,
}
_BY_LABEL = {each.value: each for each in QoSClass}
_COMPUTE_RESOURCES = ("cpu", "memory")


def raw_qos(labels: Mapping[str, str]) -> QoSClass:
    """Return the class the label names exactly (case counts); NONE when it names none."""
    return _BY_LABEL.get(labels.get(QOS_LABEL, ""), QoSClass.NONE)


def qos_with_default(labels: Mapping[str, str], kube_qos: KubeQoS) -> QoSClass:
    """Return the labelled class, or the one that Kubernetes' class stands for. Never NONE."""
    return raw_qos(labels) or _DEFAULTS[kube_qos]


def compute_kube_qos(
    containers: Iterable[tuple[Mapping[str, str], Mapping[str, str]]],
) -> KubeQoS:
    """Return the class of a pod from the (requests, limits) of all its containers.

    Init containers count. Only positive cpu and memory quantities do; requests and limits are
    compared as sums over the pod.

    Source: Kubernetes, GetPodQOS.
    """
    requests: dict[str, int] = {}
    limits: dict[str, int] = {}
    every_container_is_limited = True
    for requested, limited in containers:
        _add_positive(requests, requested)
        if _add_positive(limits, limited) < len(_COMPUTE_RESOURCES):
            every_container_is_limited = False
    if not requests and not limits:
        return KubeQoS.BEST_EFFORT
    if every_container_is_limited and requests == limits:
        return KubeQoS.GUARANTEED
    return KubeQoS.BURSTABLE


def _add_positive(sums: dict[str, int], quantities: Mapping[str, str]) -> int:
    """Add the positive compute resources to the sums; return how many there were."""
    found = 0
    for name in _COMPUTE_RESOURCES:
        nano = Quantity.parse(quantities[name]).nano if name in quantities else 0
        if nano > 0:
            sums[name] = sums.get(name, 0) + nano
            found += 1
    return found


PRIORITY_CLASS_LABEL = "koordinator.sh/priority-class"


class KoordPriorityClass(StrEnum):
    """Koordinator's priority class of a pod, as it is written on the wire."""

    PROD = "koord-prod"
    MID = "koord-mid"
    BATCH = "koord-batch"
    FREE = "koord-free"
    NONE = ""


# class, lowest priority, highest priority, the priority it stands for when none is given
_BANDS = (
    (KoordPriorityClass.PROD, 9000, 9999, 9500),
    (KoordPriorityClass.MID, 7000, 7999, 7500),
    (KoordPriorityClass.BATCH, 5000, 5999, 5500),
    (KoordPriorityClass.FREE, 3000, 3999, 3500),
)
_DEFAULT_VALUES = {name: value for name, _, _, value in _BANDS} | {KoordPriorityClass.NONE: 0}


def raw_priority_class(labels: Mapping[str, str], priority: int | None) -> KoordPriorityClass:
    """Return the class of the label or, only when there is no such label, of the priority."""
    label = labels.get(PRIORITY_CLASS_LABEL)
    if label is not None:
        return _named(label)
    return _banded(priority)


def priority_class_with_default(
    labels: Mapping[str, str], priority: int | None, qos: QoSClass
) -> KoordPriorityClass:
    """Return the raw class, or what the QoS class (with default) stands for."""
    return raw_priority_class(labels, priority) or _of_qos(qos)


def may_bind_cpus(labels: Mapping[str, str], priority: int | None) -> bool:
    """Whether a pod may have CPUs of its own where its node does not give them to all."""
    qos = raw_qos(labels)
    if qos not in (QoSClass.LSE, QoSClass.LSR):
        return False
    return priority_class_with_default(labels, priority, qos) is KoordPriorityClass.PROD


def priority_with_default(labels: Mapping[str, str], priority: int | None, qos: QoSClass) -> int:
    """Return the pod's own priority unless it is absent or 0, else that of its class."""
    return priority or _DEFAULT_VALUES[priority_class_with_default(labels, priority, qos)]


def _named(label: str) -> KoordPriorityClass:
    try:
        return KoordPriorityClass(label)
    except ValueError:
        return KoordPriorityClass.NONE


def _banded(priority: int | None) -> KoordPriorityClass:
    if priority is not None:
        for name, low, high, _ in _BANDS:
            if low <= priority <= high:
                return name
    return KoordPriorityClass.NONE


def _of_qos(qos: QoSClass) -> KoordPriorityClass:
    if qos is QoSClass.NONE:
        return KoordPriorityClass.NONE
    return KoordPriorityClass.BATCH if qos is QoSClass.BE else KoordPriorityClass.PROD
