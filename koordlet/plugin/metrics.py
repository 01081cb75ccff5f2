"""A plugin's own Prometheus metrics, with a bounded number of series."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from koord.component.plugins.registry import PluginError
from koord.util.errors import KoordError
from koord.util.text import snake_case

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.metrics_core import GaugeMetricFamily

__all__ = [
    "PluginMetrics",
    "UpstreamGauge",
]


MAX_UPSTREAM_SERIES = 5000  # containers of a node at most


class UpstreamGauge:
    """A gauge with the name and labels of Koordinator's koordlet.

    It has at most `most` series: values of further series are left out until others go. Set on the
    event loop, collected on any thread.
    """

    def __init__(
        self, name: str, help: str, labels: Sequence[str], most: int = MAX_UPSTREAM_SERIES
    ) -> None:
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
        """Return the metric with all its series, as prometheus_client requires."""
        family = self._family()
        for key, value in self._values.items():
            family.add_metric(key, value)
        yield family

    def describe(self) -> Iterator["GaugeMetricFamily"]:
        """Return the metric without series, so that the registry rejects a name used twice."""
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


MAX_SERIES = 500  # of one metric: /metrics is rendered and stored whole, on every node
OTHER = "other"
_SHARED: "WeakKeyDictionary[CollectorRegistry, dict[str, Histogram]]" = WeakKeyDictionary()
Labels = Mapping[str, Sequence[str]]
"""Label names with all values each may take."""


class PluginMetrics:
    """Makes metrics named koordlet_plugin_<plugin>_<name> in the daemon's registry.

    A label declares the values it may take; any other value counts as "other", so what a pod or
    a kernel calls itself can never add series without end.
    """

    def __init__(self, plugin: str, registry: "CollectorRegistry") -> None:
        self._plugin = plugin
        self._prefix = f"koordlet_plugin_{snake_case(plugin)}_"
        self._registry = registry

    def counter(self, name: str, help: str, labels: Labels | None = None) -> "BoundedCounter":
        """A value that only grows; name it <what>_total."""
        from prometheus_client import Counter

        names, allowed = self._check(name, labels)
        return BoundedCounter(
            Counter(names, help, tuple(allowed), registry=self._registry), allowed
        )

    def gauge(self, name: str, help: str, labels: Labels | None = None) -> "BoundedGauge":
        """A value that goes up and down; name it <what>_<base unit>."""
        from prometheus_client import Gauge

        names, allowed = self._check(name, labels)
        return BoundedGauge(Gauge(names, help, tuple(allowed), registry=self._registry), allowed)

    def histogram(
        self, name: str, help: str, buckets: Sequence[float], labels: Labels | None = None
    ) -> "BoundedHistogram":
        """A distribution; name it <what>_<base unit>. Each bucket is a series per label set."""
        from prometheus_client import Histogram

        names, allowed = self._check(name, labels, series=len(buckets) + 3)
        metric = Histogram(names, help, tuple(allowed), registry=self._registry, buckets=buckets)
        return BoundedHistogram(metric, allowed)

    def upstream_gauge(
        self, name: str, help: str, labels: Sequence[str], most: int = MAX_UPSTREAM_SERIES
    ) -> UpstreamGauge:
        """A gauge with a name that Koordinator's koordlet has, exported as it is.

        most: how many series it may have; see UpstreamGauge.
        """
        if not re.fullmatch(r"koordlet_[a-z0-9_]+", name) or name.startswith("koordlet_plugin_"):
            raise PluginError(
                f"plugin {self._plugin}: wanted a metric name of Koordinator's, found {name!r}; "
                "use gauge() for others"
            )
        gauge = UpstreamGauge(name, help, labels, most)
        self._registry.register(gauge)
        return gauge

    def shared_histogram(
        self, name: str, help: str, buckets: Sequence[float], labels: Sequence[str]
    ) -> "Histogram":
        """A distribution with a name of Koordinator's, one for all plugins that ask for it.

        For tools of this package, which see to it that labels have few values.
        """
        from prometheus_client import Histogram

        shared = _SHARED.setdefault(self._registry, {})
        if name not in shared:
            shared[name] = Histogram(name, help, labels, registry=self._registry, buckets=buckets)
        return shared[name]

    def _check(
        self, name: str, labels: Labels | None, series: int = 1
    ) -> tuple[str, dict[str, frozenset[str]]]:
        allowed = {label: frozenset(values) for label, values in (labels or {}).items()}
        for values in allowed.values():
            series *= len(values | {OTHER})
        if series > MAX_SERIES:
            raise PluginError(
                f"plugin {self._plugin}: wanted at most {MAX_SERIES} series in metric {name}, "
                f"found {series}; drop a label or some of its values"
            )
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise PluginError(
                f"plugin {self._plugin}: wanted a metric name in lower_snake_case, found {name!r}"
            )
        return self._prefix + name.removeprefix(self._prefix), allowed


class _Bounded:
    def __init__(self, allowed: Mapping[str, frozenset[str]]) -> None:
        self._allowed = allowed

    def _bound(self, labels: Mapping[str, str]) -> dict[str, str]:
        if labels.keys() != self._allowed.keys():
            raise PluginError(
                f"wanted the labels {sorted(self._allowed)} of this metric, found {sorted(labels)}"
            )
        return {
            name: value if value in self._allowed[name] else OTHER for name, value in labels.items()
        }


class BoundedCounter(_Bounded):
    """A counter with the declared label values."""

    def __init__(self, metric: "Counter", allowed: Mapping[str, frozenset[str]]) -> None:
        super().__init__(allowed)
        self._metric = metric
        for values in itertools.product(*map(sorted, allowed.values())) if allowed else ():
            metric.labels(*values)  # so that the first increase shows in a rate

    def inc(self, amount: float = 1.0, **labels: str) -> None:
        bound = self._bound(labels)
        (self._metric.labels(**bound) if bound else self._metric).inc(amount)


class BoundedGauge(_Bounded):
    """A gauge with the declared label values."""

    def __init__(self, metric: "Gauge", allowed: Mapping[str, frozenset[str]]) -> None:
        super().__init__(allowed)
        self._metric = metric

    def set(self, value: float, **labels: str) -> None:
        bound = self._bound(labels)
        (self._metric.labels(**bound) if bound else self._metric).set(value)


class BoundedHistogram(_Bounded):
    """A histogram with the declared label values."""

    def __init__(self, metric: "Histogram", allowed: Mapping[str, frozenset[str]]) -> None:
        super().__init__(allowed)
        self._metric = metric

    def observe(self, value: float, **labels: str) -> None:
        bound = self._bound(labels)
        (self._metric.labels(**bound) if bound else self._metric).observe(value)
