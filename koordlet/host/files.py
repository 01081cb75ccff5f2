"""Kernel files: read once, or held open between reads, which makes a read six times cheaper.

Errors name the path. A held file stays open while its cgroup lives (os.pread).
"""

import errno
import os
import resource
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from koordlet.host.errors import Hung, KernelFileError, TooLarge

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
        KernelFileError: it cannot be read, or the parser rejects its text.
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


DEFAULT_BUDGET = 4096  # held files; each costs the kernel about 6 kB once it was read
IDLE_TICKS = 60  # a file that was not read for so long is closed
_SWEEP_TICKS = 16  # idle files are looked for once in so many: it takes a look at every file

_CHUNK = 16 * 1024  # bytes of a read; most files here are shorter
# The kernel fills a page as long as whole records fit, and the records of the files here are below
# 512 bytes (or the file is one record): a shorter answer is the whole file, so no second read is
# needed to learn that.
_WHOLE = 4096 - 512
_CLOSED_UNDER_US = frozenset({errno.ENODEV, errno.ESRCH})


class DescriptorStats(NamedTuple):
    """Counts of what holding files costs and saves."""

    held: int
    opens: int  # since the start
    reads: int
    hung: int  # files that are left alone because a read did not return


class HeldFile:
    """One file, read over a descriptor that stays open within the budget.

    Any number of these may be about one path; they share its descriptor.
    """

    __slots__ = ("_descriptors", "fd", "path", "tick")

    def __init__(self, descriptors: "Descriptors", path: str) -> None:
        self.path = path
        self.fd = -1  # -1: it is not open
        self.tick = 0  # when it was last read
        self._descriptors = descriptors

    def read(self) -> bytes:
        """Return the whole file. Raises what Descriptors.read does."""
        owner, fd = self._descriptors, self.fd
        if fd < 0:
            return owner.read_closed(self)
        self.tick = owner.tick
        owner.reads += 1
        try:
            data = os.pread(fd, _CHUNK, 0)
            return data if len(data) < _WHOLE else owner.read_rest(fd, data, self.path)
        except OSError as err:
            owner.close_file(self)
            if err.errno in _CLOSED_UNDER_US:  # a group may have been made anew under this name
                return owner.read_closed(self)
            raise KernelFileError.from_os_error(self.path, err) from err
        except TooLarge:
            owner.close_file(self)
            raise


class Descriptors:
    """Reads files, keeps up to `budget` of them open, and closes the least recently read.

    A file that was read in this tick or the one before is never closed for another: reading more
    files than the budget in turns would otherwise open each of them every time. Those beyond the
    budget are opened for each read.

    A file that was removed stays readable while it is held, unless its file system is the
    kernel's own: use a budget of 0 on other trees.

    One thread reads. Only abandon may be called by another, while the reader hangs.
    """

    def __init__(self, budget: int = DEFAULT_BUDGET, *, max_bytes: int = MAX_BYTES) -> None:
        self.budget = budget
        self._max_bytes = max_bytes
        self.tick = 0
        self.reads = 0  # since the start
        self._held: dict[str, HeldFile] = {}  # those that are open
        self._hung: set[str] = set()
        # Oldest first; made when first needed in a tick.
        self._evictable: deque[HeldFile] | None = None
        self._opens = 0

    def begin_tick(self) -> None:
        """Start a new tick; now and then closes what has not been read for many."""
        self.tick += 1
        self._evictable = None
        if self.tick % _SWEEP_TICKS == 0:
            for file in self._last_read_before(self.tick - IDLE_TICKS):
                self.close_file(file)

    def read(self, path: str) -> bytes:
        """Return the whole file, over a held descriptor.

        Raises:
            Vanished: the cgroup or process has ended.
            Unsupported: the kernel lacks the file.
            TooLarge: more than max_bytes.
            Hung: the file was given up.
            KernelFileError: it cannot be read.
        """
        return self.file(path).read()

    def file(self, path: str) -> HeldFile:
        """Return what reads this path, for callers that read it again and again."""
        return self._held.get(path) or HeldFile(self, path)

    def read_once(self, path: str) -> bytes:
        """Return the whole file, opened for this read only. Raises what read does."""
        fd = self._open(path)
        try:
            self.reads += 1
            return self.read_rest(fd, b"", path)
        except OSError as err:
            raise KernelFileError.from_os_error(path, err) from err
        finally:
            os.close(fd)

    def forget(self, *prefixes: str) -> None:
        """Close all files whose paths start with one of the prefixes."""
        for file in [file for path, file in self._held.items() if path.startswith(prefixes)]:
            self.close_file(file)

    def abandon(self, path: str) -> None:
        """Leave a file alone from now on, because reading it does not return.

        Its descriptor stays open: the thread that hangs is still in there.
        """
        self._hung.add(path)
        held = self._held.pop(path, None)
        if held is not None:
            held.fd = -1

    def close(self) -> None:
        """Close everything."""
        self.forget("")

    def stats(self) -> DescriptorStats:
        return DescriptorStats(len(self._held), self._opens, self.reads, len(self._hung))

    def read_closed(self, file: HeldFile) -> bytes:
        """Return the whole of a file that is not open, and keep it open if the budget allows."""
        path = file.path
        if (held := self._held.get(path)) is not None:
            return held.read()
        if len(self._held) >= self.budget and not self._make_room():
            return self.read_once(path)
        file.fd, file.tick = self._open(path), self.tick
        self._held[path] = file
        try:
            self.reads += 1
            return self.read_rest(file.fd, b"", path)
        except OSError as err:
            self.close_file(file)
            raise KernelFileError.from_os_error(path, err) from err
        except TooLarge:
            self.close_file(file)
            raise

    def _open(self, path: str) -> int:
        if path in self._hung:
            raise _hung(path)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as err:
            raise KernelFileError.from_os_error(path, err) from err
        if path in self._hung:  # given up while it was being opened
            os.close(fd)
            raise _hung(path)
        self._opens += 1
        return fd

    def read_rest(self, fd: int, start: bytes, path: str) -> bytes:
        """Return what has been read, and the rest of the file. Raises OSError, TooLarge."""
        chunks, size = [start], len(start)
        while chunk := os.pread(fd, _CHUNK, size):
            chunks.append(chunk)
            size += len(chunk)
            if size > self._max_bytes:
                raise TooLarge(
                    path,
                    wanted=f"at most {self._max_bytes} bytes",
                    found="more",
                    hint="check the root directory flags: this is no kernel file",
                )
        return b"".join(chunks)

    def _make_room(self) -> bool:
        if self._evictable is None:
            self._evictable = deque(self._last_read_before(self.tick - 1))
        while self._evictable:
            file = self._evictable.popleft()
            if file.fd >= 0 and file.tick < self.tick - 1:
                self.close_file(file)
                return True
        return False

    def _last_read_before(self, tick: int) -> list[HeldFile]:
        """Open files that were last read before a tick, least recently read first."""
        idle = [file for file in self._held.values() if file.tick < tick]
        return sorted(idle, key=lambda file: (file.tick, file.path))

    def close_file(self, file: HeldFile) -> None:
        """Close a file, if it is open."""
        self._held.pop(file.path, None)
        fd, file.fd = file.fd, -1
        if fd >= 0:
            os.close(fd)


def raise_nofile(wanted: int) -> int:
    """Let this process open up to `wanted` files, or as many as it may. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        return limit
    return soft


def _hung(path: str) -> Hung:
    return Hung(
        path,
        wanted="its text",
        found="that an earlier read has not returned",
        hint="look at the kernel log; restart koordlet to try again",
    )
