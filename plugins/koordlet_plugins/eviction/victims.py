"""The candidates of each eviction feature, and their order.

Orders are total, so the same pods are always in the same order. Source: Koordinator,
apis/extension, pkg/koordlet/qosmanager/helpers and plugins.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

from koord.api.gojson import parse_json
from koord.api.pod import Pod
from koord.api.qos import QoSClass
from koord.plugin import InvalidObject

EVICTION_ENABLED = "koordinator.sh/eviction-enabled"  # label
EVICTION_POLICY = "koordinator.sh/eviction-policy"  # annotation: list of features as JSON
EVICTION_PRIORITY = "koordinator.sh/eviction-priority"  # annotation: whole number of 32 bits
PRIORITY = "koordinator.sh/priority"  # label: whole number, the order within a priority class

_DECIMAL = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_INT32, _INT64 = 2**31, 2**63

Amount = Callable[[Pod], float]
"""The size of a pod in its order, for example the bytes that it uses."""


def best_effort(pods: Iterable[Pod], feature: str) -> list[Pod]:
    """Return the pods that a feature for best-effort pods may evict: those with that very label."""
    return [
        pod
        for pod in pods
        if pod.raw_qos_class is QoSClass.BE and pod.active and allows(pod, feature)
    ]


def offered(pods: Iterable[Pod], feature: str, ceiling: int) -> list[Pod]:
    """Return the pods up to a priority with the eviction label whose policy allows the feature."""
    return [
        pod
        for pod in pods
        if pod.active
        and is_enabled(pod)
        and pod.effective_priority <= ceiling
        and allows(pod, feature)
    ]


def by_priority(pods: Iterable[Pod], size: Amount) -> list[Pod]:
    """Return the pods, first victim first: as their owners rank them, the larger one before.

    The ranks are the eviction priority, the priority and the priority label; lower goes first.
    """

    def rank(pod: Pod) -> tuple[Any, ...]:
        priorities = eviction_priority(pod), pod.effective_priority, label_priority(pod)
        return (*priorities, -size(pod), pod.namespace, pod.name)

    return sorted(pods, key=rank)


def by_share(pods: Iterable[Pod], share: Amount) -> list[Pod]:
    """Return the pods, first victim first: lower priority, then the larger share.

    A pod without a priority has that of its class. Of equals the last name goes first.
    """
    named = sorted(pods, key=lambda pod: (pod.name, pod.namespace), reverse=True)
    return sorted(named, key=lambda pod: (pod.effective_priority, -share(pod)))


def allows(pod: Pod, feature: str) -> bool:
    """Whether the pod's policy lets this feature evict it; without a policy every one may.

    A policy that is no list of names, or an empty one, allows nothing. A null in it is no name, as
    Go reads it.
    """
    text = pod.annotations.get(EVICTION_POLICY)
    if text is None:
        return True
    try:
        features = parse_json(text, EVICTION_POLICY)
    except InvalidObject:
        return False
    return isinstance(features, list) and all(map(_is_name, features)) and feature in features


def is_enabled(pod: Pod) -> bool:
    """Whether the pod's label offers it for eviction."""
    return pod.labels.get(EVICTION_ENABLED) == "true"


def eviction_priority(pod: Pod) -> int:
    """Return the rank that the annotation gives: lower is evicted first. 0 without a valid one."""
    found = _whole_number(pod.annotations.get(EVICTION_PRIORITY, ""), _INT32)
    return 0 if found is None else found


def label_priority(pod: Pod) -> int:
    """Return the number of the priority label, or else the pod's priority."""
    found = _whole_number(pod.labels.get(PRIORITY, ""), _INT64)
    return pod.effective_priority if found is None else found


def _is_name(value: object) -> bool:
    return value is None or isinstance(value, str)


def _whole_number(text: str, bound: int) -> int | None:
    if not _DECIMAL.fullmatch(text):
        return None
    number = int(text)
    return number if -bound <= number < bound else None
