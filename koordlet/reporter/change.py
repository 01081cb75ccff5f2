"""Detects a change of the node's usage that is sharp enough for an early report."""

from dataclasses import dataclass

from koord.api.quantity import Quantity
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import NODE_CPU_USAGE, NODE_MEMORY_USAGE, AnyKind
from koordlet.statesinformer.informer import StatesInformer

WINDOW = 10.0  # seconds whose mean is compared: a spike of one second is no news


@dataclass(frozen=True, slots=True)
class _Watched:
    resource: str  # as in the node's capacity
    usage: AnyKind


_WATCHED = (_Watched("cpu", NODE_CPU_USAGE), _Watched("memory", NODE_MEMORY_USAGE))


class UsageChange:
    """Compares the usage of the last seconds with what it was when the latest report was made.

    threshold is a share of the node's capacity, of CPU or memory. An unknown capacity or usage
    counts as unchanged.
    """

    def __init__(self, cache: MetricCache, states: StatesInformer, threshold: float) -> None:
        self._cache = cache
        self._states = states
        self._threshold = threshold
        self._reported: dict[str, float] = {}

    def note(self) -> None:
        """Record the usage of now as reported."""
        self._reported = self._shares()

    def is_sharp(self) -> bool:
        """Whether usage has moved by more than the threshold since the latest report."""
        return any(
            resource in self._reported and abs(share - self._reported[resource]) > self._threshold
            for resource, share in self._shares().items()
        )

    def _shares(self) -> dict[str, float]:
        """Usage by resource as a share of capacity."""
        node = self._states.node()
        capacities = {} if node is None else node.capacity
        found = {}
        for watched in _WATCHED:
            capacity = Quantity.parse(capacities.get(watched.resource, "0")).milli / 1000
            usage = self._cache.aggregate(watched.usage, (), WINDOW)
            if usage is not None and capacity > 0:
                found[watched.resource] = usage.avg() / capacity
        return found
