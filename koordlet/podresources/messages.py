"""The few fields of the kubelet's answer that are read or added; the others pass as they are.

Source: Kubernetes, kubelet pod resources API v1 (api.proto); Protocol Buffers, encoding.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

_PODS = 1  # of the answer
_POD_NAME, _POD_NAMESPACE, _CONTAINERS = 1, 2, 3  # of a pod
_DEVICES = 2  # of a container
_RESOURCE, _IDS = 1, 2  # of devices
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_LONGEST_VARINT = 10


class GivenDevices(NamedTuple):
    """Devices of one resource that a pod was given."""

    resource: str
    ids: tuple[str, ...]


class Field(NamedTuple):
    """One field of a message: its number, its bytes without a tag, and all of its bytes."""

    number: int
    value: bytes
    whole: bytes


DevicesOf = Callable[[str, str], Iterable[GivenDevices]]
"""Returns the devices of the pod with this namespace and name."""


def with_devices(answer: bytes, devices_of: DevicesOf) -> bytes:
    """Return a List answer in which the first container of each pod has the pod's devices as well.

    A container's devices are sorted by resource.

    Raises:
        ValueError: it is no such message.
    """
    return b"".join(
        _message(_PODS, _pod(field.value, devices_of)) if field.number == _PODS else field.whole
        for field in fields_of(answer)
    )


def fields_of(message: bytes) -> Iterator[Field]:
    """The fields of a message. Raises ValueError: it is none."""
    at = 0
    while at < len(message):
        start = at
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("a field without a number")
        first = at
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind == _BYTES:
            length, first = _varint(message, at)
            at = first + length
        elif kind in _SIZES:
            at += _SIZES[kind]
        else:
            raise ValueError(f"a field of type {kind}")
        if at > len(message):
            raise ValueError("a field that is cut off")
        yield Field(number, message[first:at], message[start:at])


def _pod(pod: bytes, devices_of: DevicesOf) -> bytes:
    fields = list(fields_of(pod))
    name, namespace = _text(fields, _POD_NAME), _text(fields, _POD_NAMESPACE)
    given = [*devices_of(namespace, name)]
    first = next((i for i, field in enumerate(fields) if field.number == _CONTAINERS), None)
    if not given or first is None:
        return pod
    parts = [field.whole for field in fields]
    parts[first] = _message(_CONTAINERS, _container(fields[first].value, given))
    return b"".join(parts)


def _container(container: bytes, given: Iterable[GivenDevices]) -> bytes:
    fields = list(fields_of(container))
    devices = [
        (_text(list(fields_of(field.value)), _RESOURCE), field.whole)
        for field in fields
        if field.number == _DEVICES
    ]
    devices += [(each.resource, _message(_DEVICES, _devices(each))) for each in given]
    devices.sort(key=lambda device: device[0])
    others = b"".join(field.whole for field in fields if field.number != _DEVICES)
    return others + b"".join(whole for _, whole in devices)


def _devices(given: GivenDevices) -> bytes:
    ids = b"".join(_message(_IDS, each.encode()) for each in given.ids)
    return _message(_RESOURCE, given.resource.encode()) + ids


def _text(fields: Iterable[Field], number: int) -> str:
    """The text of a field; the last one counts, "" when there is none. Raises ValueError."""
    found = [field.value for field in fields if field.number == number]
    return found[-1].decode() if found else ""


def _message(number: int, value: bytes) -> bytes:
    return _written(number << 3 | _BYTES) + _written(len(value)) + value


def _written(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number and where it ends."""
    value = 0
    for place in range(_LONGEST_VARINT):
        if at >= len(message):
            break
        value |= (message[at] & 0x7F) << 7 * place
        at += 1
        if message[at - 1] < 0x80:
            return value, at
    raise ValueError("a number that does not end")
