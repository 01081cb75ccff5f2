"""Idle page tracking on files of the kernel's format: passes, budget, and what counts as cold."""

import dataclasses
import os
from array import array
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.host.errors import KernelFileError, Unsupported
from koordlet.host.idle_pages import IDLE_BITMAP, PAGES_PER_STEP, IdleTracking, cold_pages
from koordlet.host.paths import HostPaths

PAGE = os.sysconf("SC_PAGE_SIZE")
LRU, ACTIVE, ANON, HEAD, SWAP_BACKED, TAIL = (1 << bit for bit in (5, 6, 12, 15, 14, 16))
POD, OTHER = 4711, 4712  # inodes


class Memory:
    """Page frames in files as the kernel shows them. A set bit stays until the page is used."""

    def __init__(self, paths, frames):
        self.bitmap = paths.sys / IDLE_BITMAP
        self.bitmap.parent.mkdir(parents=True)
        paths.proc.mkdir(parents=True)
        self.bitmap.write_bytes(bytes(frames // 8))
        self.flags, self.owners = array("Q", [0] * frames), array("Q", [0] * frames)
        self.paths = paths
        self.save()

    def save(self):
        (self.paths.proc / "kpageflags").write_bytes(self.flags.tobytes())
        (self.paths.proc / "kpagecgroup").write_bytes(self.owners.tobytes())

    def hold(self, frames, owner, flags=LRU):
        for frame in frames:
            self.flags[frame], self.owners[frame] = flags, owner
        self.save()

    def use(self, *frames):
        bits = bytearray(self.bitmap.read_bytes())
        for frame in frames:
            bits[frame // 8] &= ~(1 << frame % 8)
        self.bitmap.write_bytes(bits)


class Cpu:
    """Each look at the clock finds a millisecond more."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        self.seconds += 0.001
        return self.seconds


@pytest.fixture
def paths(tmp_path):
    return HostPaths.below(tmp_path)


def test_what_stays_idle_between_two_passes_is_cold(paths):
    """By cgroup; what was used is not, nor anonymous, shared and active memory."""
    memory = Memory(paths, PAGES_PER_STEP * 2)
    memory.hold(range(10), POD)
    memory.hold(range(PAGES_PER_STEP, PAGES_PER_STEP + 4), OTHER)
    memory.hold([20], POD, LRU | ANON)
    memory.hold([21], POD, LRU | SWAP_BACKED)
    memory.hold([22], POD, LRU | ACTIVE)
    memory.hold([23], POD, 0)
    tracking = IdleTracking(paths)

    tracking.advance(0, 1)
    assert (tracking.passes, tracking.cold) == (0, {})
    memory.use(0, 1, PAGES_PER_STEP)
    tracking.advance(299, 1)
    assert tracking.passes == 0
    tracking.advance(300, 1)

    assert tracking.passes == 1
    assert tracking.cold == {POD: 8 * PAGE, OTHER: 3 * PAGE}
    memory.use(*range(PAGES_PER_STEP, PAGES_PER_STEP + 4))
    tracking.advance(600, 1)
    assert tracking.cold == {POD: 10 * PAGE}


def test_a_large_page_counts_whole(paths):
    """It has its idle bit at its head only."""
    memory = Memory(paths, PAGES_PER_STEP)
    memory.hold([512], POD, LRU | HEAD)
    memory.hold(range(513, 1024), 0, TAIL)
    memory.hold([1024], OTHER)
    tracking = IdleTracking(paths)
    tracking.advance(0, 1)
    memory.use(*range(513, 1024))
    tracking.advance(300, 1)
    assert tracking.cold == {POD: 512 * PAGE, OTHER: PAGE}


def test_a_budget_spreads_a_pass_over_rounds(paths):
    """Each piece costs a millisecond here; nothing is published before all were looked at."""
    memory = Memory(paths, PAGES_PER_STEP * 10)
    memory.hold(range(0, PAGES_PER_STEP * 10, PAGES_PER_STEP), POD)
    tracking = IdleTracking(paths, Cpu())

    rounds = 0
    while not tracking.passes:
        tracking.advance(1000.0 * rounds, 0.002)
        rounds += 1
        assert rounds < 20

    assert rounds in range(10, 14)  # two passes of ten pieces, two a round
    assert tracking.cold == {POD: 10 * PAGE}


def test_pages_younger_than_the_age_never_count(paths):
    """The pause lasts from the end of a pass, however long that took."""
    memory = Memory(paths, PAGES_PER_STEP * 4)
    memory.hold([0], POD)
    tracking = IdleTracking(paths, Cpu())
    for now in (0, 100, 200):
        tracking.advance(now, 0)
    tracking.advance(300, 1)  # the end of the first pass
    tracking.advance(599, 1)
    assert tracking.passes == 0
    tracking.advance(600, 1)
    assert tracking.passes == 1


@pytest.mark.parametrize("name", ["bitmap", "kpageflags", "kpagecgroup"])
def test_a_file_that_is_missing_is_an_error_with_its_path(paths, name):
    memory = Memory(paths, PAGES_PER_STEP)
    gone = memory.bitmap if name == "bitmap" else paths.proc / name
    gone.unlink()
    with pytest.raises(KernelFileError, match=name):
        IdleTracking(paths).advance(0, 1)


def test_only_a_file_of_the_kernel_is_written(tmp_path):
    """With real roots a plain file in its place is refused."""
    paths = HostPaths.below(tmp_path)
    memory = Memory(paths, PAGES_PER_STEP)
    real = dataclasses.replace(paths, laid_out=False)
    with pytest.raises(KernelFileError, match="wanted a kernel file"):
        IdleTracking(real).advance(0, 1)
    assert not any(memory.bitmap.read_bytes())


def test_a_kernel_without_it_is_unsupported(paths):
    (paths.sys / IDLE_BITMAP).parent.mkdir(parents=True)
    with pytest.raises(Unsupported):
        IdleTracking(paths).advance(0, 1)


@given(
    st.lists(st.integers(0, 2**64 - 1), max_size=3),
    st.lists(st.sampled_from([0, LRU, LRU | HEAD, TAIL, LRU | ANON]), max_size=200),
    st.lists(st.integers(0, 3), max_size=200),
)
def test_every_idle_head_counts_once_with_its_tails(idle, flags, owners):
    """Against the plain form, bit by bit; files may end anywhere."""
    known, expected = min(len(flags), len(owners)), Counter()
    for frame in range(min(known, 64 * len(idle))):
        if idle[frame // 64] >> frame % 64 & 1 and flags[frame] in (LRU, LRU | HEAD):
            tails = 0
            while frame + 1 + tails < known and flags[frame + 1 + tails] == TAIL:
                tails += 1
            expected[owners[frame]] += 1 + tails
    found = Counter()
    for owner, pages in cold_pages(*(array("Q", each) for each in (idle, flags, owners))):
        found[owner] += pages
    assert found == expected
