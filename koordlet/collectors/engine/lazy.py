"""Collectors whose code is loaded when their gate is switched on for the first time."""

from collections.abc import Callable, Iterable

from prometheus_client import Metric

from koordlet.collectors.engine.base import Collector, Tick
from koordlet.metriccache.kinds import Cadence
from koordlet.metriccache.sample import Sample


class LazyCollector:
    """Stands for a collector until it is needed, so that one that is off costs nothing."""

    def __init__(
        self, name: str, gate: str, cadence: Cadence, make: Callable[[], Collector]
    ) -> None:
        """make imports and makes the collector; its name, gate and cadence are these."""
        self.name = name
        self.gates: tuple[str, ...] = (gate,)
        self.cadence = cadence
        self._make = make
        self._made: Collector | None = None

    def collect(self, tick: Tick) -> Iterable[Sample]:
        if self._made is None:
            self._made = self._make()
        return self._made.collect(tick)

    def families(self) -> Iterable[Metric]:
        return () if self._made is None else self._made.families()
