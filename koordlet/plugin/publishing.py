"""Metric kinds of a plugin's own: checked, in the metric cache, and as gauges on /metrics."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koord.util.clock import Clock, stamp
from koord.util.errors import OptionError
from koordlet.metriccache.kinds import KINDS, AnyKind, RetentionClass, Sample

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import GaugeMetricFamily

    from koordlet.metriccache.cache import MetricCache


@dataclass(frozen=True, slots=True)
class Published:
    """A metric kind of a plugin. Its name begins with the plugin's, in lower_snake_case.

    most: maximum number of series; values of further series are left out until others are idle for
    the retention, which is that of pod metrics (5 minutes by default; keep=Keep.POD).
    """

    kind: AnyKind
    most: int = 100


MAX_KINDS = 8  # of one plugin
MAX_SERIES = 500  # of one kind
MAX_VALUE = 128  # characters of a property
_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}", re.ASCII)


def defect_of(published: object, prefix: str) -> str:
    """Return what is wrong with the publishes of a plugin, "" for nothing."""
    if not isinstance(published, tuple) or not all(isinstance(p, Published) for p in published):
        return f"wanted a tuple of Published(kind, most) in publishes, found {published!r:.80}"
    if len(published) > MAX_KINDS:
        return f"wanted at most {MAX_KINDS} kinds in publishes, found {len(published)}"
    for each in published:
        name = each.kind.name
        if not _NAME.fullmatch(name) or not name.startswith(f"{prefix}_") or name in KINDS:
            return f"publishes: wanted a kind named {prefix}_<what>, found {name!r}"
        if each.kind.retention_class is not RetentionClass.POD:
            return f"publishes: wanted keep=Keep.POD in {name}, found {each.kind.retention_class}"
        if not 1 <= each.most <= MAX_SERIES:
            return f"publishes: wanted most from 1 to {MAX_SERIES} in {name}, found {each.most}"
    return ""


def with_published(published: Iterable[Published]) -> list[AnyKind]:
    """Return koordlet's kinds and these."""
    own = {each.kind.name: each.kind for each in published}
    return list({**own, **KINDS}.values())


class Publisher:
    """Takes what one plugin publishes. Called on the event loop, collected on any thread."""

    def __init__(
        self, plugin: str, published: Iterable[Published], cache: "MetricCache", clock: Clock
    ) -> None:
        self._plugin = plugin
        self._published = {each.kind.name: each for each in published}
        self._cache = cache
        self._clock = clock

    def publish(self, kind: AnyKind, values: Mapping[tuple[str, ...], float]) -> int:
        """Publish values of a declared kind; see ExtensionPlugin.publish."""
        mine = self._published.get(kind.name)
        if mine is None or mine.kind is not kind:
            raise OptionError(f"{self._plugin} publish", kind.name, "declare it in publishes")
        known = set(self._cache.keys(kind))
        samples = []
        for key, value in values.items():
            kind.check(key)
            fits = all(len(part) <= MAX_VALUE and part.isprintable() for part in key)
            if fits and (key in known or len(known) < mine.most):
                known.add(key)
                samples.append(Sample(kind, value, key))
        self._cache.append(stamp(self._clock), samples)
        return len(values) - len(samples)

    def register(self, registry: "CollectorRegistry") -> None:
        """Show the newest values on /metrics."""
        if self._published:
            registry.register(self)

    def collect(self) -> Iterator["GaugeMetricFamily"]:
        """Return all published kinds with their latest values, as prometheus_client requires."""
        for each in self._published.values():
            family = self._family(each.kind)
            for key, value in self._cache.last_values(each.kind).items():
                family.add_metric(list(key), value)
            yield family

    def describe(self) -> Iterator["GaugeMetricFamily"]:
        """Return all kinds without series, so that the registry rejects a name used twice."""
        for each in self._published.values():
            yield self._family(each.kind)

    def _family(self, kind: AnyKind) -> "GaugeMetricFamily":
        from prometheus_client.metrics_core import GaugeMetricFamily

        name = f"koordlet_plugin_{kind.name}"
        return GaugeMetricFamily(name, f"{kind.help} ({kind.unit}).", labels=kind.properties)
