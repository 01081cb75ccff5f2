"""Values of an earlier process are restored or taken over; failures are tried again."""

import asyncio

import pytest
from structlog.testing import capture_logs

from koord.util.health import HealthStatus
from koord.util.stop import Stop
from koordlet.executor.claims.claim import DesiredValue, InitialValue, Key, Target
from koordlet.executor.kernel.view import InlineWorker
from koordlet.executor.restorer import Restorer
from koordlet.host.resource import Level
from tests.support.node.model_tree import QUOTA, SHARES, ModelTree, desired, release


@pytest.fixture
def tree(tmp_path):
    return ModelTree(tmp_path / "host", 1)


@pytest.fixture
def killed(tree):
    """A process that has claimed two values and is not any more."""
    tree.writer().apply([desired(QUOTA, "be", 50_000), desired(SHARES, "be", 512)])


class Bench:
    def __init__(self, tree):
        self.writer = tree.writer()
        self.reported = []
        self.restorer = Restorer(self.writer, InlineWorker(), tree.clock, [self.reported.append])
        self.stop = Stop(tree.clock)


@pytest.fixture
async def bench(tree, killed):
    bench = Bench(tree)
    running = asyncio.create_task(bench.restorer.run(bench.stop))
    yield bench
    bench.stop.set()
    await running


async def test_everything_is_restored_at_the_start(tree, bench):
    """And reported, with the owner."""
    await bench.restorer.begin()

    assert (tree.read(QUOTA, "be"), tree.read(SHARES, "be")) == ("-1", "1024")
    assert [(change.what, change.owners) for change in bench.reported] == 2 * [
        ("restored", ("Squeeze",))
    ]
    assert bench.restorer.counts() == {"changed": 0, "kept": 0}
    assert bench.restorer.health().status is HealthStatus.OK


async def test_kept_values_wait_two_minutes_for_their_owner(tree, bench):
    """What it claims again keeps its original; the rest is restored."""
    await bench.restorer.begin(["Squeeze"])
    assert bench.restorer.counts() == {"changed": 2, "kept": 2}
    [applied] = bench.writer.apply([desired(QUOTA, "be", 60_000)])
    assert applied.original == -1
    await tree.clock.advance(110)
    assert tree.read(SHARES, "be") == "512"
    await tree.clock.advance(20)

    assert (tree.read(QUOTA, "be"), tree.read(SHARES, "be")) == ("60000", "1024")
    bench.writer.apply([release(QUOTA, "be")])
    assert tree.read(QUOTA, "be") == "-1"


async def test_plugins_that_are_off_have_nothing_to_take_over(tree, bench):
    """Their values are restored at once."""
    await bench.restorer.begin(["Another"])

    assert tree.read(QUOTA, "be") == "-1"


async def test_what_cannot_be_restored_is_reported_and_tried_again(tree, bench):
    """Here a limit of the group above that is in the way for a while."""
    bench.writer.apply([desired(QUOTA, "be/pod1", 20_000, original=80_000)])
    await bench.restorer.end()  # also what is claimed
    assert tree.read(QUOTA, "be/pod1") == "80000"

    tree.foreign(QUOTA, "be/pod1", "20000")
    bench.writer.apply([desired(QUOTA, "be/pod1", 10_000, original=80_000)])
    tree.foreign(QUOTA, "be", "30000")
    with capture_logs() as logs:
        await bench.restorer.end()
    assert [log["event"] for log in logs] == ["values.restore_failed"]
    health = bench.restorer.health()
    assert health.status is HealthStatus.DEGRADED
    assert "cpu_quota of be/pod1 could not be restored" in health.reason
    tree.foreign(QUOTA, "be", "-1")
    await tree.clock.advance(60)

    assert tree.read(QUOTA, "be/pod1") == "80000"
    assert bench.restorer.health().status is HealthStatus.OK


async def test_a_container_that_is_being_made_at_the_end_is_waited_for(tree, bench):
    """The runtime was given a value before; it takes longer than the plugins take to end."""
    new = Key(Target(Level.CONTAINER, "be/pod1/new"), QUOTA)
    bench.writer.expect([InitialValue(key=new, value=50_000, original=-1, owners=("Some",))])
    ending = asyncio.create_task(bench.restorer.end())
    await tree.clock.advance(2)
    assert not ending.done()
    tree.add("be/pod1/new")
    tree.foreign(QUOTA, "be/pod1/new", "50000")
    await tree.clock.advance(1)

    await asyncio.wait_for(ending, 1)

    assert tree.read(QUOTA, "be/pod1/new") == "-1"
    assert bench.restorer.counts()["changed"] == 0


async def test_a_container_that_is_not_made_holds_up_no_end(tree, bench):
    """For some seconds after the runtime was given its value. The record stays."""
    new = Key(Target(Level.CONTAINER, "be/pod1/new"), QUOTA)
    bench.writer.expect([InitialValue(key=new, value=50_000, original=-1, owners=("Some",))])
    ending = asyncio.create_task(bench.restorer.end())
    await tree.clock.advance(6)

    await asyncio.wait_for(ending, 1)

    assert bench.restorer.counts()["changed"] == 1


async def test_what_a_runtime_sets_after_the_restore_is_restored_again(tree, bench):
    """It was answered just before the end; nothing remains in the journal after that."""
    late = Key(Target(Level.CONTAINER, "be/pod1"), QUOTA)
    bench.writer.apply([DesiredValue(late, 50_000, 80_000, ("Some",))])
    bench.writer.expect([InitialValue(key=late, value=50_000, original=80_000, owners=("Some",))])
    ending = asyncio.create_task(bench.restorer.end())
    await tree.clock.advance(1)
    assert tree.read(QUOTA, "be/pod1") == "80000"
    tree.foreign(QUOTA, "be/pod1", "50000")
    await tree.clock.advance(6)

    await asyncio.wait_for(ending, 1)

    assert tree.read(QUOTA, "be/pod1") == "80000"
    assert bench.restorer.counts()["changed"] == 0


async def test_a_hung_kernel_file_does_not_hold_up_start_and_end(tree, killed):
    """Eight seconds are enough."""

    class Hung:
        async def do(self, work):
            await asyncio.Event().wait()

    restorer = Restorer(tree.writer(), Hung(), tree.clock)
    with capture_logs() as logs:
        beginning = asyncio.create_task(restorer.begin())
        await tree.clock.advance(9)
        await beginning
    assert [log["event"] for log in logs] == ["values.restore_timed_out"]
