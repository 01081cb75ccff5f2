"""Kernel files that stay open between reads, which makes a read six times cheaper."""

import errno
import os
import resource
from collections import deque
from typing import NamedTuple

from koordlet.host.errors import Hung, KernelFileError, TooLarge
from koordlet.host.files import MAX_BYTES

DEFAULT_BUDGET = 4096  # held files; each costs the kernel about 6 kB once it was read
IDLE_TICKS = 60  # a file that was not read for so long is closed
_SWEEP_TICKS = 16

_CHUNK = 16 * 1024
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


class _Held:
    __slots__ = ("fd", "tick")

    def __init__(self, fd: int, tick: int) -> None:
        self.fd = fd
        self.tick = tick  # when it was last read


class Descriptors:
    """Reads files and keeps up to `budget` of them open, the least recently read giving way.

    A file that was read in this tick or the one before is never closed for another: reading more
    files than the budget in turns would otherwise open each of them every time. Those beyond the
    budget are opened for each read.

    A file that was removed stays readable while it is held, unless its file system is the
    kernel's own: use a budget of 0 on other trees.

    One thread reads. Only give_up may be called by another, while the reader hangs.
    """

    def __init__(self, budget: int = DEFAULT_BUDGET, *, max_bytes: int = MAX_BYTES) -> None:
        self.budget = budget
        self._max_bytes = max_bytes
        self._held: dict[str, _Held] = {}
        self._hung: set[str] = set()
        self._tick = 0
        self._evictable: deque[str] | None = None  # oldest first; made when first needed in a tick
        self._opens = 0
        self._reads = 0

    def begin_tick(self) -> None:
        """Start a new tick; now and then closes what has not been read for many."""
        self._tick += 1
        self._evictable = None
        if self._tick % _SWEEP_TICKS == 0:
            for path in self._last_read_before(self._tick - IDLE_TICKS):
                self._close(path)

    def read(self, path: str) -> bytes:
        """Return the whole file, over a held descriptor.

        Raises:
            Vanished: the cgroup or process has ended.
            Unsupported: the kernel lacks the file.
            TooLarge: more than max_bytes.
            Hung: the file was given up.
            KernelFileError: it cannot be read.
        """
        held = self._held.get(path)
        if held is None:
            return self._read_new(path)
        held.tick = self._tick
        self._reads += 1
        try:
            data = os.pread(held.fd, _CHUNK, 0)
            return data if len(data) < _WHOLE else self._read_rest(held.fd, data, path)
        except OSError as err:
            self._close(path)
            if err.errno in _CLOSED_UNDER_US:  # a group may have been made anew under this name
                return self._read_new(path)
            raise KernelFileError.from_os_error(path, err) from err
        except TooLarge:
            self._close(path)
            raise

    def read_once(self, path: str) -> bytes:
        """Return the whole file, opened for this read only. Raises what read does."""
        fd = self._open(path)
        try:
            self._reads += 1
            return self._read_rest(fd, b"", path)
        except OSError as err:
            raise KernelFileError.from_os_error(path, err) from err
        finally:
            os.close(fd)

    def forget(self, *prefixes: str) -> None:
        """Close all files whose paths start with one of the prefixes."""
        for path in [path for path in self._held if path.startswith(prefixes)]:
            self._close(path)

    def give_up(self, path: str) -> None:
        """Leave a file alone from now on, because reading it does not return.

        Its descriptor stays open: the thread that hangs is still in there.
        """
        self._hung.add(path)
        self._held.pop(path, None)

    def close(self) -> None:
        """Close everything."""
        self.forget("")

    def stats(self) -> DescriptorStats:
        return DescriptorStats(len(self._held), self._opens, self._reads, len(self._hung))

    def _read_new(self, path: str) -> bytes:
        if len(self._held) >= self.budget and not self._make_room():
            return self.read_once(path)
        self._held[path] = held = _Held(self._open(path), self._tick)
        try:
            self._reads += 1
            return self._read_rest(held.fd, b"", path)
        except OSError as err:
            self._close(path)
            raise KernelFileError.from_os_error(path, err) from err
        except TooLarge:
            self._close(path)
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

    def _read_rest(self, fd: int, start: bytes, path: str) -> bytes:
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
            self._evictable = deque(self._last_read_before(self._tick - 1))
        while self._evictable:
            path = self._evictable.popleft()
            held = self._held.get(path)
            if held is not None and held.tick < self._tick - 1:
                self._close(path)
                return True
        return False

    def _last_read_before(self, tick: int) -> list[str]:
        """Paths of files that were last read before a tick, least recently read first."""
        idle = [(held.tick, path) for path, held in self._held.items() if held.tick < tick]
        return [path for _, path in sorted(idle)]

    def _close(self, path: str) -> None:
        held = self._held.pop(path, None)
        if held is not None:
            os.close(held.fd)


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
