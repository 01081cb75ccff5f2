"""Prometheus metrics: isolating registry, rules of families, cheap histogram, plugins' metrics."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol, TypeVar, cast

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


@dataclass(frozen=True, kw_only=True, slots=True)
class FamilyRules:
    """Names, places and forms of one daemon's metric families.

    Families that its sources make on demand are for users, except those named in internal.
    unsuffixed_counters are counters whose name has no `_total`. Text 0.0.4 calls them counters all
    the same; OpenMetrics, which does not know such counters, calls them unknown.
    """

    prefix: str  # of the names of the daemon's own families, without the underscore
    internal: frozenset[str] = frozenset()
    unsuffixed_counters: frozenset[str] = frozenset()


Failed = Callable[[str, Exception], None]
"""Takes the name of a source or family that could not be exported, and why."""


class FamilySource(Protocol):
    """A part that makes metric families on demand, such as a collector. Asked on any thread."""

    name: str

    def families(self) -> Iterable[Metric]:
        """Prometheus families of the latest state; may be empty."""


class IsolatingRegistry(CollectorRegistry):
    """A registry that goes without a collector that fails, instead of failing as a whole."""

    def __init__(self, failed: Failed) -> None:
        super().__init__()
        self._failed = failed
        self._collectors: dict[Collector, None] = {}  # in order of registration

    def register(self, collector: Collector) -> None:
        super().register(collector)
        self._collectors[collector] = None

    def unregister(self, collector: Collector) -> None:
        super().unregister(collector)
        self._collectors.pop(collector, None)

    def collect(self) -> Iterator[Metric]:
        """Families of the collectors that work; all or nothing of each."""
        for collector in list(self._collectors):
            try:
                families = list(collector.collect())
            except Exception as err:
                self._failed(type(collector).__name__, err)
            else:
                yield from families


class PlainHistogram:
    """Observations by labels; a prometheus_client Collector. Other threads may collect."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str] = (),
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        """buckets: their upper bounds, ascending, without the last one, which has none."""
        self._family = name, documentation, tuple(labels)
        self._bounds = tuple(buckets)
        self._series: dict[tuple[str, ...], _Series] = {}
        registry.register(self)

    def labels(self, *values: str) -> Callable[[float], None]:
        """Return the observe function for these label values. Frequent callers should keep it."""
        found = self._series.get(values)
        if found is None:
            found = self._series[values] = _Series(self._bounds)
        return found.observe

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the family with all series, for prometheus_client."""
        (family,) = self.describe()
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        for values, series in tuple(self._series.items()):
            counts = accumulate(tuple(series.counts))
            family.add_metric(values, tuple(zip(bounds, counts, strict=True)), series.total)
        yield family

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """Yield the family without series, for prometheus_client."""
        name, documentation, labels = self._family
        yield HistogramMetricFamily(name, documentation, labels=labels)


class _Series:
    """Observations under the same values of the labels."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # of each bucket alone
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


M = TypeVar("M")


class OwnMetrics:
    """Metrics of a framework, to which plugins add theirs."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.exposition = registry
        """Where plugins add their own metrics; two of one name are a ValueError."""
        self._own: dict[object, Any] = {}

    def own(self, make: Callable[[CollectorRegistry], M]) -> M:
        """Return a plugin's metrics, which make adds to the registry, the first time.

        make is a class or function of the plugin's: its metrics exist once in a process, however
        many profiles name the plugin.
        """
        if make not in self._own:
            self._own[make] = make(self.exposition)
        return cast(M, self._own[make])
