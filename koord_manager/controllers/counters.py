"""Counters that Koordinator named without `_total`."""

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import UnknownMetricFamily


class UnsuffixedCounter:
    """A counter by labels, exported under exactly its name; see koord.component.metrics."""

    def __init__(
        self, name: str, help_: str, labels: Sequence[str], registry: CollectorRegistry
    ) -> None:
        self._name, self._help, self._labels = name, help_, tuple(labels)
        self._counts: dict[tuple[str, ...], int] = {}
        registry.register(self)

    def inc(self, *labels: str) -> None:
        """Count one."""
        self._counts[labels] = self._counts.get(labels, 0) + 1

    def collect(self) -> Iterator[UnknownMetricFamily]:
        """Yield the family with all counts, for prometheus_client."""
        family = self._family()
        for labels, count in tuple(self._counts.items()):
            family.add_metric(labels, count)
        yield family

    def describe(self) -> Iterator[UnknownMetricFamily]:
        """Yield the family without counts, so that the registry rejects a duplicate name."""
        yield self._family()

    def _family(self) -> UnknownMetricFamily:
        return UnknownMetricFamily(self._name, self._help, labels=self._labels)
