"""Which pods may be evicted by which feature, and in which order.

Orders are total, so the same pods are always in the same order. Source: Koordinator,
pkg/koordlet/qosmanager/plugins.
"""

from collections.abc import Callable, Iterable
from typing import Any

from koord.api.evictability import allows, eviction_priority, is_enabled, label_priority
from koord.api.pod import Pod
from koord.api.qos import QoSClass

Amount = Callable[[Pod], float]
"""What counts of a pod beside its priority, for example the bytes it uses."""


def best_effort(pods: Iterable[Pod], feature: str) -> list[Pod]:
    """Return the pods that a feature for best-effort pods may evict: those with that very label."""
    return [
        pod
        for pod in pods
        if pod.raw_qos_class is QoSClass.BE and pod.active and allows(pod, feature)
    ]


def offered(pods: Iterable[Pod], feature: str, ceiling: int) -> list[Pod]:
    """Return the pods up to a priority whose label offers them, and whose policy allows it."""
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
