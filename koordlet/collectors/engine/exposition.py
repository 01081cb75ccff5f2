"""Short ways to write Prometheus families from a collector's latest figures."""

from collections.abc import Iterable, Sequence

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, UnknownMetricFamily

LabelledValue = tuple[Sequence[str], float]
"""Label values, in the order of the family's labels, and the sample's value."""


def gauge(name: str, text: str, labels: Sequence[str], rows: Iterable[LabelledValue]) -> Metric:
    """A family of values that go up and down."""
    return _filled(GaugeMetricFamily(name, text, labels=labels), rows)


def counter(name: str, text: str, labels: Sequence[str], rows: Iterable[LabelledValue]) -> Metric:
    """A family of counters. name ends with _total, as all counters but Koordinator's do."""
    return _filled(CounterMetricFamily(name, text, labels=labels), rows)


def untyped(name: str, text: str, labels: Sequence[str], rows: Iterable[LabelledValue]) -> Metric:
    """A family whose name stays as it is: for counters that others named without _total."""
    return _filled(UnknownMetricFamily(name, text, labels=labels), rows)


class StatusCounter:
    """Koordinator's counter of rounds: named without _total, with the labels node and status."""

    def __init__(self, name: str, node: str) -> None:
        self._name = name
        self._node = node
        self._counts: dict[str, int] = {}

    def count(self, *, succeeded: bool) -> None:
        status = "succeeded" if succeeded else "failed"
        self._counts = {**self._counts, status: self._counts.get(status, 0) + 1}

    def family(self, text: str) -> Metric:
        rows = (((self._node, status), count) for status, count in self._counts.items())
        return untyped(self._name, text, ("node", "status"), rows)


def _filled(
    family: CounterMetricFamily | GaugeMetricFamily | UnknownMetricFamily,
    rows: Iterable[LabelledValue],
) -> Metric:
    for labels, value in rows:
        family.add_metric(labels, value)
    return family
