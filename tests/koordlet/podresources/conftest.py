"""Messages of the kubelet's pod resources API, written by hand."""

from collections.abc import Iterable


def varint(number: int) -> bytes:
    found = b""
    while number > 0x7F:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def message(number: int, value: bytes | str) -> bytes:
    """A field that has bytes: a text, or a message."""
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def devices(resource: str, *ids: str) -> bytes:
    return message(1, resource) + b"".join(message(2, each) for each in ids)


def container(name: str, *found: bytes, more: bytes = b"") -> bytes:
    return message(1, name) + b"".join(message(2, each) for each in found) + more


def pod(namespace: str, name: str, *containers: bytes) -> bytes:
    return message(1, name) + message(2, namespace) + b"".join(message(3, c) for c in containers)


def answer(pods: Iterable[bytes]) -> bytes:
    return b"".join(message(1, each) for each in pods)
