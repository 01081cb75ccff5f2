"""Priority classes: the bands of pod.spec.priority and the label that overrules them."""

from collections.abc import Mapping
from enum import StrEnum

from koord.api.qos import QoSClass

PRIORITY_CLASS_LABEL = "koordinator.sh/priority-class"


class PriorityClass(StrEnum):
    """Koordinator's priority class of a pod, as it is written on the wire."""

    PROD = "koord-prod"
    MID = "koord-mid"
    BATCH = "koord-batch"
    FREE = "koord-free"
    NONE = ""


# class, lowest priority, highest priority, the priority it stands for when none is given
_BANDS = (
    (PriorityClass.PROD, 9000, 9999, 9500),
    (PriorityClass.MID, 7000, 7999, 7500),
    (PriorityClass.BATCH, 5000, 5999, 5500),
    (PriorityClass.FREE, 3000, 3999, 3500),
)
_DEFAULT_VALUES = {name: value for name, _, _, value in _BANDS} | {PriorityClass.NONE: 0}


def raw_priority_class(labels: Mapping[str, str], priority: int | None) -> PriorityClass:
    """Return the class of the label or, only when there is no such label, of the priority."""
    label = labels.get(PRIORITY_CLASS_LABEL)
    if label is not None:
        return _named(label)
    return _banded(priority)


def priority_class_with_default(
    labels: Mapping[str, str], priority: int | None, qos: QoSClass
) -> PriorityClass:
    """Return the raw class, or what the QoS class (with default) stands for."""
    return raw_priority_class(labels, priority) or _of_qos(qos)


def priority_with_default(labels: Mapping[str, str], priority: int | None, qos: QoSClass) -> int:
    """Return the pod's own priority unless it is absent or 0, else that of its class."""
    return priority or _DEFAULT_VALUES[priority_class_with_default(labels, priority, qos)]


def _named(label: str) -> PriorityClass:
    try:
        return PriorityClass(label)
    except ValueError:
        return PriorityClass.NONE


def _banded(priority: int | None) -> PriorityClass:
    if priority is not None:
        for name, low, high, _ in _BANDS:
            if low <= priority <= high:
                return name
    return PriorityClass.NONE


def _of_qos(qos: QoSClass) -> PriorityClass:
    if qos is QoSClass.NONE:
        return PriorityClass.NONE
    return PriorityClass.BATCH if qos is QoSClass.BE else PriorityClass.PROD
