"""The times at which reports are due: on a single host, and on one of thousands of nodes."""

import hashlib
from collections.abc import Callable
from typing import Protocol

from koord.util.clock import Clock
from koordlet.statesinformer.model import ReportTarget

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
        self._place = place(node)
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
            return self._until_place(interval)
        return self._place * interval / 2

    def next(self, _: float, interval: float) -> float:
        wait = self._until_place(interval)
        if wait < min(CLOSEST, interval / 2):
            wait += interval
        return self._clock.monotonic() + wait

    def _until_place(self, interval: float) -> float:
        return (self._place * interval - self._clock.wall()) % interval


def place(node: str) -> float:
    """Return a number from 0 to 1 for the node, spread evenly over all names."""
    return int.from_bytes(hashlib.sha256(node.encode()).digest()[:8]) / 2**64
