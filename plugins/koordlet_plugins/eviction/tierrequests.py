"""Sums of the requests of pods of lower tiers, made anew only when pods have changed."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from koord.api.pods.pod import Pod
from koord.api.pods.requests import pod_request
from koord.api.priority import PriorityClass
from koordlet.plugin import PodMeta

TIERS = (PriorityClass.BATCH, PriorityClass.MID)
"""The priority classes whose requests are counted, and released, as resources of their own."""


class TierRequests:
    """Caches the latest sums: the states informer replaces the tuple of pods as a whole."""

    def __init__(self, resource: Callable[[PriorityClass], str]) -> None:
        """resource returns the resource that a tier requests."""
        self._resource = resource
        self._pods: tuple[PodMeta, ...] | None = None
        self._ceiling = 0
        self._sums: Mapping[str, int] = {}

    def sums(self, pods: tuple[PodMeta, ...], ceiling: int) -> Mapping[str, int]:
        """Return the sums over the pods up to a priority, as requested_by_tier."""
        if pods is not self._pods or ceiling != self._ceiling:
            found = (meta.pod for meta in pods)
            self._sums = requested_by_tier(found, ceiling, self._resource)
            self._pods, self._ceiling = pods, ceiling
        return self._sums


def requested_by_tier(
    pods: Iterable[Pod], ceiling: int, resource: Callable[[PriorityClass], str]
) -> Mapping[str, int]:
    """Return the sum of requests of the pods up to a priority, by the resource of their tier.

    Only pods that have not ended count, and only tiers whose pods can be evicted for it.
    """
    sums: Counter[str] = Counter()
    for pod in pods:
        tier = pod.priority_class
        if tier in TIERS and pod.active and pod.effective_priority <= ceiling:
            sums[resource(tier)] += pod_request(pod, resource(tier))
    return sums
