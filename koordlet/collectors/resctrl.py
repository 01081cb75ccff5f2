"""Usage of L3 caches and memory bandwidth by the control groups of QoS classes."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import Metric

from koordlet.collectors.engine.collector import FamilySpec, LabelledValue, Tick
from koordlet.host.paths import HostPaths
from koordlet.metriccache.kinds import RESCTRL_LLC, RESCTRL_MB, Cadence, Sample

if TYPE_CHECKING:
    from koordlet.host.resctrl_monitoring import CacheUsage

GROUPS = ("LSR", "LS", "BE")
_LABELS = ("node", "cache_id", "qos")


_RESCTRL_LLC_OCCUPANCY = FamilySpec(
    "koordlet_resctrl_llc_occupancy",
    "Bytes of an L3 cache that the pods of a class have filled.",
    _LABELS,
    "bytes",
)
_RESCTRL_MEMORY_BANDWIDTH = FamilySpec(
    "koordlet_resctrl_memory_bandwidth",
    (
        "Bytes that the pods of a class have moved to and from memory since their control "
        "group was made; it only grows."
    ),
    (*_LABELS, "mb_type"),
    "bytes",
)


class ResctrlCollector:
    """Reads a few files for each class and cache; needs --enable-resctrl-collector, too."""

    name = "resctrl"
    gates: tuple[str, ...] = ("ResctrlCollector",)
    cadence = Cadence.RESCTRL

    def __init__(self, node: str, paths: HostPaths, *, wanted: bool) -> None:
        self._node = node
        self._paths = paths
        self._wanted = wanted
        self._latest: list[CacheUsage] = []

    def collect(self, tick: Tick) -> Iterable[Sample]:
        found = tick.call("resctrl", self._read) if self._wanted else None
        self._latest = [] if found is None else found[0]
        for group, cache, values in self._latest:
            for name, value in values.items():
                if name == "llc_occupancy":
                    yield Sample(RESCTRL_LLC, value, (group, str(cache)))
                else:
                    yield Sample(RESCTRL_MB, value, (group, str(cache), name))

    def families(self) -> Iterator[Metric]:
        yield _RESCTRL_LLC_OCCUPANCY.metric(self._rows(bandwidth=False))
        yield _RESCTRL_MEMORY_BANDWIDTH.metric(self._rows(bandwidth=True))

    def _read(self) -> "list[CacheUsage]":
        from koordlet.host.resctrl_monitoring import read_usage  # not imported while it is off

        return read_usage(self._paths, GROUPS)

    def _rows(self, *, bandwidth: bool) -> Iterator[LabelledValue]:
        for group, cache, values in self._latest:
            for name, value in values.items():
                if (name != "llc_occupancy") is bandwidth:
                    labels = (self._node, str(cache), group)
                    yield ((*labels, name) if bandwidth else labels), value
