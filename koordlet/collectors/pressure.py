"""Pressure (PSI): how much of the time tasks of the node, QoS classes, pods and containers wait."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prometheus_client import Metric

from koord.api.qos import KubeQoS
from koordlet.collectors.engine.collector import FamilySpec, LabelledValue, Tick
from koordlet.collectors.pod_usage import POD_NAME_LABELS, pod_name_labels
from koordlet.collectors.qos_usage import BEST_EFFORT, BURSTABLE
from koordlet.host.procfiles import Pressure
from koordlet.host.resource import Resource
from koordlet.host.resources import (
    CPU_PRESSURE,
    IO_PRESSURE,
    MEMORY_PRESSURE,
    NODE_CPU_PRESSURE,
    NODE_IO_PRESSURE,
    NODE_MEMORY_PRESSURE,
)
from koordlet.metriccache.kinds import (
    CONTAINER_PSI,
    CONTAINER_PSI_CPU_FULL_SUPPORTED,
    NODE_PSI,
    POD_PSI,
    POD_PSI_CPU_FULL_SUPPORTED,
    QOS_PSI,
    AnyKind,
    Cadence,
    Sample,
)
from koordlet.statesinformer.podmeta import ContainerMeta, PodMeta

PSI_GATE = "PSICollector"
KUBEPODS = "kubepods"  # qos_class value: all pods; guaranteed pods have no group of their own

Pressures = dict[str, Pressure]  # by psi_resource: cpu, mem, io
_Files = dict[str, Resource[Pressure]]

_NODE_FILES: _Files = {
    "cpu": NODE_CPU_PRESSURE,
    "mem": NODE_MEMORY_PRESSURE,
    "io": NODE_IO_PRESSURE,
}
_GROUP_FILES: _Files = {"cpu": CPU_PRESSURE, "mem": MEMORY_PRESSURE, "io": IO_PRESSURE}
_CACHED_PRECISION = "10"  # seconds; the longer averages are only exposed
_PRESSURE_LABELS = ("psi_resource_type", "psi_precision", "psi_degree")
_CPU_FULL = "cpu_full_supported"  # Koordinator's label; whether this resource has "full"


_NODE_PSI = FamilySpec(
    "koordlet_node_psi",
    "Share of the time in which tasks of the node waited, in percent.",
    ("node", *_PRESSURE_LABELS),
    "percent",
)
_QOS_PSI = FamilySpec(
    "koordlet_qos_psi",
    "Share of the time in which tasks of a Kubernetes QoS class waited, in percent.",
    ("node", "qos_class", *_PRESSURE_LABELS),
    "percent",
)


class NodePressureCollector:
    """Node and QoS classes: a dozen files, so always on."""

    name = "node_pressure"
    gates: tuple[str, ...] = ()
    cadence = Cadence.PSI

    def __init__(self, node: str) -> None:
        self._node = node
        self._latest_node: Pressures = {}
        self._latest_qos: dict[str, Pressures] = {}

    def collect(self, tick: Tick) -> Iterable[Sample]:
        layout = tick.layouts[0]
        groups = {
            KUBEPODS: layout.root,
            BURSTABLE: layout.qos_dir(KubeQoS.BURSTABLE),
            BEST_EFFORT: layout.qos_dir(KubeQoS.BEST_EFFORT),
        }
        self._latest_node = node = _read_pressure(tick, _NODE_FILES)
        self._latest_qos = qos = {
            name: _read_pressure(tick, _GROUP_FILES, group) for name, group in groups.items()
        }
        yield from _pressure_samples(NODE_PSI, (), node)
        for name, pressures in qos.items():
            yield from _pressure_samples(QOS_PSI, (name,), pressures)

    def families(self) -> Iterator[Metric]:
        node = (self._node,)
        yield _NODE_PSI.metric(_pressure_rows(node, self._latest_node))
        yield _QOS_PSI.metric(
            (
                row
                for name, pressures in self._latest_qos.items()
                for row in _pressure_rows((*node, name), pressures)
            )
        )


class _PressureGroup(NamedTuple):
    """A pod or container with its pressures."""

    pod: PodMeta
    container: ContainerMeta | None
    pressures: Pressures


_POD_PSI = FamilySpec(
    "koordlet_pod_psi",
    "Share of the time in which tasks of the pod waited, in percent.",
    (*POD_NAME_LABELS, *_PRESSURE_LABELS, _CPU_FULL),
    "percent",
)
_CONTAINER_PSI = FamilySpec(
    "koordlet_container_psi",
    "Share of the time in which tasks of the container waited, in percent.",
    (*POD_NAME_LABELS, "container_id", "container_name", *_PRESSURE_LABELS, _CPU_FULL),
    "percent",
)


class PodPressureCollector:
    """Pods and containers: three files each. A subject is sampled with all three or not at all."""

    name = "pod_pressure"
    gates: tuple[str, ...] = (PSI_GATE,)
    cadence = Cadence.PSI

    def __init__(self, node: str) -> None:
        self._node = node
        self._latest: tuple[_PressureGroup, ...] = ()

    def collect(self, tick: Tick) -> Iterable[Sample]:
        subjects = (
            _PressureGroup(pod, container, _read_all_pressure(tick, group))
            for pod, container, group in _pressure_groups(tick.pods)
        )
        self._latest = latest = tuple(subject for subject in subjects if subject.pressures)
        for pod, container, pressures in latest:
            if container is None:
                yield from _pressure_samples(POD_PSI, (pod.uid,), pressures)
                yield _cpu_full(POD_PSI_CPU_FULL_SUPPORTED, (pod.uid,), pressures)
            else:
                key = (pod.uid, container.container_id)
                yield from _pressure_samples(CONTAINER_PSI, key, pressures)
                yield _cpu_full(CONTAINER_PSI_CPU_FULL_SUPPORTED, key, pressures)

    def families(self) -> Iterator[Metric]:
        latest = self._latest
        yield _POD_PSI.metric(
            row for subject in latest if not subject.container for row in self._rows(subject)
        )
        yield _CONTAINER_PSI.metric(
            row for subject in latest if subject.container for row in self._rows(subject)
        )

    def _rows(self, subject: _PressureGroup) -> Iterator[LabelledValue]:
        labels = pod_name_labels(self._node, subject.pod)
        if subject.container:
            labels = (*labels, subject.container.container_id, subject.container.name)
        return _pressure_rows(labels, subject.pressures, cpu_full=True)


def _pressure_groups(
    pods: Iterable[PodMeta],
) -> Iterator[tuple[PodMeta, ContainerMeta | None, str]]:
    for pod in pods:
        yield pod, None, pod.cgroup
        for container in pod.containers:
            yield pod, container, container.cgroup


def _read_pressure(tick: Tick, files: _Files, group: str = "") -> Pressures:
    read = {name: tick.get(resource, group) for name, resource in files.items()}
    return {name: pressure for name, pressure in read.items() if pressure is not None}


def _read_all_pressure(tick: Tick, group: str) -> Pressures:
    """All pressures of a group, or none; a kernel that lacks one is not asked for the others."""
    pressures = {}
    for name, resource in _GROUP_FILES.items():
        pressure = tick.get(resource, group)
        if pressure is None:
            return {}
        pressures[name] = pressure
    return pressures


def _pressure_samples(
    kind: AnyKind, key: tuple[str, ...], pressures: Pressures
) -> Iterator[Sample]:
    """Koordinator's kinds have a 0 where the kernel does not report "full"; ours have nothing."""
    zero = kind in (POD_PSI, CONTAINER_PSI)
    for name, pressure in pressures.items():
        yield Sample(kind, pressure.some.avg10, (*key, name, _CACHED_PRECISION, "some"))
        if pressure.full_supported or zero:
            yield Sample(kind, pressure.full.avg10, (*key, name, _CACHED_PRECISION, "full"))


def _cpu_full(kind: AnyKind, key: tuple[str, ...], pressures: Pressures) -> Sample:
    return Sample(kind, float(pressures["cpu"].full_supported), key)


def _pressure_rows(
    labels: tuple[str, ...], pressures: Pressures, *, cpu_full: bool = False
) -> Iterator[LabelledValue]:
    """The three averages of each resource; those of "full" only where the kernel has them."""
    for name, pressure in pressures.items():
        supported = ("true" if pressure.full_supported else "false",) if cpu_full else ()
        degrees = {"some": pressure.some}
        if pressure.full_supported:
            degrees["full"] = pressure.full
        for degree, line in degrees.items():
            averages = {"avg10": line.avg10, "avg60": line.avg60, "avg300": line.avg300}
            for precision, percent in averages.items():
                yield (*labels, name, precision, degree, *supported), percent
