"""Devices of a node as this agent reports them: GPUs, those of other vendors (XPUs), and RDMA.

Source: Koordinator pkg/koordlet/statesinformer/impl (states_device_linux) and pkg/koordlet/util.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from koord.api.quantity import memory_text

GPU_VENDOR = "node.koordinator.sh/gpu-vendor"
GPU_MODEL = "node.koordinator.sh/gpu-model"
GPU_DRIVER = "node.koordinator.sh/gpu-driver-version"
PARTITION_POLICY = "node.koordinator.sh/gpu-partition-policy"
PARTITIONS = "scheduling.koordinator.sh/gpu-partitions"
GPU_CORE, GPU_MEMORY = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory"
GPU_MEMORY_RATIO, RDMA = "koordinator.sh/gpu-memory-ratio", "koordinator.sh/rdma"

HEALTHY, UNHEALTHY = "device is healthy", "device is unhealthy"  # messages, where none is known
GPU_LOST = "DeviceLost"  # reason: the driver lists the device, but it does not answer
UNKNOWN_REASON = "Unknown"
_WHOLE = "100"  # percent of one device
_MAX_LABEL_LENGTH = 63
_MAX_REASON_LENGTH = 256
_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9._-]+")
_NOT_IN_REASONS = re.compile(r"[^A-Za-z0-9_,:]+")


class DeviceType(StrEnum):
    """The kinds of devices that this agent reports."""

    GPU = "gpu"
    RDMA = "rdma"


@dataclass(frozen=True, slots=True)
class DeviceTopology:
    """The place of a device in the node's topology."""

    numa_node: int  # -1: not known
    pcie: str  # the root complex, "pci0000:3a"; "": not known
    bus: str = ""  # PCI address, "0000:3b:00.0"


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One device. error is the reason why it is not healthy, "" when it is; then message has more.

    resources maps names to quantities.
    """

    type: DeviceType
    id: str
    minor: int
    resources: Mapping[str, str]
    topology: DeviceTopology | None = None
    error: str = ""
    message: str = ""
    functions: tuple[str, ...] = ()  # PCI addresses of virtual functions


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU as NVML shows it."""

    uuid: str
    minor: int
    model: str
    memory: int  # bytes
    topology: DeviceTopology | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class GpuSet:
    """All GPUs of NVML, and the version of their driver."""

    driver: str
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True)
class PeerLink:
    """A fast connection of a device with others. peers: their minors."""

    type: str
    peers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Xpu:
    """A device that its vendor's agent describes in a file."""

    vendor: str
    model: str
    uuid: str
    minor: int
    resources: Mapping[str, str]
    topology: DeviceTopology | None = None
    links: tuple[PeerLink, ...] = ()
    must_honor_partition: bool = False
    error: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class XpuSet:
    """All devices of files, by UUID. complete: no file is left out because it was never good."""

    xpus: tuple[Xpu, ...] = ()
    complete: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class RdmaInterface:
    """A network interface with RDMA. minor: the number in its name, 0 of mlx5_0."""

    name: str
    minor: int
    topology: DeviceTopology
    functions: tuple[str, ...] = ()
    ports: int = 0
    idle_ports: tuple[int, ...] = ()  # the numbers of those that are not active

    @property
    def active(self) -> bool:
        """Whether it has ports, and all of them are active."""
        return self.ports > 0 and not self.idle_ports


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """The desired contents of the node's Device object.

    Devices of a type outside known are left as they are: it is not known now which there are. Of a
    type in partial there may be more than those here. partitions is an annotation. "" stands for no
    label or annotation.
    """

    devices: tuple[Device, ...] = ()
    known: frozenset[DeviceType] = frozenset()
    partial: frozenset[DeviceType] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    partitions: str = ""


def node_devices(
    gpus: GpuSet | None,
    files: XpuSet | None,
    interfaces: tuple[RdmaInterface, ...] | None,
) -> NodeDevices:
    """Return the devices of a node, sorted by type and minor. None: not known now.

    Devices of files come before those of NVML: where there are any, NVML does not count.
    """
    found: list[Device] = []
    known: set[DeviceType] = set()
    xpus = None if files is None else files.xpus
    labels: dict[str, str] = {}
    partitions = ""
    if xpus or (xpus is not None and gpus is not None):
        known.add(DeviceType.GPU)
        labels = dict.fromkeys((GPU_VENDOR, GPU_MODEL, GPU_DRIVER, PARTITION_POLICY), "")
    if xpus:
        found += map(_xpu_device, xpus)
        labels |= _xpu_labels(xpus)
        partitions = partitions_text(xpus)
    elif xpus is not None and gpus is not None:
        found += map(_gpu_device, gpus.gpus)
        labels |= _gpu_labels(gpus)
    if interfaces is not None:
        known.add(DeviceType.RDMA)
        found += map(_rdma_device, interfaces)
    found.sort(key=lambda device: (device.type.value, device.minor, device.id))
    partial = {DeviceType.GPU} & known if files is not None and not files.complete else set()
    return NodeDevices(tuple(found), frozenset(known), frozenset(partial), labels, partitions)


def partitions_text(xpus: Iterable[Xpu]) -> str:
    """Return the groups of devices that are connected, as the annotation has them; "" for none."""
    groups: dict[tuple[int, ...], str] = {}
    for xpu in xpus:
        for link in xpu.links:
            groups.setdefault(tuple(sorted({xpu.minor, *link.peers})), link.type)
    sized: dict[str, list[dict[str, object]]] = {}
    for minors, link_type in sorted(groups.items()):
        group = {"minors": list(minors), "gpuLinkType": link_type, "allocationScore": 1}
        sized.setdefault(str(len(minors)), []).append(group)
    return json.dumps(sized, separators=(",", ":"), sort_keys=True) if sized else ""


def label_value(text: str) -> str:
    """Return the text as the value of a label; "" when nothing of it can be one."""
    return _NOT_IN_LABELS.sub("-", text)[:_MAX_LABEL_LENGTH].strip("._-")


def condition_reason(text: str) -> str:
    """Return the text as the reason of a condition: a letter, then letters, digits and _,:."""
    word = _NOT_IN_REASONS.sub("_", text)[:_MAX_REASON_LENGTH].strip("_,:")
    if not word:
        return UNKNOWN_REASON
    return word if word[0].isalpha() else f"Code_{word}"


def _gpu_device(gpu: Gpu) -> Device:
    return Device(
        type=DeviceType.GPU,
        id=gpu.uuid,
        minor=gpu.minor,
        resources={
            GPU_CORE: _WHOLE,
            GPU_MEMORY: memory_text(gpu.memory),
            GPU_MEMORY_RATIO: _WHOLE,
        },
        topology=gpu.topology,
        error=gpu.error,
    )


def _xpu_device(xpu: Xpu) -> Device:
    return Device(
        type=DeviceType.GPU,
        id=xpu.uuid,
        minor=xpu.minor,
        resources={GPU_MEMORY_RATIO: _WHOLE, **xpu.resources},
        topology=xpu.topology,
        error=xpu.error,
        message=xpu.message,
    )


def _rdma_device(interface: RdmaInterface) -> Device:
    idle = ", ".join(map(str, interface.idle_ports))
    trouble = f"not active: port {idle} of {interface.name}" if idle else "no port is known"
    return Device(
        type=DeviceType.RDMA,
        id=interface.topology.bus,
        minor=interface.minor,
        resources={RDMA: _WHOLE},
        topology=interface.topology,
        error="" if interface.active else "PortNotActive",
        message="" if interface.active else trouble,
        functions=interface.functions,
    )


def _gpu_labels(gpus: GpuSet) -> dict[str, str]:
    """Labels of GPUs; without any none, and no model where they differ."""
    if not gpus.gpus:
        return {}
    models = {gpu.model for gpu in gpus.gpus}
    model = models.pop().removeprefix("NVIDIA ") if len(models) == 1 else ""
    return {
        GPU_VENDOR: "nvidia",
        GPU_MODEL: label_value(model),
        GPU_DRIVER: label_value(gpus.driver),
    }


def _xpu_labels(xpus: tuple[Xpu, ...]) -> dict[str, str]:
    """Vendor and model of the first; a policy where devices are connected with each other."""
    policy = ""
    if any(xpu.links for xpu in xpus):
        policy = "Honor" if any(xpu.must_honor_partition for xpu in xpus) else "Prefer"
    return {
        GPU_VENDOR: label_value(xpus[0].vendor),
        GPU_MODEL: label_value(xpus[0].model),
        PARTITION_POLICY: policy,
    }
