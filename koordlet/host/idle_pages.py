"""Cold memory: pages that were not touched for a while, by kidled or by idle page tracking."""

import os
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import NamedTuple

from koordlet.host.errors import KernelFileError
from koordlet.host.paths import HostPaths
from koordlet.host.procfiles import shown
from koordlet.host.resource import Root

IDLE_BITMAP = "kernel/mm/page_idle/bitmap"  # below /sys: a bit for each page frame
PAGE_FLAGS, PAGE_CGROUPS = "kpageflags", "kpagecgroup"  # below /proc: 8 bytes for each
PAGE_FILES = (PAGE_FLAGS, PAGE_CGROUPS)
IDLE_PAGE_TRACKING_NEEDS = (
    "CONFIG_IDLE_PAGE_TRACKING, which few distributions have, and /sys writable"
)

DEFAULT_BOUNDARY = 5
_LINES = 31
_BUCKETS_LINE, _FIRST_ROW = 5, 14
_SETTINGS = ("page_scans", "slab_scans", "scan_period_in_seconds", "use_hierarchy")
_COLD_FILE_ROWS = ("cfei", "dfei", "cfui", "dfui")  # clean or dirty file pages that are inactive


class IdlePages(NamedTuple):
    """A memory.idle_page_stats file."""

    settings: Mapping[str, int]  # of the scanner; scan_period_in_seconds and so on
    buckets: tuple[int, ...]  # idle scans from which on a page is in that bucket
    rows: Mapping[str, tuple[int, ...]]  # kind of page -> bytes in each bucket

    def cold_after(self, seconds: float) -> int | None:
        """Return the bytes of file pages that were idle for so long, children included.

        None: the scanner is off, leaves out children, or does not count that far.
        """
        period = self.settings["scan_period_in_seconds"]
        if period <= 0 or not self.settings["use_hierarchy"]:
            return None
        long_enough = (n for n, scans in enumerate(self.buckets) if scans * period >= seconds)
        boundary = next(long_enough, None)
        return None if boundary is None else self.cold_bytes(boundary)

    def cold_bytes(self, boundary: int = DEFAULT_BOUNDARY) -> int:
        """Return the bytes of file pages in the buckets from the boundary on."""
        return sum(sum(self.rows[row][boundary:]) for row in _COLD_FILE_ROWS)


def parse_idle_pages(data: bytes) -> IdlePages:
    """Return the contents of memory.idle_page_stats.

    Raises:
        ValueError: not the 31 lines that Anolis kernels write.
    """
    lines = data.decode("ascii").strip("\n").split("\n")
    if len(lines) != _LINES:
        raise ValueError(f"wanted {_LINES} lines, found {len(lines)}: {shown(data)}")
    settings = dict(_setting(line) for line in lines[1:_BUCKETS_LINE])
    _, buckets = _commented(lines[_BUCKETS_LINE])
    rows = {name: tuple(map(int, values)) for name, *values in map(str.split, lines[_FIRST_ROW:])}
    missing = [row for row in _COLD_FILE_ROWS if row not in rows]
    if set(settings) != set(_SETTINGS) or missing:
        raise ValueError(f"wanted {_SETTINGS} and {_COLD_FILE_ROWS}, found {shown(data)}")
    return IdlePages(settings, tuple(map(int, buckets.split(","))), rows)


def _setting(line: str) -> tuple[str, int]:
    key, value = _commented(line)
    return key, int(value)


def _commented(line: str) -> tuple[str, str]:
    """Split "# key: value"."""
    key, colon, value = line.removeprefix("# ").partition(": ")
    if not colon:
        raise ValueError(f"wanted '# key: value', found {line[:60]!r}")
    return key, value


SCAN_AGE = 300.0  # seconds without use after which a page is cold, as with kidled
PAGES_PER_STEP = 4096  # page frames between two looks at the CPU time; no page is larger
_WORD = 64  # bits that the bitmap is read and written by
_ALL = b"\xff" * (PAGES_PER_STEP // 8)
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Bits of kpageflags.
_LRU, _ACTIVE, _ANON, _SWAP_BACKED, _TAIL = (1 << bit for bit in (5, 6, 12, 14, 16))
_CHECKED_FLAGS = _LRU | _ACTIVE | _ANON | _SWAP_BACKED | _TAIL


class _TrackingFiles(NamedTuple):
    bitmap: int  # descriptors
    flags: int
    owners: int


class IdleTracking:
    """Goes over all page frames again and again, within a budget of CPU time."""

    def __init__(
        self,
        paths: HostPaths,
        cpu_time: Callable[[], float] = time.thread_time,
        age: float = SCAN_AGE,
    ) -> None:
        """cpu_time: seconds of CPU that this thread has used."""
        self._paths = paths
        self._bitmap = f"{paths.sys}/{IDLE_BITMAP}"
        self._cpu_time = cpu_time
        self._age = age
        self._next = 0  # page frame
        self._marked = False  # whether a pass has set all bits before this one
        self._resumes = float("-inf")  # monotonic: when the next pass may begin
        self._counted: Counter[int] = Counter()
        self.passes = 0  # that have counted
        self.cold: Mapping[int, int] = {}  # bytes by inode of cgroup, of the latest such pass

    @property
    def in_progress(self) -> bool:
        """Whether a pass has begun and not ended."""
        return self._next > 0

    def advance(self, now: float, budget: float) -> None:
        """Go on for so many seconds of CPU time, at least by a piece. now is monotonic.

        Raises:
            KernelFileError: a file cannot be read or written; Unsupported: there is none.
        """
        if not self.in_progress and now < self._resumes:
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

    def _open(self, opened: ExitStack) -> _TrackingFiles:
        """Raises OSError, KernelFileError."""
        proc = self._paths.proc
        modes = {self._bitmap: os.O_RDWR, f"{proc}/{PAGE_FLAGS}": 0, f"{proc}/{PAGE_CGROUPS}": 0}
        descriptors = []
        for path, mode in modes.items():
            try:
                descriptor = os.open(path, mode | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError as err:
                raise KernelFileError.from_os_error(path, err) from err
            opened.callback(os.close, descriptor)
            descriptors.append(descriptor)
        self._paths.check(descriptors[0], Root.SYS, self._bitmap)
        return _TrackingFiles(*descriptors)

    def _piece(self, files: _TrackingFiles) -> bool:
        """Look at some page frames, and set their bits; False: there are no more."""
        idle = _words(os.pread(files.bitmap, PAGES_PER_STEP // 8, self._next // 8))
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
            if frame < known and flags[frame] & _CHECKED_FLAGS == _LRU:
                after = frame + 1
                while after < known and flags[after] & _TAIL:
                    after += 1
                yield owners[frame], after - frame
