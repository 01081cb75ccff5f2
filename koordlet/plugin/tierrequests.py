"""Requests of pods of lower tiers, summed up anew only when pods have changed."""

from collections.abc import Callable, Mapping

from koord.api.evictiontasks import requested_by_tier
from koord.api.priority import PriorityClass
from koordlet.statesinformer.model import PodMeta


class TierRequests:
    """Remembers the latest sums. The pods of the states informer are replaced as a whole."""

    def __init__(self, resource: Callable[[PriorityClass], str]) -> None:
        """resource names what a tier asks for."""
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
