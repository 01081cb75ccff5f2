"""A gauge under one of Koordinator's names, whose labels may have any values."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from koord.util.errors import KoordError

if TYPE_CHECKING:
    from prometheus_client.metrics_core import GaugeMetricFamily

MAX_SERIES = 5000  # containers of a node at most


class UpstreamGauge:
    """What Koordinator's koordlet exports under this name, with its labels.

    No more than `most` series are kept: values of further ones are left out until others go. Set
    on the event loop, collected on any thread.
    """

    def __init__(self, name: str, help: str, labels: Sequence[str], most: int = MAX_SERIES) -> None:
        self._name = name
        self._help = help
        self._labels = tuple(labels)
        self._most = most
        self._values: dict[tuple[str, ...], float] = {}

    def set(self, value: float, **labels: str) -> None:
        """Set one series."""
        key = self._key(labels)
        if key in self._values or len(self._values) < self._most:
            self._values = {**self._values, key: value}

    def replace(self, values: Mapping[tuple[str, ...], float]) -> None:
        """Make these all series; keys are label values in the order of the labels."""
        self._values = dict(list(values.items())[: self._most])

    def clear(self) -> None:
        """Drop all series."""
        self._values = {}

    def collect(self) -> Iterator["GaugeMetricFamily"]:
        """As prometheus_client's Collector."""
        family = self._family()
        for key, value in self._values.items():
            family.add_metric(key, value)
        yield family

    def describe(self) -> Iterator["GaugeMetricFamily"]:
        """As prometheus_client's Collector: lets the registry refuse a name twice."""
        yield self._family()

    def _family(self) -> "GaugeMetricFamily":
        from prometheus_client.metrics_core import GaugeMetricFamily

        return GaugeMetricFamily(self._name, self._help, labels=self._labels)

    def _key(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        if labels.keys() != set(self._labels):
            raise KoordError(
                f"{self._name}: wanted the labels {list(self._labels)}, found {sorted(labels)}"
            )
        return tuple(labels[name] for name in self._labels)
