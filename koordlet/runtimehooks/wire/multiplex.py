"""Several connections in one: each piece of bytes is preceded by a connection's id and a length.

Source: github.com/containerd/nri, pkg/net/multiplex.
"""

import struct
from collections.abc import Iterator

from koordlet.runtimehooks.wire.errors import malformed
from koordlet.runtimehooks.wire.ttrpc import HEADER_BYTES, LONGEST_DATA

PLUGIN, RUNTIME = 1, 2  # connections: requests of the runtime to us, and ours to the runtime
LONGEST_RECEIVED = LONGEST_DATA + HEADER_BYTES  # bytes
LONGEST_SENT = 4096  # bytes: the runtime reads with a buffer of that size, and fails with more

_HEADER = struct.Struct(">II")


def frames(connection: int, content: bytes) -> bytes:
    """Return bytes of one connection as frames."""
    out = bytearray()
    for start in range(0, len(content), LONGEST_SENT):
        piece = content[start : start + LONGEST_SENT]
        out += _HEADER.pack(connection, len(piece)) + piece
    return bytes(out)


class FrameReader:
    """Takes frames apart, however the bytes arrive."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, arrived: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield connection and content of each frame that is complete. Raises WireError."""
        self._rest += arrived
        while len(self._rest) >= _HEADER.size:
            connection, length = _HEADER.unpack_from(self._rest)
            if length > LONGEST_RECEIVED:
                raise malformed("a frame", f"at most {LONGEST_RECEIVED} bytes", length)
            end = _HEADER.size + length
            if len(self._rest) < end:
                return
            content = bytes(self._rest[_HEADER.size : end])
            del self._rest[:end]
            yield connection, content
