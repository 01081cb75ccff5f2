"""Files that are read now and then: opened, read and closed, with errors that name the path.

What the sampling pass reads every second goes through held descriptors instead.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from koordlet.host.errors import KernelFileError, TooLarge

MAX_BYTES = 4 * 1024 * 1024  # more than any kernel file that koordlet reads
T = TypeVar("T")


def read_file(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Return the whole file.

    Raises:
        TooLarge: it has more than limit bytes.
        KernelFileError: it cannot be read; Unsupported or Vanished when it is not there.
    """
    data = read_head(path, limit + 1)
    if len(data) > limit:
        found = f"more than {limit} bytes"
        raise TooLarge(path, wanted="a small text file", found=found, hint="check the root flags")
    return data


def read_head(path: Path, limit: int) -> bytes:
    """Return at most the first limit bytes of a file, without making the kernel produce the rest.

    Raises:
        KernelFileError: it cannot be read.
    """
    try:
        # Not blocking: a FIFO in place of a kernel file must not hang the caller.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return read_up_to(descriptor, limit)
        finally:
            os.close(descriptor)
    except OSError as err:
        raise KernelFileError.from_os_error(str(path), err) from err


def read_up_to(descriptor: int, limit: int) -> bytes:
    """Return at most the first limit bytes of an open file. Raises OSError."""
    chunks = []
    while limit > 0 and (chunk := os.read(descriptor, min(limit, 65536))):
        chunks.append(chunk)
        limit -= len(chunk)
    return b"".join(chunks)


def parse_file(path: Path, parse: Callable[[bytes], T]) -> T:
    """Return what a parser makes of a file.

    Raises:
        KernelFileError: it cannot be read, or the parser refuses its text.
    """
    data = read_file(path)
    try:
        return parse(data)
    except ValueError as err:
        raise KernelFileError(
            path, wanted="a well-formed file", found=str(err), hint="is this a kernel file?"
        ) from err


def names_in(directory: Path) -> list[str]:
    """Return the sorted names in a directory; none when it cannot be listed."""
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []
