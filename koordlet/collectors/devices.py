"""Devices of the node: RDMA interfaces, GPUs of other vendors, and what is used of NVIDIA's."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from prometheus_client import Metric

from koordlet.collectors.engine.collector import FamilySpec, LabelledValue, Tick
from koordlet.collectors.pod_usage import POD_LABELS, pod_labels
from koordlet.host.devices import XpuFiles, read_rdma_interfaces
from koordlet.host.errors import KernelFileError
from koordlet.host.resources import CGROUP_PROCS
from koordlet.metriccache.kinds import (
    CONTAINER_GPU_CORE_USAGE,
    CONTAINER_GPU_MEMORY_USAGE,
    NODE_GPU_CORE_USAGE,
    NODE_GPU_MEMORY_TOTAL,
    NODE_GPU_MEMORY_USAGE,
    POD_GPU_CORE_USAGE,
    POD_GPU_MEMORY_USAGE,
    Cadence,
    Sample,
)
from koordlet.nvml.gpus import GpuReading
from koordlet.rules.devices import RdmaInterface, Xpu
from koordlet.statesinformer.podmeta import PodMeta

ACCELERATORS, RDMA_DEVICES = "Accelerators", "RDMADevices"
GPUS, XPUS, INTERFACES = "GPU", "XPU", "RDMA"  # keys in the metric cache, as Koordinator's
GPU_READING = "gpu_reading"  # another: a GpuReading
MAX_READING_AGE = 3.0  # intervals after which a response of NVML says nothing about now
SEARCH_INTERVAL = 10.0  # seconds between two searches for the pod of a process that has none

_GPU = ("gpu_minor", "gpu_device_uuid")
_GpuUse = tuple[float, int]  # percent of the cores, bytes
Publish = Callable[[str, object], None]


_RDMA_INTERFACE_ACTIVE = FamilySpec(
    "koordlet_rdma_interface_active",
    "Whether all ports of an RDMA interface are active.",
    ("node", "device", "bus_id"),
    "0 or 1",
)


class RdmaCollector:
    """Publishes the RDMA interfaces."""

    name = "rdma"
    gates: tuple[str, ...] = (RDMA_DEVICES,)
    cadence = Cadence.DEVICES

    def __init__(self, node: str, sys: Path, publish: Publish) -> None:
        """publish(name, object) makes an object known to the rest of the daemon."""
        self._node = node
        self._sys = sys
        self._publish = publish
        self._latest: tuple[RdmaInterface, ...] = ()

    def collect(self, tick: Tick) -> Iterable[Sample]:
        found = tick.call("RDMA interfaces", lambda: read_rdma_interfaces(self._sys))
        if found is not None:
            self._latest = found[0]
            self._publish(INTERFACES, found[0])
        return ()

    def families(self) -> Iterator[Metric]:
        yield _RDMA_INTERFACE_ACTIVE.metric(
            ((self._node, each.name, each.topology.bus), float(each.active))
            for each in self._latest
        )


_XPU_HEALTHY = FamilySpec(
    "koordlet_xpu_healthy",
    "Whether a device that a file describes is healthy.",
    ("node", "vendor", "model", *_GPU),
    "0 or 1",
)


class XpuCollector:
    """Publishes the devices that files describe."""

    name = "xpu"
    gates: tuple[str, ...] = (ACCELERATORS,)
    cadence = Cadence.DEVICES

    def __init__(self, node: str, directory: Path, publish: Publish) -> None:
        """publish as with RdmaCollector."""
        self._node = node
        self._directory = directory
        self._files = XpuFiles(directory)
        self._publish = publish
        self._latest: tuple[Xpu, ...] = ()

    def collect(self, tick: Tick) -> Iterable[Sample]:
        found = tick.call("descriptions of devices", self._files.read)
        if found is not None:
            self._latest = found[0].xpus
            self._publish(XPUS, found[0])
            tick.call("all descriptions of devices", self._log_problems)
        return ()

    def _log_problems(self) -> None:
        """Let the pass count and log what is not good. Raises KernelFileError."""
        if self._files.problem:
            hint = (
                "have the vendor's agent write a JSON array of devices; all others are reported, "
                "and a file that was good keeps what it said"
            )
            raise KernelFileError(
                self._directory, wanted="good files", found=self._files.problem, hint=hint
            )

    def families(self) -> Iterator[Metric]:
        yield _XPU_HEALTHY.metric(
            (
                (self._node, each.vendor, each.model, str(each.minor), each.uuid),
                float(not each.error),
            )
            for each in self._latest
        )


_GPU_HEALTHY = FamilySpec(
    "koordlet_gpu_healthy",
    "Whether a GPU is healthy: it answers, and had no critical Xid.",
    ("node", *_GPU),
    "0 or 1",
)
_GPU_CORE_USAGE_PERCENT = FamilySpec(
    "koordlet_gpu_core_usage_percent",
    "Share of a GPU's cores in use, in percent.",
    ("node", *_GPU),
    "percent",
)
_GPU_MEMORY_USAGE_BYTES = FamilySpec(
    "koordlet_gpu_memory_usage_bytes",
    "Memory of a GPU in use by processes.",
    ("node", *_GPU),
    "bytes",
)
_GPU_MEMORY_TOTAL_BYTES = FamilySpec(
    "koordlet_gpu_memory_total_bytes", "Memory that a GPU has.", ("node", *_GPU), "bytes"
)
_POD_GPU_CORE_USAGE_PERCENT = FamilySpec(
    "koordlet_pod_gpu_core_usage_percent",
    "Share of a GPU's cores that a pod uses, in percent.",
    (*POD_LABELS, *_GPU),
    "percent",
)
_POD_GPU_MEMORY_USAGE_BYTES = FamilySpec(
    "koordlet_pod_gpu_memory_usage_bytes",
    "Memory of a GPU that a pod uses.",
    (*POD_LABELS, *_GPU),
    "bytes",
)


class GpuCollector:
    """GPU usage of processes in the latest response of NVML, by container, pod and node."""

    name = "gpu"
    gates: tuple[str, ...] = (ACCELERATORS,)
    cadence = Cadence.USAGE

    def __init__(self, node: str, interval: float, known: Callable[[str], object | None]) -> None:
        """known returns what was published under a name."""
        self._node = node
        self._interval = interval
        self._known = known
        self._owners = _GpuProcessOwners()
        self._reading: GpuReading | None = None
        self._pods: tuple[tuple[PodMeta, tuple[str, str], _GpuUse], ...] = ()

    def collect(self, tick: Tick) -> Iterable[Sample]:
        self._reading, self._pods = self._fresh(tick), ()
        if self._reading is None:
            return
        running = {process.pid for gpu in self._reading.gpus for process in gpu.processes}
        owners = self._owners.of(running, tick)
        pods: dict[tuple[str, tuple[str, str]], tuple[PodMeta, _GpuUse]] = {}
        for found in self._reading.gpus:
            gpu = str(found.gpu.minor), found.gpu.uuid
            containers: dict[str, _GpuUse] = {}
            total: _GpuUse = (0.0, 0)
            for process in found.processes:
                use = process.core, process.memory
                total = _sum(total, use)
                if process.pid in owners:
                    pod, container = owners[process.pid]
                    containers[container] = _sum(containers.get(container, (0.0, 0)), use)
                    before = pods[pod.uid, gpu][1] if (pod.uid, gpu) in pods else (0.0, 0)
                    pods[pod.uid, gpu] = pod, _sum(before, use)
            yield Sample(NODE_GPU_MEMORY_TOTAL, found.gpu.memory, gpu)
            yield Sample(NODE_GPU_CORE_USAGE, total[0], gpu)
            yield Sample(NODE_GPU_MEMORY_USAGE, total[1], gpu)
            for container, (core, memory) in containers.items():
                yield Sample(CONTAINER_GPU_CORE_USAGE, core, (container, *gpu))
                yield Sample(CONTAINER_GPU_MEMORY_USAGE, memory, (container, *gpu))
        for (uid, gpu), (_, (core, memory)) in pods.items():
            yield Sample(POD_GPU_CORE_USAGE, core, (uid, *gpu))
            yield Sample(POD_GPU_MEMORY_USAGE, memory, (uid, *gpu))
        self._pods = tuple((pod, gpu, use) for (_, gpu), (pod, use) in pods.items())

    def _fresh(self, tick: Tick) -> GpuReading | None:
        reading = self._known(GPU_READING)
        if not isinstance(reading, GpuReading):
            return None
        return reading if tick.monotonic - reading.at <= MAX_READING_AGE * self._interval else None

    def families(self) -> Iterator[Metric]:
        gpus = () if self._reading is None else self._reading.gpus
        used = [
            (
                (self._node, str(each.gpu.minor), each.gpu.uuid),
                sum(process.core for process in each.processes),
                sum(process.memory for process in each.processes),
                each.gpu,
            )
            for each in gpus
        ]
        yield _GPU_HEALTHY.metric(((key, float(not gpu.error)) for key, _, _, gpu in used))
        yield _GPU_CORE_USAGE_PERCENT.metric(((key, min(core, 100.0)) for key, core, _, _ in used))
        yield _GPU_MEMORY_USAGE_BYTES.metric(((key, memory) for key, _, memory, _ in used))
        yield _GPU_MEMORY_TOTAL_BYTES.metric(((key, gpu.memory) for key, _, _, gpu in used))
        yield _POD_GPU_CORE_USAGE_PERCENT.metric(self._of_pods(0))
        yield _POD_GPU_MEMORY_USAGE_BYTES.metric(self._of_pods(1))

    def _of_pods(self, part: int) -> Iterator[LabelledValue]:
        for pod, gpu, use in self._pods:
            yield (*pod_labels(self._node, pod), *gpu), use[part]


class _GpuProcessOwners:
    """Finds the container of a process by the processes of containers' cgroups.

    A process that was found stays with its container while it is on a GPU and the container is
    there. All containers are searched when there is a new process; one that is in none, such as one
    of the host, is searched for again only now and then.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[PodMeta, str]] = {}
        self._nowhere: frozenset[int] = frozenset()
        self._again = 0.0  # monotonic, of the next search for those

    def of(self, pids: set[int], tick: Tick) -> Mapping[int, tuple[PodMeta, str]]:
        """The pod and the id of the container of each process that is in one."""
        here = {container.container_id: pod for pod in tick.pods for container in pod.containers}
        self._found = {
            pid: (here[container], container)
            for pid, (_, container) in self._found.items()
            if pid in pids and container in here
        }
        missing = pids - self._found.keys()
        due = tick.monotonic >= self._again
        if missing and (due or not missing <= self._nowhere):
            self._search(missing, tick)
            self._nowhere = frozenset(missing - self._found.keys())
            self._again = tick.monotonic + SEARCH_INTERVAL
        return self._found

    def _search(self, missing: set[int], tick: Tick) -> None:
        for pod in tick.pods:
            for container in pod.containers:
                inside = tick.get(CGROUP_PROCS, container.cgroup) or ()
                for pid in missing.intersection(inside):
                    self._found[pid] = pod, container.container_id


def _sum(one: _GpuUse, other: _GpuUse) -> _GpuUse:
    """Both together; the cores of a GPU are in use by at most 100 percent."""
    return min(one[0] + other[0], 100.0), one[1] + other[1]
