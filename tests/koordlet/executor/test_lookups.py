"""The kernel's present values of claims, read on demand, whatever the kernel does."""

import asyncio

import pytest

from koordlet.executor.claims.claim import Key, Target
from koordlet.executor.claims.table import MAX_LOOKUPS, ObservedValue, read_claimed_values
from koordlet.executor.kernel.view import InlineWorker, KernelView, WatchedValue
from koordlet.host.files import Descriptors
from koordlet.host.host import Host
from koordlet.host.resource import Level
from koordlet.host.resources import CPU_QUOTA, MEMORY_HIGH, MIN_FREE_KBYTES, OOM_SCORE_ADJ
from koordlet.plugin.testing import FakeHost, SimulatedClock

BE = Target(Level.QOS, "kubepods/besteffort")


class Hanging:
    """A kernel whose files answer so many times."""

    def __init__(self, answers: int) -> None:
        self.answers = answers

    async def read_many(self, reads):
        if not self.answers:
            await asyncio.Event().wait()
        self.answers -= 1
        return [WatchedValue(7, 0.0) for _ in reads]


@pytest.fixture
def clock():
    return SimulatedClock()


async def test_values_are_read_when_asked(tmp_path, clock):
    """Also sysctls; what this kernel does not have is None."""
    host = FakeHost(tmp_path)
    host.write("proc/sys/vm/min_free_kbytes", "67584\n")
    kernel = KernelView(Host(host.paths, Descriptors(0)), InlineWorker(), clock)
    quota, free = Key(BE, CPU_QUOTA), Key(Target.node(), MIN_FREE_KBYTES)
    missing = Key(BE, MEMORY_HIGH)

    seen = await read_claimed_values(kernel, clock, [quota, free, missing])

    now = clock.wall()
    assert seen == {
        quota: ObservedValue(-1, now),
        free: ObservedValue(67584, now),
        missing: ObservedValue(None, now),
    }


async def test_another_process_of_the_same_number_is_not_ours(tmp_path, clock):
    host = FakeHost(tmp_path)
    host.write("proc/7/oom_score_adj", "5\n")
    host.write("proc/7/stat", f"7 (x) S {' '.join(['0'] * 18)} 1234 0\n")
    kernel = KernelView(Host(host.paths, Descriptors(0)), InlineWorker(), clock)
    ours, other = (Key(Target(Level.PROCESS, "7", at), OOM_SCORE_ADJ) for at in (1234, 99))

    seen = await read_claimed_values(kernel, clock, [ours, other])

    assert [seen[key].value for key in (ours, other)] == [5, None]


async def test_a_kernel_file_that_hangs_does_not_keep_the_answer(clock):
    """What was read until then counts."""
    keys = [Key(Target(Level.POD, f"pod{number}"), CPU_QUOTA) for number in range(500)]
    asked = asyncio.create_task(read_claimed_values(Hanging(answers=1), clock, keys))
    await clock.advance(3)

    assert asked.done()
    assert len(asked.result()) == 200


async def test_a_question_reads_so_many_values_at_most(clock):
    keys = [Key(Target(Level.POD, f"pod{number}"), CPU_QUOTA) for number in range(MAX_LOOKUPS + 5)]

    assert len(await read_claimed_values(Hanging(answers=100), clock, keys)) == MAX_LOOKUPS
