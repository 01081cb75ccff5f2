"""Devices that the scheduler gave to a pod: checks, environment and mounts, pod-resources."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from koord.api.annotations import (
    DEVICE_ALLOCATED,
    AllocatedDevice,
    device_allocations,
    devices_of_container,
)
from koord.api.pod import Pod
from koord.api.quantity import Quantity
from koord.util.errors import InvalidObject
from koordlet.rules.devices import (
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    Device,
    DeviceType,
    NodeDevices,
)


def allocated_gpus(
    allocated: Iterable[AllocatedDevice], devices: NodeDevices
) -> tuple[Device, ...]:
    """Return the node's GPUs with the minors that a pod was given, in its order, each once.

    Raises:
        InvalidObject: the node has no such GPU, or it is not known now which it has.
    """
    by_minor = {each.minor: each for each in _devices_of_type(DeviceType.GPU, devices)}
    found: dict[int, Device] = {}
    for each in allocated:
        gpu = by_minor.get(each.minor)
        if gpu is None or each.id not in ("", gpu.id):
            raise _no_such_device(DeviceType.GPU, f"minor {each.minor} {each.id}".strip())
        found[each.minor] = gpu
    return tuple(found.values())


def allocated_functions(
    allocated: Iterable[AllocatedDevice], devices: NodeDevices
) -> tuple[str, ...]:
    """Return the PCI addresses of the RDMA functions that a pod was given, each once.

    They are those of the node, not of the annotation: the virtual functions of an interface, or the
    interface itself for a pod that was given the whole of it.

    Raises:
        InvalidObject: the node has no such interface or function, or it is not known now.
    """
    by_id = {each.id: each for each in _devices_of_type(DeviceType.RDMA, devices)}
    found: dict[str, None] = {}
    for each in allocated:
        interface = by_id.get(each.id)
        if interface is None:
            raise _no_such_device(DeviceType.RDMA, each.id)
        for function in each.functions:
            if function not in interface.functions:
                raise _no_such_device(DeviceType.RDMA, function)
            found[function] = None
        if not each.functions:
            found[interface.id] = None
    return tuple(found)


def _devices_of_type(kind: DeviceType, devices: NodeDevices) -> list[Device]:
    if kind not in devices.known:
        wanted = f"the {kind.value} devices of this node to be known"
        raise InvalidObject(DEVICE_ALLOCATED, wanted=wanted, found="not yet")
    return [each for each in devices.devices if each.type is kind]


def _no_such_device(kind: DeviceType, found: str) -> InvalidObject:
    wanted = f"a {kind.value} device of this node"
    return InvalidObject(DEVICE_ALLOCATED, wanted=wanted, found=found)


ISOLATION_PROVIDER, HAMI_CORE = "koordinator.sh/gpu-isolation-provider", "HAMi-core"
LOCK_DIRECTORY = "/tmp/vgpulock"  # noqa: S108  HAMi-core's own path, which its library has built in
_WHOLE = 100  # percent of one GPU
_NO_GPUS = "void"  # images of CUDA say "all", which NVIDIA's runtime takes at its word
_ROUNDING = 2  # percent: a share is cut to whole ones, and drivers differ in the memory they show
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")


@dataclass(frozen=True, slots=True)
class BindMount:
    """A file or directory of the node in a container, with all that is mounted below it."""

    source: str
    destination: str


@dataclass(frozen=True, slots=True)
class GpuEnvironment:
    """Variables and mounts of one container. directory: to be made anew on the node; "": none."""

    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[BindMount, ...] = ()
    directory: str = ""


def gpu_environment(
    pod: Pod, container: str, devices: NodeDevices, library: str, *, monitored: bool
) -> GpuEnvironment:
    """Return the environment of a container; empty for a pod without GPUs.

    All containers of a pod see the same GPUs, unless the annotation says which container has which.
    library: HAMi-core's, a checked path. monitored: HAMi's monitor gets a directory of each
    container.

    Raises:
        InvalidObject: the annotation is malformed, names what this node does not have, or gives
            more of a GPU than there is.
    """
    text = pod.annotations.get(DEVICE_ALLOCATED)
    given = device_allocations(text).get(DeviceType.GPU, ()) if text is not None else ()
    if not given:
        return GpuEnvironment()
    allocated = devices_of_container(given, container)
    if not allocated:
        return GpuEnvironment({"NVIDIA_VISIBLE_DEVICES": _NO_GPUS})
    gpus = allocated_gpus(allocated, devices)
    env = {"NVIDIA_VISIBLE_DEVICES": ",".join(str(gpu.minor) for gpu in gpus)}
    if pod.labels.get(ISOLATION_PROVIDER) != HAMI_CORE:
        return GpuEnvironment(env)
    limits = dict(_limits(pod, allocated[0], gpus[0]))
    if not limits:
        return GpuEnvironment(env)
    env |= limits | {"LD_PRELOAD": library}
    mounts = (BindMount(library, library), BindMount(LOCK_DIRECTORY, LOCK_DIRECTORY))
    if not monitored:
        return GpuEnvironment(env, mounts)
    below = str(PurePosixPath(library).parent)
    name = f"{_checked_name('uid', pod.uid)}_{_checked_name('container', container)}"
    directory = f"{below}/containers/{name}"
    env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = f"{below}/{name}.cache"
    return GpuEnvironment(env, (*mounts, BindMount(directory, below)), directory)


def _limits(pod: Pod, allocated: AllocatedDevice, gpu: Device) -> Iterator[tuple[str, str]]:
    """The limits of HAMi-core, by variable; none for a pod that has the whole GPU.

    Of its share in percent and its memory the pod requests one, and the other follows from the
    card's memory: it counts only as far as it does, but for rounding.
    """
    ratio = _allocated_amount(allocated, GPU_MEMORY_RATIO)
    there = Quantity.parse(gpu.resources.get(GPU_MEMORY, "0")).integer
    by_memory = any(GPU_MEMORY in one.requests for one in pod.containers + pod.init_containers)
    if ratio >= _WHOLE and not by_memory:
        return
    memory = _allocated_amount(allocated, GPU_MEMORY, most=there)
    if ratio >= _WHOLE and memory * _WHOLE >= there * (_WHOLE - _ROUNDING):
        return
    if not by_memory:
        memory = min(memory, there * min(ratio + _ROUNDING, _WHOLE) // _WHOLE)
    yield "CUDA_DEVICE_MEMORY_LIMIT", str(memory)
    if GPU_CORE in allocated.resources:
        yield "CUDA_DEVICE_SM_LIMIT", str(_allocated_amount(allocated, GPU_CORE, most=_WHOLE))


def _allocated_amount(allocated: AllocatedDevice, name: str, *, most: int | None = None) -> int:
    """A quantity of the device, at least 1. most: that the GPU has."""
    text = allocated.resources.get(name)
    amount = 0 if text is None else Quantity.parse(text).integer
    if amount < 1 or (most is not None and amount > most):
        wanted = "at least 1" if most is None else f"1 to {most}"
        raise InvalidObject(
            f"{DEVICE_ALLOCATED}.gpu[0].resources.{name}", wanted=wanted, found=text
        )
    return amount


def _checked_name(what: str, text: str) -> str:
    """A name that becomes part of a path."""
    if not _NAME.fullmatch(text):
        wanted = "at most 63 letters, digits and -"
        raise InvalidObject(f"{what} of the pod", wanted=wanted, found=text)
    return text


NVIDIA_GPU, RDMA = "nvidia.com/gpu", "koordinator.sh/rdma"


def kubelet_devices(pod: Pod, devices: NodeDevices) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(resource, ids) of the GPUs, by UUID, and RDMA functions, by PCI address, of a pod.

    Raises:
        InvalidObject: its annotation is malformed, or names what this node does not have.
    """
    text = pod.annotations.get(DEVICE_ALLOCATED)
    if text is None:
        return
    found = device_allocations(text)
    if gpus := found.get(DeviceType.GPU):
        yield NVIDIA_GPU, tuple(gpu.id for gpu in allocated_gpus(gpus, devices))
    if rdma := found.get(DeviceType.RDMA):
        yield RDMA, allocated_functions(rdma, devices)
