"""The few fields of the kubelet's response that are read or added; the others pass as they are.

Source: Kubernetes, kubelet pod resources API v1 (api.proto).
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from koord.util.protobuf import Field, MalformedMessage, append, field, fields_of

_PODS = 1  # of the response
_POD_NAME, _POD_NAMESPACE, _CONTAINERS = 1, 2, 3  # of a pod
_DEVICES = 2  # of a container
_RESOURCE, _IDS = 1, 2  # of devices


class GivenDevices(NamedTuple):
    """Devices of one resource that a pod was given."""

    resource: str
    ids: tuple[str, ...]


DevicesOf = Callable[[str, str], Iterable[GivenDevices]]
"""Returns the devices of the pod with this namespace and name."""


def with_devices(response: bytes, devices_of: DevicesOf) -> bytes:
    """Return a List response whose first container of each pod has the pod's devices as well.

    A container's devices are sorted by resource.

    Raises:
        ValueError: it is no such message.
    """
    out = bytearray()
    for found in fields_of(response):
        if found.number == _PODS:
            append(out, _PODS, _pod(_bytes(found), devices_of))
        else:
            out += response[found.start : found.end]
    return bytes(out)


def _pod(pod: bytes, devices_of: DevicesOf) -> bytes:
    fields = list(fields_of(pod))
    given = [*devices_of(_text(fields, _POD_NAMESPACE), _text(fields, _POD_NAME))]
    first = next((each for each in fields if each.number == _CONTAINERS), None)
    if not given or first is None:
        return pod
    container = field(_CONTAINERS, _container(_bytes(first), given))
    return pod[: first.start] + container + pod[first.end :]


def _container(container: bytes, given: Iterable[GivenDevices]) -> bytes:
    others = bytearray()
    devices = []
    for found in fields_of(container):
        if found.number == _DEVICES:
            devices.append(_bytes(found))
        else:
            others += container[found.start : found.end]
    devices += map(_devices, given)
    for each in sorted(devices, key=lambda each: _text(fields_of(each), _RESOURCE)):
        append(others, _DEVICES, each)
    return bytes(others)


def _devices(given: GivenDevices) -> bytes:
    ids = b"".join(field(_IDS, each.encode()) for each in given.ids)
    return field(_RESOURCE, given.resource.encode()) + ids


def _text(fields: Iterable[Field], number: int) -> str:
    """The text of a field; the last one counts, "" when there is none. Raises ValueError."""
    found = [_bytes(each) for each in fields if each.number == number]
    return found[-1].decode() if found else ""


def _bytes(found: Field) -> bytes:
    """The bytes of a text or message. Raises MalformedMessage."""
    if not isinstance(found.value, bytes):
        raise MalformedMessage(f"wanted bytes as field {found.number}, found an integer")
    return found.value
