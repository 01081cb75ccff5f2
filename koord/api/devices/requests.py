"""The devices that a pod requests, in any spelling, in one normal form.

Source: Koordinator, pkg/scheduler/plugins/deviceshare (device_resources, utils).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from koord.api.annotations import annotation_fields
from koord.api.devices.layout import (
    FPGA,
    FPGA_SHARE,
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    LEVELS,
    PREFIX,
    RDMA,
    RDMA_SHARE,
    WHOLE,
    Amounts,
    present_name,
)
from koord.api.fields import Fields
from koord.api.labelselector import SELECTOR, LabelSelector, parse_selector
from koord.util.errors import InvalidObject, KoordError

GPU_PERCENT, GPU_SHARED = f"{PREFIX}gpu", f"{PREFIX}gpu.shared"
CARDS = ("nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu")
NPU_CORE, NPU_CPU, NPU_DVPP = "huawei.com/npu-core", "huawei.com/npu-cpu", "huawei.com/npu-dvpp"

ALLOCATE_HINT = "scheduling.koordinator.sh/device-allocate-hint"
JOINT_ALLOCATE = "scheduling.koordinator.sh/device-joint-allocate"
PARTITION_SPEC = "scheduling.koordinator.sh/gpu-partition-spec"
HINT_ANNOTATIONS = (ALLOCATE_HINT, JOINT_ALLOCATE, PARTITION_SPEC)

_TYPE_OF = {
    **dict.fromkeys((*CARDS, GPU_PERCENT, GPU_SHARED, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO), GPU),
    **dict.fromkeys((NPU_CORE, NPU_CPU, NPU_DVPP), GPU),
    RDMA_SHARE: RDMA,
    FPGA_SHARE: FPGA,
}
RESOURCES = (
    *_TYPE_OF,
    *(f"kubernetes.io/{name}" for name in ("gpu", "gpu-core", "gpu-memory")),
    *(f"kubernetes.io/{name}" for name in ("gpu-memory-ratio", "rdma", "fpga")),
)
"""All names by which pods request devices, those of older versions too."""

_SHAPES: tuple[frozenset[str], ...] = tuple(
    frozenset(names)
    for names in (
        *((one,) for one in CARDS),
        (GPU_PERCENT,),
        (GPU_MEMORY,),
        (GPU_MEMORY_RATIO,),
        (GPU_CORE, GPU_MEMORY),
        (GPU_CORE, GPU_MEMORY_RATIO),
        (NPU_CORE, GPU_MEMORY_RATIO),
        (GPU_SHARED, GPU_MEMORY),
        (GPU_SHARED, GPU_MEMORY_RATIO),
        (GPU_SHARED, GPU_CORE, GPU_MEMORY),
        (GPU_SHARED, GPU_CORE, GPU_MEMORY_RATIO),
        (GPU_SHARED, NPU_CORE, NPU_CPU, GPU_MEMORY),
        (GPU_SHARED, NPU_CORE, NPU_CPU, GPU_MEMORY, NPU_DVPP),
        (RDMA_SHARE,),
        (FPGA_SHARE,),
    )
)
_PERCENTAGES = (GPU_CORE, GPU_MEMORY_RATIO)
_IN_UNITS = (GPU_PERCENT, RDMA_SHARE, FPGA_SHARE)


class InvalidRequest(KoordError):
    """No node can give the devices that a pod requests. The text is for people."""


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """GPUs: how many, and of each how much."""

    count: int
    each: Amounts
    shared: bool  # less than a whole one, of each; by memory alone that depends on the card


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceHint:
    """How the devices of one type are to be chosen."""

    selector: LabelSelector | None = None  # of the labels of devices; None: any
    functions: LabelSelector | None = None  # a virtual function is wanted; None: none is
    for_all: bool = False  # of every device
    counts: bool = False  # the request is a number of devices
    exclusive: str = ""  # DEVICE_LEVEL, PCIE_LEVEL, or ""
    scope: int = 0  # a level of LEVELS that the GPUs must have in common; 0: none
    per_container: bool = False  # each container gets devices, or shares of them, of its own


DEVICE_LEVEL, PCIE_LEVEL = "DeviceLevel", "PCIeLevel"
NO_HINT = DeviceHint()


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """The pod wants a partition of the table."""

    restricted: bool = False  # of the best group alone
    bandwidth: int = 0  # of the ring bus, bits a second


class RequestingContainer(Protocol):
    """A container of a pod, whatever else is known of it."""

    @property
    def name(self) -> str: ...

    @property
    def requests(self) -> tuple[tuple[str, int], ...]: ...

    @property
    def lasting(self) -> bool:
        """Whether it runs as long as the pod."""


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """The devices that one container requests."""

    name: str
    requests: Mapping[str, Amounts]  # by type, in the normal form
    lasting: bool = True  # False: an init container that ends before the regular ones start


@dataclass(frozen=True, kw_only=True)
class PodDevices:
    """All that a pod says of the devices that it requests."""

    requests: Mapping[str, Amounts]  # by type, in the normal form
    gpu: GpuRequest | None = None
    hints: Mapping[str, DeviceHint] = field(default_factory=dict)
    joint: tuple[str, ...] = ()  # types that are chosen together, the primary one first
    same_pcie: bool = False  # of joint types
    expand: bool = True  # joint types get a device on each PCIe switch of the primary one
    partition: PartitionSpec | None = None
    isolation: str = ""  # the provider that the pod needs for a share
    containers: tuple[ContainerDevices, ...] = ()
    """Those that request devices, as they start; none unless a hint gives each its own."""

    def hint(self, kind: str) -> DeviceHint:
        return self.hints.get(kind, NO_HINT)


def device_requests(requests: Iterable[tuple[str, int]]) -> dict[str, Amounts]:
    """Return the devices that are requested, by type, in the normal form.

    Raises:
        InvalidRequest: no node could give that.
    """
    found: dict[str, dict[str, int]] = {}
    for name, amount in requests:
        now = present_name(name)
        kind = _TYPE_OF.get(now)
        if kind is not None and amount > 0:
            amounts = found.setdefault(kind, {})
            amounts[now] = amounts.get(now, 0) + amount
    return {kind: _normal(_checked(found[kind])) for kind in sorted(found)}


def _checked(amounts: dict[str, int]) -> dict[str, int]:
    for name in _IN_UNITS:
        if not _is_share(amounts.get(name, 0)):
            raise InvalidRequest(f"invalid resource unit {name}: {amounts[name]}")
    names = frozenset(amounts)
    if names not in _SHAPES or not _is_divisible(amounts):
        raise InvalidRequest(f"invalid resource device requests: [{' '.join(sorted(names))}]")
    return amounts


def _is_share(percent: int) -> bool:
    return percent <= WHOLE or percent % WHOLE == 0


def _is_divisible(amounts: Amounts) -> bool:
    """Whether what is requested is a part of one device, or as much of each of several."""
    shared = amounts.get(GPU_SHARED)
    if shared is None:
        return all(_is_share(amounts.get(name, 0)) for name in _PERCENTAGES)
    if NPU_CORE in amounts:
        return shared <= 1 and amounts.get(NPU_DVPP, 0) <= WHOLE
    return all(
        amount % shared == 0 and amount // shared <= WHOLE
        for name, amount in amounts.items()
        if name in _PERCENTAGES
    )


def _normal(amounts: dict[str, int]) -> Amounts:
    for name in CARDS:
        if name in amounts:
            percent = amounts[name] * WHOLE
            return {GPU_CORE: percent, GPU_MEMORY_RATIO: percent}
    if GPU_PERCENT in amounts:
        return dict.fromkeys(_PERCENTAGES, amounts[GPU_PERCENT])
    return amounts


def gpu_request(amounts: Amounts) -> GpuRequest:
    """Return how many GPUs a request in the normal form is for, and how much of each.

    A request by core and memory for more than one card is for as many as it has cores of.
    """
    ratio, shared = amounts.get(GPU_MEMORY_RATIO, 0), amounts.get(GPU_SHARED, 0)
    percent = ratio or amounts.get(GPU_CORE, 0)
    count = shared or (percent // WHOLE if percent > WHOLE else 1)
    each = {name: amount // count for name, amount in amounts.items() if name != GPU_SHARED}
    if GPU_MEMORY_RATIO in each:
        return GpuRequest(count, each, each[GPU_MEMORY_RATIO] < WHOLE)
    return GpuRequest(count, each, GPU_MEMORY in each)


def pod_devices(
    requests: Iterable[tuple[str, int]],
    annotations: Mapping[str, str],
    isolation: str = "",
    containers: Iterable[RequestingContainer] | None = None,
) -> PodDevices | None:
    """Return what a pod requests of devices; None: nothing.

    isolation: the provider that it names. containers: of the pod; None: they are not known.

    Raises:
        InvalidRequest: a request or an annotation cannot be understood, or met by any node.
    """
    found = device_requests(requests)
    if not found:
        return None
    hints = _hints(annotations, found)
    joint, same_pcie, expand = _joint(annotations, found, hints)
    gpu = gpu_request(found[GPU]) if GPU in found else None
    if gpu is not None and gpu.count > 1 and hints.get(GPU, NO_HINT).scope == LEVELS["Device"]:
        text = f"requiredTopologyScope Device is one GPU, but {gpu.count} are requested"
        raise InvalidRequest(f"invalid DeviceAllocateHint annotation, err: {text}")
    return PodDevices(
        requests=found,
        gpu=gpu,
        hints=hints,
        joint=joint,
        same_pcie=same_pcie,
        expand=expand,
        partition=_partition(annotations),
        isolation=isolation,
        containers=_containers(hints, containers or ()),
    )


def _containers(
    hints: Mapping[str, DeviceHint], containers: Iterable[RequestingContainer]
) -> tuple[ContainerDevices, ...]:
    if not any(one.per_container for one in hints.values()):
        return ()
    found = []
    for one in containers:
        try:
            requests = device_requests(one.requests)
        except InvalidRequest as err:
            text = f"perContainer: container {one.name}: {err}"
            raise InvalidRequest(f"invalid DeviceAllocateHint annotation, err: {text}") from err
        if requests:
            found.append(ContainerDevices(one.name, requests, one.lasting))
    return tuple(found)


def _hints(annotations: Mapping[str, str], found: Iterable[str]) -> dict[str, DeviceHint]:
    text = annotations.get(ALLOCATE_HINT)
    if text is None:
        return {}
    try:
        fields = annotation_fields(text, ALLOCATE_HINT)
        every = {kind: fields.nested(kind) for kind in found if fields.get(kind) is not None}
    except InvalidObject as err:
        raise InvalidRequest(f"invalid DeviceAllocateHint annotation, err: {err}") from err
    return {kind: _hint(kind, each) for kind, each in every.items()}


def _hint(kind: str, fields: Fields) -> DeviceHint:
    where = f"DeviceHint, deviceType: {kind}, err"
    try:
        selector = _selector(fields, "selector")
    except InvalidObject as err:
        raise InvalidRequest(f"invalid Selector of {where}: {err}") from err
    try:
        functions = _selector(fields, "vfSelector")
    except InvalidObject as err:
        raise InvalidRequest(f"invalid VFSelector of {where}: {err}") from err
    try:
        strategy = fields.text("allocateStrategy")
        scope = LEVELS.get(fields.text("requiredTopologyScope"), 0)
        exclusive = fields.text("exclusivePolicy")
        per_container = fields.boolean("perContainer")
    except InvalidObject as err:
        raise InvalidRequest(f"invalid DeviceAllocateHint annotation, err: {err}") from err
    return DeviceHint(
        selector=selector,
        functions=functions,
        for_all=strategy == "ApplyForAll",
        counts=strategy == "RequestsAsCount",
        exclusive=exclusive,
        scope=scope if kind == GPU else 0,
        per_container=per_container,
    )


def _selector(fields: Fields, key: str) -> LabelSelector | None:
    value, where = fields.get(key), fields.path(key)
    if value is None:
        return None
    return parse_selector(SELECTOR.read(value, where, fold_case=True), where)


def _joint(
    annotations: Mapping[str, str], found: Mapping[str, Amounts], hints: Mapping[str, DeviceHint]
) -> tuple[tuple[str, ...], bool, bool]:
    """The joint types, whether they must be on the same PCIe switches, and expandToPCIes."""
    text = annotations.get(JOINT_ALLOCATE)
    if text is None:
        return (), False, True
    try:
        fields = annotation_fields(text, JOINT_ALLOCATE)
        named = fields.list_of("deviceTypes", _text, "the name of a type of devices")
        same_pcie = fields.text("requiredScope") == "SamePCIe"
        expand = fields.get("expandToPCIes") is None or fields.boolean("expandToPCIes")
    except InvalidObject as err:
        raise InvalidRequest(f"invalid DeviceJointAllocate annotation, err: {err}") from err
    kinds = [
        kind
        for kind in dict.fromkeys(named)
        if kind in found and not hints.get(kind, NO_HINT).for_all
    ]
    return tuple(kinds), same_pcie, expand


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(value)


def _partition(annotations: Mapping[str, str]) -> PartitionSpec | None:
    text = annotations.get(PARTITION_SPEC)
    if text is None:
        return None
    try:
        fields = annotation_fields(text, PARTITION_SPEC)
        restricted = fields.text("allocatePolicy") == "Restricted"
        bandwidth = fields.quantity("ringBusBandwidth")
        wanted = 0 if bandwidth is None else bandwidth.integer
    except InvalidObject as err:
        raise InvalidRequest(f"invalid GPUPartitionSpec annotation, err: {err}") from err
    return PartitionSpec(restricted, max(wanted, 0))
