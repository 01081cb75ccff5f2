"""The interface of a collector: a tick of kernel readings in, samples and metric families out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, UnknownMetricFamily

from koord.api.nodeslo import NodeSLO
from koord.util.clock import Stamp
from koordlet.host.cgroups.layout import Layout
from koordlet.host.resource import Resource
from koordlet.metriccache.kinds import Cadence, Sample
from koordlet.statesinformer.podmeta import PodMeta

T = TypeVar("T")


class Tick(Protocol):
    """One turn of the sampling pass, as a collector sees it.

    Within one tick each kernel file is read at most once for all. What could not be read is
    None: the pass has counted and logged it.
    """

    at: Stamp
    monotonic: float  # seconds; when the tick began, for what must not jump with the wall clock
    pods: tuple[PodMeta, ...]  # pods to sample; finished ones are left out
    slo: NodeSLO | None
    layouts: tuple[Layout, ...]  # where the kubepods cgroups are; the likeliest first, never empty
    shared: dict[str, object]  # this tick's results for collectors that come later in the order

    def get(self, resource: Resource[T], group: str = "") -> T | None:
        """Value of a kernel resource; group is the cgroup path, or the resource's own argument."""

    def get_at(self, resource: Resource[T], group: str = "") -> tuple[T, float] | None:
        """The value with the monotonic seconds at which its file was read."""

    def get_all(
        self, resource: Resource[T], groups: tuple[str, ...]
    ) -> list[tuple[T, float] | None]:
        """Return what get_at returns, for many groups.

        Cheaper than get_at when the same groups are requested each tick.
        """

    def call(self, what: str, read: Callable[[], T]) -> tuple[T, float] | None:
        """Like get_at, for a host function that reads several files, or a socket, by itself.

        `what` names it in logs. Errors other than those of the host layer are the collector's.
        """


class Collector(Protocol):
    """Reads, decides nothing, writes nothing: no file, timer, retry or except of its own.

    collect runs on the sampling thread, families on any thread. A collector is due when the time
    of its cadence has come.
    """

    name: str
    gates: tuple[str, ...]  # runs while any of these gates is on; empty: always
    cadence: Cadence

    def collect(self, tick: Tick) -> Iterable[Sample]:
        """Samples of this tick."""

    def families(self) -> Iterable[Metric]:
        """Prometheus families made from the latest finished tick; may be empty."""


LabelledValue = tuple[Sequence[str], float]
"""Label values, in the order of the family's labels, and the sample's value."""


FamilyType = Literal["gauge", "counter", "untyped"]


@dataclass(frozen=True, slots=True)
class FamilySpec:
    """A family of Prometheus metrics: a row beside the collector that fills it.

    type counter: the name ends with _total, as all counters but Koordinator's do. untyped: the
    name stays as it is, for counters that others named without _total.
    """

    name: str
    help: str
    labels: Sequence[str]
    unit: str = ""  # of the values; "": the name says it
    type: FamilyType = "gauge"

    def metric(self, rows: Iterable[LabelledValue]) -> Metric:
        """Return the family with these samples."""
        family = _FAMILIES[self.type](self.name, self.help, labels=self.labels)
        for labels, value in rows:
            family.add_metric(labels, value)
        return family


def counter_or_gauge(name: str) -> FamilyType:
    """Return the type that a name says: Prometheus' counters end with _total."""
    return "counter" if name.endswith("_total") else "gauge"


_Family = GaugeMetricFamily | CounterMetricFamily | UnknownMetricFamily
_FAMILIES: Mapping[str, Callable[..., _Family]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "untyped": UnknownMetricFamily,
}


class StatusCounter:
    """Koordinator's counter of rounds: named without _total, with the labels node and status."""

    def __init__(self, name: str, help: str, node: str) -> None:
        self._spec = FamilySpec(name, help, ("node", "status"), "count", "untyped")
        self._node = node
        self._counts: dict[str, int] = {}

    def count(self, *, succeeded: bool) -> None:
        status = "succeeded" if succeeded else "failed"
        self._counts = {**self._counts, status: self._counts.get(status, 0) + 1}

    def family(self) -> Metric:
        """Return the counter by status."""
        return self._spec.metric(
            ((self._node, status), count) for status, count in self._counts.items()
        )


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
