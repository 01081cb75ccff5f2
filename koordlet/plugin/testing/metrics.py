"""Scripted metrics: a real metric cache in memory, given every held value once a second."""

from collections.abc import Iterable

from koord.util.clock import stamp
from koord.util.stop import Stop
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import AnyKind, Cadence, K, Kind, P
from koordlet.metriccache.retention import retentions
from koordlet.metriccache.sample import Sample
from koordlet.plugin.publisher import with_published
from koordlet.plugin.publishing import Published
from koordlet.plugin.testing.clock import SimulatedClock

INTERVAL = 1.0  # seconds between samples, of every kind


class ScriptedMetrics:
    """Samples in place of those that collectors measure."""

    def __init__(self, clock: SimulatedClock, published: Iterable[Published] = ()) -> None:
        """published: the kinds of the plugin under test."""
        self.cache = MetricCache(
            None,
            "simulated-boot",
            clock,
            intervals=dict.fromkeys(Cadence, INTERVAL),
            retentions=retentions(),
            kinds=with_published(published),
        )
        self._clock = clock
        self._held: dict[tuple[AnyKind, tuple[str, ...]], float] = {}

    def hold(self, kind: Kind[P, K], value: float, /, *key: P.args, **named: P.kwargs) -> None:
        """Measure this value from the next second on; key is one value per kind.properties.

        Raises:
            UnknownSeries: the kind has no such series.
        """
        self._held[kind, kind.made(*key, **named)] = value

    def drop(self, kind: Kind[P, K], /, *key: P.args, **named: P.kwargs) -> None:
        """Measure it no longer, as when a pod has ended. Raises as hold does."""
        self._held.pop((kind, kind.made(*key, **named)), None)

    async def run(self, stop: Stop) -> None:
        """Append a sample of everything that is held, every second."""
        async for _ in stop.every(INTERVAL):
            samples = [Sample(kind, value, key) for (kind, key), value in self._held.items()]
            self.cache.append(stamp(self._clock), samples)
