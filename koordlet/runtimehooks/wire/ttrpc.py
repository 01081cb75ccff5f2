"""ttrpc over multiplexed connections: requests and responses behind headers, in frames."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from koordlet.runtimehooks.wire.protobuf import Message, data, integer, malformed, message, text

HEADER_BYTES = 10
MAX_DATA = 4 << 20  # bytes of a message behind its header

_HEADER = struct.Struct(">IIBB")


class MessageType(IntEnum):
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
    """One message of a stream: a call and its response have the same stream."""

    stream: int
    kind: int
    content: bytes


def packed(stream: int, kind: MessageType, content: bytes) -> bytes:
    """Return a message with its header. Raises WireError: it is too long."""
    if len(content) > MAX_DATA:
        raise malformed("a message", f"at most {MAX_DATA} bytes", len(content))
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
            if length > MAX_DATA:
                raise malformed("a message", f"at most {MAX_DATA} bytes", length)
            end = HEADER_BYTES + length
            if len(self._rest) < end:
                return
            content = bytes(self._rest[HEADER_BYTES:end])
            del self._rest[:end]
            yield Frame(stream, kind, content)


PLUGIN, RUNTIME = 1, 2  # connections: requests of the runtime to us, and ours to the runtime
MAX_RECEIVED = MAX_DATA + HEADER_BYTES  # bytes
MAX_SENT = 4096  # bytes: the runtime reads with a buffer of that size, and fails with more

_FRAME_HEADER = struct.Struct(">II")


def frames(connection: int, content: bytes) -> bytes:
    """Return bytes of one connection as frames."""
    out = bytearray()
    for start in range(0, len(content), MAX_SENT):
        piece = content[start : start + MAX_SENT]
        out += _FRAME_HEADER.pack(connection, len(piece)) + piece
    return bytes(out)


class FrameReader:
    """Takes frames apart, however the bytes arrive."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, arrived: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield connection and content of each frame that is complete. Raises WireError."""
        self._rest += arrived
        while len(self._rest) >= _FRAME_HEADER.size:
            connection, length = _FRAME_HEADER.unpack_from(self._rest)
            if length > MAX_RECEIVED:
                raise malformed("a frame", f"at most {MAX_RECEIVED} bytes", length)
            end = _FRAME_HEADER.size + length
            if len(self._rest) < end:
                return
            content = bytes(self._rest[_FRAME_HEADER.size : end])
            del self._rest[:end]
            yield connection, content
