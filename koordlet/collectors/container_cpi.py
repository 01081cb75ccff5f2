"""Cycles and instructions of containers, from which consumers compute cycles per instruction."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import Metric

from koord.api.machine import parse_cpulist_file
from koordlet.collectors.engine.collector import FamilySpec, LabelledValue, Tick
from koordlet.host.cgroups.tree import CgroupFs
from koordlet.host.errors import Unsupported
from koordlet.host.files import parse_file
from koordlet.host.paths import HostPaths
from koordlet.metriccache.kinds import CONTAINER_CPI, Cadence, Sample
from koordlet.statesinformer.podmeta import ContainerMeta, PodMeta

if TYPE_CHECKING:  # for the few machines that count, and switch it on
    from koordlet.host.perf import GroupCounters, PerfEvent

CPI_GATE, GROUPED_GATE = "CPICollector", "Libpfm4"
MAX_DESCRIPTORS = 8192  # counters at a time, two per container and CPU; each takes some 2 KiB
_CONTROLLER = "perf_event"
_LABELS = (
    "node",
    "container_id",
    "container_name",
    "pod_uid",
    "pod_name",
    "pod_namespace",
    "cpi_field",
)
_FIELDS = {"cycle": "cycles", "instruction": "instructions"}  # cpi_resource -> label of the metric


@dataclass(frozen=True, kw_only=True, slots=True)
class CpiOptions:
    """Options of counting. Times in seconds."""

    interval: float  # between the beginnings of two rounds
    window: float  # that a round counts
    enabled: Callable[[str], bool]  # whether a gate is on
    events: "tuple[PerfEvent, PerfEvent] | None" = None  # other ones than cycles and instructions


class _CpiContainer(NamedTuple):
    pod: PodMeta
    container: ContainerMeta
    counters: "GroupCounters"


class _CpiCounts(NamedTuple):
    pod: PodMeta
    container: ContainerMeta
    counts: list[float]  # in the order of _FIELDS


_CONTAINER_CPI = FamilySpec(
    "koordlet_container_cpi",
    ("Cycles and instructions of a container in the latest window of --collect-cpi-timewindow."),
    _LABELS,
    "count",
)


class ContainerCpiCollector:
    """Counts for a window in each interval, on ticks of the usage samples.

    With more containers than MAX_DESCRIPTORS allows they take turns, a round each. It has no
    gates, so that it can close its counters when its gate is switched off.
    """

    name = "container_cpi"
    gates: tuple[str, ...] = ()
    cadence = Cadence.USAGE

    def __init__(self, node: str, paths: HostPaths, options: CpiOptions) -> None:
        self._node = node
        self._paths = paths
        self._options = options
        self._counting: list[_CpiContainer] = []
        self._ends = 0.0  # monotonic, of the window
        self._next = 0.0  # monotonic, of the next round
        self._turn = 0  # of the containers that were left out, the first to be counted
        self._latest: tuple[_CpiCounts, ...] = ()

    def collect(self, tick: Tick) -> Iterable[Sample]:
        if not self._options.enabled(CPI_GATE):
            self._close()
            self._latest = ()
            return
        if self._counting:
            if tick.monotonic >= self._ends:
                yield from self._end(tick)
        elif tick.monotonic >= self._next:
            self._begin(tick)

    def families(self) -> Iterator[Metric]:
        if self._options.enabled(CPI_GATE):
            yield _CONTAINER_CPI.metric(self._rows())

    def _begin(self, tick: Tick) -> None:
        self._next = tick.monotonic + self._options.interval
        self._ends = tick.monotonic + self._options.window
        found = tick.call("groups and CPUs to count", self._rescan)
        if found is None:
            return
        root, cpus = found[0]
        most = max(MAX_DESCRIPTORS // (len(cpus) * len(_FIELDS)), 1)
        for pod, container in self._next_container(tick, most):
            begin = partial(self._open, root / container.cgroup, cpus)
            opened = tick.call(f"counters of {container.cgroup}", begin)
            if opened is not None:
                self._counting.append(_CpiContainer(pod, container, opened[0]))

    def _rescan(self) -> tuple[Path, Sequence[int]]:
        """The directory of the root group, and the CPUs that are online."""
        cgroups = CgroupFs(self._paths.cgroup)
        root = cgroups.hierarchy(_CONTROLLER, cgroups.version(_CONTROLLER))
        if not cgroups.has(_CONTROLLER):
            needs = "the controller perf_event mounted: by the host, below --cgroup-root-dir"
            raise Unsupported.here(str(root), "no such hierarchy", needs)
        online = self._paths.sys / "devices/system/cpu/online"
        return root, sorted(parse_file(online, parse_cpulist_file))

    def _next_container(self, tick: Tick, most: int) -> list[tuple[PodMeta, ContainerMeta]]:
        every = [(pod, container) for pod in tick.pods for container in pod.containers]
        if len(every) <= most:
            self._turn = 0
            return every
        first = self._turn % len(every)
        self._turn = first + most
        return (every[first:] + every[:first])[:most]

    def _open(self, directory: Path, cpus: Sequence[int]) -> "GroupCounters":
        from koordlet.host.perf import CYCLES, INSTRUCTIONS, GroupCounters

        grouped = self._options.enabled(GROUPED_GATE)
        events = self._options.events or (CYCLES, INSTRUCTIONS)
        return GroupCounters(directory, cpus, events, grouped=grouped)

    def _end(self, tick: Tick) -> Iterator[Sample]:
        here = {container.container_id for pod in tick.pods for container in pod.containers}
        counted = []
        for pod, container, counters in self._counting:
            found = tick.call(f"counters of {container.cgroup}", counters.read)
            if found is not None and container.container_id in here:
                counted.append(_CpiCounts(pod, container, found[0]))
        self._close()
        self._latest = tuple(counted)
        for pod, container, counts in counted:
            for resource, count in zip(_FIELDS, counts, strict=True):
                yield Sample(CONTAINER_CPI, count, (pod.uid, container.container_id, resource))

    def _close(self) -> None:
        for subject in self._counting:
            subject.counters.close()
        self._counting = []

    def _rows(self) -> Iterator[LabelledValue]:
        for pod, container, counts in self._latest:
            labels = (
                self._node,
                container.container_id,
                container.name,
                pod.uid,
                pod.pod.name,
                pod.pod.namespace,
            )
            for field, count in zip(_FIELDS.values(), counts, strict=True):
                yield (*labels, field), count
