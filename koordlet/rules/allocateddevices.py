"""Checks the devices that a pod says it was given against those that the node has."""

from collections.abc import Iterable

from koord.api.pods.deviceallocation import DEVICE_ALLOCATED, AllocatedDevice
from koord.util.errors import InvalidObject
from koordlet.rules.devices import Device, DeviceType, NodeDevices


def allocated_gpus(
    allocated: Iterable[AllocatedDevice], devices: NodeDevices
) -> tuple[Device, ...]:
    """Return the node's GPUs with the minors that a pod was given, in its order, each once.

    Raises:
        InvalidObject: the node has no such GPU, or it is not known now which it has.
    """
    by_minor = {each.minor: each for each in _of(DeviceType.GPU, devices)}
    found: dict[int, Device] = {}
    for each in allocated:
        gpu = by_minor.get(each.minor)
        if gpu is None or each.id not in ("", gpu.id):
            raise _not_here(DeviceType.GPU, f"minor {each.minor} {each.id}".strip())
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
    by_id = {each.id: each for each in _of(DeviceType.RDMA, devices)}
    found: dict[str, None] = {}
    for each in allocated:
        interface = by_id.get(each.id)
        if interface is None:
            raise _not_here(DeviceType.RDMA, each.id)
        for function in each.functions:
            if function not in interface.functions:
                raise _not_here(DeviceType.RDMA, function)
            found[function] = None
        if not each.functions:
            found[interface.id] = None
    return tuple(found)


def _of(kind: DeviceType, devices: NodeDevices) -> list[Device]:
    if kind not in devices.known:
        wanted = f"the {kind.value} devices of this node to be known"
        raise InvalidObject(DEVICE_ALLOCATED, wanted=wanted, found="not yet")
    return [each for each in devices.devices if each.type is kind]


def _not_here(kind: DeviceType, found: str) -> InvalidObject:
    wanted = f"a {kind.value} device of this node"
    return InvalidObject(DEVICE_ALLOCATED, wanted=wanted, found=found)
