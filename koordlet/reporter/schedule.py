"""When a report is due: the pace of a host or a fleet, and early after a sharp change of usage."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from koord.api.quantity import Quantity
from koord.util.clock import Clock
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import NODE_CPU_USAGE, NODE_MEMORY_USAGE, AnyKind
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.podmeta import ReportTarget

CLOSEST = 10.0  # seconds that two reports are apart at least, if the interval allows


class Pace(Protocol):
    """Decides when reports are due. All times are in seconds."""

    def first(self, interval: float) -> float:
        """Return the seconds from now to the first report."""

    def next(self, began: float, interval: float) -> float:
        """Return the time of the report after the one that began; both are monotonic."""


class OwnPace:
    """The first report at once, then one in every interval."""

    def first(self, _: float) -> float:
        return 0.0

    def next(self, began: float, interval: float) -> float:
        return began + interval


class FleetPace:
    """Reports at a wall-clock offset within the interval that follows from the node's name.

    So the nodes of a cluster spread evenly over the interval, also after a restart of all agents
    at once, after an outage of the API server, and after early reports.
    """

    def __init__(self, node: str, target: Callable[[], ReportTarget | None], clock: Clock) -> None:
        self._place = node_phase(node)
        self._target = target
        self._clock = clock

    def first(self, interval: float) -> float:
        """At once for an object without status; at the node's offset while its status is fresh.

        An outdated status is replaced within half an interval, not at once: after an outage of the
        API server all nodes have one.
        """
        target = self._target()
        if target is None or target.reported_at is None:
            return 0.0
        age = self._clock.wall() - target.reported_at
        if 0 <= age < interval:
            return self._until_phase(interval)
        return self._place * interval / 2

    def next(self, _: float, interval: float) -> float:
        wait = self._until_phase(interval)
        if wait < min(CLOSEST, interval / 2):
            wait += interval
        return self._clock.monotonic() + wait

    def _until_phase(self, interval: float) -> float:
        return (self._place * interval - self._clock.wall()) % interval


def node_phase(node: str) -> float:
    """Return a number from 0 to 1 for the node, spread evenly over all names."""
    return int.from_bytes(hashlib.sha256(node.encode()).digest()[:8]) / 2**64


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

    def record(self) -> None:
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
