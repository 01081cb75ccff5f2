"""Cold memory by cgroup from the kernel's idle page tracking, a piece of the memory at a time.

The kernel clears a page's idle bit when the page is used. A pass looks at each page once: those of
files that are still idle since the pass before are cold, by the cgroup that they are charged to;
then their bits are set for the pass after it. What is set is no setting: it does not change what
the kernel does with a page, and nothing of it is to be restored.

Source: kernel docs, admin-guide/mm/idle_page_tracking and pagemap.
"""

import os
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import NamedTuple

from koordlet.host.errors import KernelFileError
from koordlet.host.idlefiles import BITMAP, FLAGS, OWNERS
from koordlet.host.paths import HostPaths
from koordlet.host.resource import Root

AGE = 300.0  # seconds without use after which a page is cold, as with kidled
PIECE = 4096  # page frames between two looks at the CPU time; no page is larger
_WORD = 64  # bits that the bitmap is read and written by
_ALL = b"\xff" * (PIECE // 8)
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Bits of kpageflags.
_LRU, _ACTIVE, _ANON, _SWAP_BACKED, _TAIL = (1 << bit for bit in (5, 6, 12, 14, 16))
_LOOKED_AT = _LRU | _ACTIVE | _ANON | _SWAP_BACKED | _TAIL


class _Files(NamedTuple):
    bitmap: int  # descriptors
    flags: int
    owners: int


class IdleTracking:
    """Goes over all page frames again and again, within a budget of CPU time."""

    def __init__(
        self, paths: HostPaths, cpu_time: Callable[[], float] = time.thread_time, age: float = AGE
    ) -> None:
        """cpu_time: seconds of CPU that this thread has used."""
        self._paths = paths
        self._bitmap = f"{paths.sys}/{BITMAP}"
        self._cpu_time = cpu_time
        self._age = age
        self._next = 0  # page frame
        self._marked = False  # whether a pass has set all bits before this one
        self._resumes = float("-inf")  # monotonic: when the next pass may begin
        self._counted: Counter[int] = Counter()
        self.passes = 0  # that have counted
        self.cold: Mapping[int, int] = {}  # bytes by inode of cgroup, of the latest such pass

    @property
    def under_way(self) -> bool:
        """Whether a pass has begun and not ended."""
        return self._next > 0

    def advance(self, now: float, budget: float) -> None:
        """Go on for so many seconds of CPU time, at least by a piece. now is monotonic.

        Raises:
            KernelFileError: a file cannot be read or written; Unsupported: there is none.
        """
        if not self.under_way and now < self._resumes:
            return
        ends = self._cpu_time() + budget
        try:
            with ExitStack() as opened:
                files = self._open(opened)
                while self._piece(files):
                    if self._cpu_time() >= ends:
                        return
        except OSError as err:
            raise KernelFileError.from_os_error(self._bitmap, err) from err
        self._end_pass(now)

    def _end_pass(self, now: float) -> None:
        self._resumes = now + self._age
        if self._marked:
            self.cold, self.passes = self._counted, self.passes + 1
        self._next, self._marked, self._counted = 0, True, Counter()

    def _open(self, opened: ExitStack) -> _Files:
        """Raises OSError, KernelFileError."""
        proc = self._paths.proc
        modes = {self._bitmap: os.O_RDWR, f"{proc}/{FLAGS}": 0, f"{proc}/{OWNERS}": 0}
        descriptors = []
        for path, mode in modes.items():
            try:
                descriptor = os.open(path, mode | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError as err:
                raise KernelFileError.from_os_error(path, err) from err
            opened.callback(os.close, descriptor)
            descriptors.append(descriptor)
        self._paths.check(descriptors[0], Root.SYS, self._bitmap)
        return _Files(*descriptors)

    def _piece(self, files: _Files) -> bool:
        """Look at some page frames, and set their bits; False: there are no more."""
        idle = _words(os.pread(files.bitmap, PIECE // 8, self._next // 8))
        if not idle:
            return False
        if self._marked and any(idle):
            frames = len(idle) * _WORD
            flags = _words(os.pread(files.flags, frames * 8, self._next * 8))
            owners = _words(os.pread(files.owners, frames * 8, self._next * 8))
            for owner, pages in cold_pages(idle, flags, owners):
                self._counted[owner] += pages * _PAGE
        os.pwrite(files.bitmap, _ALL[: len(idle) * 8], self._next // 8)
        self._next += len(idle) * _WORD
        return True


def _words(data: bytes) -> "array[int]":
    """The whole words at the beginning; there is no half one but at the end."""
    words = array("Q")
    words.frombytes(data[: len(data) // words.itemsize * words.itemsize])
    return words


def cold_pages(
    idle: "array[int]", flags: "array[int]", owners: "array[int]"
) -> Iterator[tuple[int, int]]:
    """Yield the inode of the cgroup and the page frames of each idle page of a file.

    Only what is inactive counts, as with kidled: no anonymous or shared memory, nothing that was
    used of late. A large page has its bit and its flags at its head.
    """
    known = min(len(flags), len(owners))
    for number, word in enumerate(idle):
        rest = word
        while rest:
            lowest = rest & -rest
            rest ^= lowest
            frame = number * _WORD + lowest.bit_length() - 1
            if frame < known and flags[frame] & _LOOKED_AT == _LRU:
                after = frame + 1
                while after < known and flags[after] & _TAIL:
                    after += 1
                yield owners[frame], after - frame
