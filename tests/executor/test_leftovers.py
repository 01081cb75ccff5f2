"""What an earlier process left: put back, or taken over; what cannot be is tried again."""

import asyncio

import pytest
from modeltree import QUOTA, SHARES, ModelTree, release, wish
from structlog.testing import capture_logs

from koordlet.executor.leftovers import Leftovers
from koordlet.executor.worker import InlineWorker
from koordlet.util.health import Status
from koordlet.util.stop import Stop


@pytest.fixture
def tree(tmp_path):
    return ModelTree(tmp_path / "host", 1)


@pytest.fixture
def killed(tree):
    """A process that has claimed two values and is not any more."""
    tree.writer().apply([wish(QUOTA, "be", 50_000), wish(SHARES, "be", 512)])


class Bench:
    def __init__(self, tree):
        self.writer = tree.writer()
        self.told = []
        self.leftovers = Leftovers(self.writer, InlineWorker(), tree.clock, [self.told.append])
        self.stop = Stop(tree.clock)


@pytest.fixture
async def bench(tree, killed):
    bench = Bench(tree)
    running = asyncio.create_task(bench.leftovers.run(bench.stop))
    yield bench
    bench.stop.set()
    await running


async def test_everything_is_put_back_at_the_start(tree, bench):
    """And told, with whose it was."""
    await bench.leftovers.begin()

    assert (tree.read(QUOTA, "be"), tree.read(SHARES, "be")) == ("-1", "1024")
    assert [(change.what, change.owners) for change in bench.told] == 2 * [
        ("restored", ("Squeeze",))
    ]
    assert bench.leftovers.counts() == {"changed": 0, "kept": 0}
    assert bench.leftovers.health().status is Status.OK


async def test_kept_values_wait_two_minutes_for_their_owner(tree, bench):
    """What it claims again keeps its original; the rest is put back."""
    await bench.leftovers.begin(["Squeeze"])
    assert bench.leftovers.counts() == {"changed": 2, "kept": 2}
    [landed] = bench.writer.apply([wish(QUOTA, "be", 60_000)])
    assert landed.original == -1
    await tree.clock.advance(110)
    assert tree.read(SHARES, "be") == "512"
    await tree.clock.advance(20)

    assert (tree.read(QUOTA, "be"), tree.read(SHARES, "be")) == ("60000", "1024")
    bench.writer.apply([release(QUOTA, "be")])
    assert tree.read(QUOTA, "be") == "-1"


async def test_plugins_that_are_off_have_nothing_to_take_over(tree, bench):
    """Their values are put back at once."""
    await bench.leftovers.begin(["Another"])

    assert tree.read(QUOTA, "be") == "-1"


async def test_what_cannot_be_put_back_is_told_and_tried_again(tree, bench):
    """Here a limit of the group above that is in the way for a while."""
    bench.writer.apply([wish(QUOTA, "be/pod1", 20_000, original=80_000)])
    await bench.leftovers.end()  # also what is claimed
    assert tree.read(QUOTA, "be/pod1") == "80000"

    tree.foreign(QUOTA, "be/pod1", "20000")
    bench.writer.apply([wish(QUOTA, "be/pod1", 10_000, original=80_000)])
    tree.foreign(QUOTA, "be", "30000")
    with capture_logs() as logs:
        await bench.leftovers.end()
    assert [log["event"] for log in logs] == ["values.not_restored"]
    health = bench.leftovers.health()
    assert health.status is Status.DEGRADED
    assert "cpu_quota of be/pod1 could not be put back" in health.reason
    tree.foreign(QUOTA, "be", "-1")
    await tree.clock.advance(60)

    assert tree.read(QUOTA, "be/pod1") == "80000"
    assert bench.leftovers.health().status is Status.OK


async def test_a_hung_kernel_file_does_not_hold_up_start_and_end(tree, killed):
    """Eight seconds are enough."""

    class Hung:
        async def do(self, work):
            await asyncio.Event().wait()

    leftovers = Leftovers(tree.writer(), Hung(), tree.clock)
    with capture_logs() as logs:
        beginning = asyncio.create_task(leftovers.begin())
        await tree.clock.advance(9)
        await beginning
    assert [log["event"] for log in logs] == ["values.not_restored_in_time"]
