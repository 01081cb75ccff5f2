"""The interface of a collector: one object that turns a tick of kernel readings into samples."""

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from prometheus_client import Metric

from koord.api.slo.nodeslo import NodeSLO
from koord.util.clock import Stamp
from koordlet.host.cgroups.layout import Layout
from koordlet.host.resource import Resource
from koordlet.metriccache.kinds import Cadence
from koordlet.metriccache.sample import Sample
from koordlet.statesinformer.model import PodMeta

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
        """As get_at, for many groups; cheaper when the same groups are requested each tick."""

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
