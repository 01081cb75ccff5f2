"""The annotation in which the scheduler writes down the devices of a pod.

Whoever may change a pod may write it, so it is a claim to be checked, and nothing of it may become
part of a path before it was.

Source: Koordinator, apis/extension/device_share.go.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from koord.api.decoding.annotation import annotation_fields
from koord.api.decoding.fields import Fields
from koord.util.errors import InvalidObject

DEVICE_ALLOCATED = "scheduling.koordinator.sh/device-allocated"
MOST_DEVICES = 256  # of one type
_LARGEST_MINOR = 2**31 - 1


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One device of a pod, as the annotation has it. resources maps names to quantities."""

    minor: int
    id: str
    resources: Mapping[str, str]
    functions: tuple[str, ...] = ()  # PCI addresses of virtual functions


def device_allocations(text: str) -> dict[str, tuple[AllocatedDevice, ...]]:
    """Return the devices of an annotation by type: gpu, rdma and others.

    Raises:
        InvalidObject: it is malformed, or names more devices than a node can have.
    """
    found = annotation_fields(text, DEVICE_ALLOCATED)
    return {kind: tuple(_devices(found, kind)) for kind in found.raw}


def _devices(found: Fields, kind: str) -> list[AllocatedDevice]:
    devices = [_device(fields) for fields in found.objects(kind)]
    if len(devices) > MOST_DEVICES:
        wanted = f"at most {MOST_DEVICES} devices"
        raise InvalidObject(found.path(kind), wanted=wanted, found=len(devices))
    return devices


def _device(fields: Fields) -> AllocatedDevice:
    minor = fields.integer("minor") or 0
    if not -1 <= minor <= _LARGEST_MINOR:
        raise InvalidObject(fields.path("minor"), wanted="a number of 31 bits", found=minor)
    functions = [each.text("busID") for each in fields.nested("extension").objects("vfs")]
    if len(functions) > MOST_DEVICES:
        wanted = f"at most {MOST_DEVICES} functions"
        raise InvalidObject(fields.path("extension.vfs"), wanted=wanted, found=len(functions))
    return AllocatedDevice(
        minor, fields.text("id"), fields.quantities("resources"), tuple(functions)
    )
