"""QoS classes: Koordinator's, Kubernetes' own, and how one follows from the other."""

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
