"""The devices in a pod's annotation, measured by what its containers request. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from koord.api.annotations import AllocatedDevice, annotation_fields, device_allocations
from koord.api.pod import Container, Pod, pod_total
from koord.api.quantity import Quantity
from koord.util.errors import InvalidObject
from koordlet.rules.devices import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA, DeviceType

DEVICES_HINT = "scheduling.koordinator.sh/device-allocate-hint"
JOINT_ALLOCATE = "scheduling.koordinator.sh/device-joint-allocate"
FPGA, GPU, GPU_SHARED = "koordinator.sh/fpga", "koordinator.sh/gpu", "koordinator.sh/gpu.shared"
WHOLE = 100  # percent of one device
_MIN_SHARE = 0.001  # of a device that is given: a small part of its memory is 0 percent
FUNCTION = "rdma function"

Shares = Mapping[tuple[str, str], float]
"""Percent by kind and name of a device: the minor of a GPU, the PCI address of an RDMA function."""

_GPU_CARDS = ("nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu")  # units: whole cards
_OF_NPU = ("huawei.com/npu-core", "huawei.com/npu-cpu", "huawei.com/npu-dvpp")
_LEGACY_RESOURCES = "kubernetes.io/"  # the prefix of names that Koordinator still reads
_RESOURCES = "koordinator.sh/"
_COUNTED: Mapping[str, str] = {DeviceType.RDMA.value: RDMA, "fpga": FPGA}
_ANY = 2**63


class DevicesNotRequested(Exception):
    """A pod was given devices that its containers do not request. The text says which."""


def device_shares(pod: Pod, text: str) -> Shares:
    """Return the devices that a pod's annotation gives it; the text is the annotation's.

    Types of devices that Koordinator does not know are left out: nothing here gives them away.

    Raises:
        InvalidObject: the annotation is malformed.
        DevicesNotRequested: it gives more than the pod's containers request.
    """
    given = device_allocations(text)
    shares: dict[tuple[str, str], float] = {}
    for kind, devices in given.items():
        parts: Iterable[tuple[tuple[str, str], float]] = ()
        if devices and kind == DeviceType.GPU:
            _check_gpus(pod, devices)
            parts = [((kind, str(each.minor)), _percent(each)) for each in devices]
        elif devices and kind in _COUNTED:
            parts = _counted(kind, devices, _limit(pod, kind, given))
        for name, percent in parts:
            shares[name] = shares.get(name, 0) + max(percent, _MIN_SHARE)
    return shares


def _check_gpus(pod: Pod, devices: Sequence[AllocatedDevice]) -> None:
    """Raise DevicesNotRequested for more cards, or more of a card, than requested."""
    asked = _gpu_request(pod)
    whole = max(asked.get(GPU_CORE, 0), asked.get(GPU_MEMORY_RATIO, 0))
    cards = asked.pop(GPU_SHARED, 0) or max(1, -(-whole // WHOLE))
    if not asked:
        raise DevicesNotRequested("a GPU: its containers request none")
    if len(devices) > cards:
        raise DevicesNotRequested(f"{len(devices)} GPUs: its containers request {cards}")
    # Each of the two follows from the other; a reader needs the card's memory.
    if GPU_MEMORY in asked:
        asked.setdefault(GPU_MEMORY_RATIO, WHOLE * cards)
    elif GPU_MEMORY_RATIO in asked:
        asked[GPU_MEMORY] = _ANY
    for device in devices:
        for name, quantity in device.resources.items():
            most = asked.get(name, 0) // cards
            if not 0 <= Quantity.parse(quantity).integer <= most:
                found = f"{name} {quantity} of GPU {device.minor}"
                raise DevicesNotRequested(f"{found}: its containers request {most} of a GPU")


def _gpu_request(pod: Pod) -> dict[str, int]:
    """Amounts in the normal form, by name, without those that are 0."""
    both = WHOLE * sum(_requested(pod, name) for name in _GPU_CARDS) + _requested(pod, GPU)
    asked = {name: both + _requested(pod, name) for name in (GPU_CORE, GPU_MEMORY_RATIO)}
    asked |= {name: _requested(pod, name) for name in (GPU_MEMORY, GPU_SHARED, *_OF_NPU)}
    return {name: amount for name, amount in asked.items() if amount > 0}


def _percent(gpu: AllocatedDevice) -> int:
    """The share of a card; the whole of it where the request names none."""
    text = gpu.resources.get(GPU_MEMORY_RATIO) or gpu.resources.get(GPU_CORE)
    return WHOLE if text is None else Quantity.parse(text).integer


class _DeviceLimit(NamedTuple):
    """The number of devices that a pod may have, and the amount of each."""

    devices: float
    amount: int


def _limit(pod: Pod, kind: str, given: Mapping[str, Sequence[AllocatedDevice]]) -> _DeviceLimit:
    """Raises DevicesNotRequested: none are requested."""
    asked = _requested(pod, _COUNTED[kind])
    if asked <= 0:
        raise DevicesNotRequested(f"a device of type {kind}: its containers request none")
    hint = _written(pod, DEVICES_HINT).get(kind)
    strategy = hint.get("allocateStrategy") if isinstance(hint, Mapping) else None
    whole = isinstance(hint, Mapping) and hint.get("exclusivePolicy") == "DeviceLevel"
    if asked > WHOLE:
        limit = _DeviceLimit(-(-asked // WHOLE), WHOLE)
    elif strategy == "ApplyForAll":
        limit = _DeviceLimit(inf, asked)
    elif strategy == "RequestsAsCount":
        limit = _DeviceLimit(asked, WHOLE if whole else 1)
    else:
        limit = _DeviceLimit(1, asked)
    joint = _written(pod, JOINT_ALLOCATE).get("deviceTypes")
    if isinstance(joint, list) and kind in joint[1:] and joint[0] == DeviceType.GPU:
        gpus = given.get(DeviceType.GPU, ())  # at most one for each, and these are requested
        limit = limit._replace(devices=max(limit.devices, len(gpus)))
    return limit


def _counted(
    kind: str, devices: Sequence[AllocatedDevice], limit: _DeviceLimit
) -> Iterator[tuple[tuple[str, str], float]]:
    """The shares of devices that are requested by percent or number."""
    if len(devices) > limit.devices:
        found = f"{len(devices)} devices of type {kind}"
        raise DevicesNotRequested(f"{found}: its containers request {limit.devices}")
    for device in devices:
        text = device.resources.get(_COUNTED[kind])
        amount = limit.amount if text is None else Quantity.parse(text).integer
        found = f"{amount} of {kind} {device.id or device.minor}"
        if not 0 <= amount <= limit.amount:
            raise DevicesNotRequested(f"{found}: its containers request {limit.amount}")
        if len(device.functions) > max(amount, 1):
            raise DevicesNotRequested(f"{len(device.functions)} functions, but {found}")
        yield (kind, device.id or str(device.minor)), amount
        yield from (((FUNCTION, function), WHOLE) for function in device.functions)


def _written(pod: Pod, annotation: str) -> Mapping[str, object]:
    """The object that the pod's owner has written; empty where it is absent or malformed."""
    try:
        return annotation_fields(pod.annotations.get(annotation, "{}"), annotation).raw
    except InvalidObject:
        return {}


def _requested(pod: Pod, name: str) -> int:
    """The most that containers request at a time, by either of a resource's names."""
    names = (name, name.replace(_RESOURCES, _LEGACY_RESOURCES))
    return pod_total(pod, lambda container: max(_of(container, each) for each in names))


def _of(container: Container, name: str) -> int:
    text = container.requests.get(name) or container.limits.get(name)
    return max(Quantity.parse(text).integer, 0) if text else 0
