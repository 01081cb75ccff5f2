"""ttrpc: requests and responses over a stream, each behind a header of ten bytes.

Source: github.com/containerd/ttrpc, PROTOCOL.md.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from koordlet.runtimehooks.wire.errors import malformed
from koordlet.runtimehooks.wire.protobuf import Message, data, integer, message, text

HEADER_BYTES = 10
LONGEST_DATA = 4 << 20  # bytes of a message behind its header

_HEADER = struct.Struct(">IIBB")


class Kind(IntEnum):
    """The kind of a message."""

    REQUEST = 1
    RESPONSE = 2


class Code(IntEnum):
    """The result of a call, as of gRPC."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    UNIMPLEMENTED = 12


@dataclass(frozen=True, slots=True)
class Status(Message):
    """The error of a call."""

    code: int = integer(1)
    message: str = text(2)


@dataclass(frozen=True, slots=True)
class Request(Message):
    """A call. timeout_ns 0: none."""

    service: str = text(1)
    method: str = text(2)
    payload: bytes = data(3)
    timeout_ns: int = integer(4)


@dataclass(frozen=True, slots=True)
class Response(Message):
    """The answer to a call. status None: it went well."""

    status: Status | None = message(1, Status)
    payload: bytes = data(2)


class Frame(NamedTuple):
    """One message of a stream: a call and its answer have the same stream."""

    stream: int
    kind: int
    content: bytes


def packed(stream: int, kind: Kind, content: bytes) -> bytes:
    """Return a message with its header. Raises WireError: it is too long."""
    if len(content) > LONGEST_DATA:
        raise malformed("a message", f"at most {LONGEST_DATA} bytes", len(content))
    return _HEADER.pack(len(content), stream, kind, 0) + content


class StreamReader:
    """Takes the messages of one connection apart, however the bytes arrive."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, arrived: bytes) -> Iterator[Frame]:
        """Yield each message that is complete. Raises WireError."""
        self._rest += arrived
        while len(self._rest) >= HEADER_BYTES:
            length, stream, kind, _ = _HEADER.unpack_from(self._rest)
            if length > LONGEST_DATA:
                raise malformed("a message", f"at most {LONGEST_DATA} bytes", length)
            end = HEADER_BYTES + length
            if len(self._rest) < end:
                return
            content = bytes(self._rest[HEADER_BYTES:end])
            del self._rest[:end]
            yield Frame(stream, kind, content)
