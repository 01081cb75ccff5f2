"""Lines of a file, last first."""

import os
from collections.abc import Iterator

from koordlet.executor.audit.event import LONGEST_LINE

CHUNK = 64 << 10  # bytes


def lines_backwards(fd: int, size: int, chunk: int = CHUNK) -> Iterator[bytes]:
    """Yield the lines of the first size bytes of a file, last first, blank ones left out.

    What is after the last newline counts as a line. One longer than LONGEST_LINE is yielded as its
    last bytes, so nothing larger is ever in memory.

    Raises:
        OSError: the file cannot be read.
    """
    tail = b""  # of the line that begins further ahead
    while size > 0:
        start = max(size - chunk, 0)
        piece = os.pread(fd, size - start, start)
        size = start
        first, *rest = (piece + tail).split(b"\n")
        yield from filter(None, reversed(rest))
        tail = first[-LONGEST_LINE:]
    if tail:
        yield tail
