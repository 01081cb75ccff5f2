"""Control groups of resctrl as claims see them: made, filled, restored; what the kernel refuses."""

import os
import signal

import pytest

from koord.util.ownedfiles import OwnedDirectory
from koordlet.executor.claims.claim import RELEASE, ClaimState, DesiredValue, Key, Target
from koordlet.executor.journal import Journal, ignore_step
from koordlet.executor.kernel.writer import Writer
from koordlet.host.files import Descriptors
from koordlet.host.host import Host
from koordlet.host.resource import Level
from koordlet.host.resources import RESCTRL_GROUP, RESCTRL_L3, RESCTRL_MB, RESCTRL_TASKS
from koordlet.plugin.testing import FakeHost, SimulatedClock
from koordlet.plugin.testing.kernel import FakeKernelValues, FakeResctrl, FakeResctrlTasks

IN_FORCE, FAILED, GONE = ClaimState.IN_FORCE, ClaimState.FAILED, ClaimState.GONE


def value(resource, target, wanted):
    return DesiredValue(Key(target, resource), wanted, owners=("test",))


def process(pid, start=0):
    return Target(Level.PROCESS, str(pid), start or pid * 10)


BE = Target.resctrl("BE")
GROUP = [value(RESCTRL_GROUP, BE, "present")]
LINES = [value(RESCTRL_L3, BE, "0=f;1=f"), value(RESCTRL_MB, BE, "0=30;1=30")]
MOVES = [value(RESCTRL_TASKS, process(pid), "BE") for pid in (7, 8)]


class Bench:
    def __init__(self, root, **facts):
        self.fake = FakeHost(root / "host", 2)
        self.tree = FakeResctrl(self.fake, **facts)
        self.run_dir = root / "run"
        self.run_dir.mkdir()
        self.clock = SimulatedClock()
        self.tree.start(7, threads=(71, 72))
        self.tree.start(8)

    def writer(self, step=ignore_step):
        host = Host(self.fake.paths, Descriptors(0))
        object_writers = {root: make(host.paths) for root, make in self.fake.object_writers.items()}
        values = FakeKernelValues(host, step, object_writers)
        journal = Journal(OwnedDirectory.open(self.run_dir), "boot")
        return Writer(host, journal, self.clock, values=values)


def live(writer):
    for batch in (GROUP, LINES, MOVES):
        writer.apply(batch)
    writer.apply([DesiredValue(each.key, RELEASE) for each in (*MOVES, *LINES, *GROUP)])


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_a_group_is_made_divided_filled_and_removed(bench):
    writer, tree = bench.writer(), bench.tree
    states = [each.state for batch in (GROUP, LINES, MOVES) for each in writer.apply(batch)]

    assert states == [IN_FORCE] * 5
    assert tree.schemata("BE").splitlines() == ["MB:0=30;1=30", "L3:0=f;1=f"]
    assert tree.tasks("BE") == [7, 8, 71, 72]

    writer.restore(writer.unclaimed() or [each.key for each in (*MOVES, *LINES, *GROUP)])
    assert tree.groups == []
    assert tree.tasks() == [7, 8, 71, 72]
    assert not list(writer.ledger)


def test_a_group_that_was_there_stays_as_it_was(bench):
    """Another agent's lines and tasks in it, too."""
    tree = bench.tree
    tree.make("BE")
    tree.start(9, group="BE")
    before = tree.schemata("BE")

    live(bench.writer())

    assert (tree.groups, tree.schemata("BE")) == (["BE"], before)
    assert (tree.tasks("BE"), tree.tasks()) == ([9], [7, 8, 71, 72])


def test_after_kill_9_at_any_step_the_next_start_restores(bench):
    """Also where the group was there before, so that nothing is removed with it."""
    for there in (False, True):
        at = 0
        while True:
            at += 1
            if there:
                bench.tree.make("BE")
            child = os.fork()
            if child == 0:
                steps = iter(range(1, 1000))

                def die(name, steps=steps, at=at):
                    if next(steps) == at:
                        os.kill(os.getpid(), signal.SIGKILL)

                live(bench.writer(die))
                os._exit(0)
            killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
            writer = bench.writer()
            writer.restore(writer.unclaimed())
            assert bench.tree.groups == (["BE"] if there else []), at
            assert bench.tree.tasks() == [7, 8, 71, 72], at
            assert not writer.unclaimed()
            if there:
                assert bench.tree.schemata("BE") == bench.tree.schemata()
                bench.tree.remove("BE")
            if not killed:
                break
        assert at > 15


def test_a_process_that_was_half_moved_is_moved_back(bench, monkeypatch):
    """Its first thread goes first into a group and last out of it, so that it stands for all."""
    bench.tree.make("BE")
    writer = bench.writer()
    moved = []

    class Died(BaseException):
        """kill -9."""

    append = FakeResctrlTasks.append

    def dying(self, tasks, thread):
        append(self, tasks, thread)
        moved.append(thread)
        if len(moved) == 2:
            raise Died

    monkeypatch.setattr(FakeResctrlTasks, "append", dying)
    with pytest.raises(Died):
        writer.apply(MOVES[:1])
    monkeypatch.setattr(FakeResctrlTasks, "append", append)
    assert bench.tree.tasks("BE") == [7, 71]

    after = bench.writer()
    after.restore(after.unclaimed())

    assert (bench.tree.tasks("BE"), bench.tree.tasks()) == ([], [7, 8, 71, 72])


def test_threads_that_appear_amid_a_move_are_moved_too(bench, monkeypatch):
    append = FakeResctrlTasks.append

    def spawning(self, tasks, thread):
        append(self, tasks, thread)
        if thread == 7:
            bench.tree.start(7, threads=(71, 72, 73), group="")  # by one that was not moved yet
            append(self, tasks, 7)

    bench.tree.make("BE")
    monkeypatch.setattr(FakeResctrlTasks, "append", spawning)
    bench.writer().apply(MOVES[:1])

    assert bench.tree.tasks("BE") == [7, 71, 72, 73]


@pytest.mark.parametrize(
    ("resource", "wanted", "message"),
    [
        (RESCTRL_L3, "0=5;1=5", "non-consecutive 1-bits"),
        (RESCTRL_L3, "0=1;1=1", "Need at least 2 bits"),
        (RESCTRL_L3, "0=fff;1=fff", "Mask out of range"),
        (RESCTRL_L3, "0=f;9=f", "Domain not found"),
        (RESCTRL_L3, "0=0;1=f", "out of its range"),
        (RESCTRL_L3, "", "wanted 1 to 256 caches"),
        (RESCTRL_MB, "0=101;1=50", "MB value 101 out of range"),
        (RESCTRL_MB, "0=5;1=5", "MB value 5 out of range"),
    ],
)
def test_lines_that_the_kernel_refuses_fail_with_its_words(tmp_path, resource, wanted, message):
    bench = Bench(tmp_path, fewest_ways=2)
    writer = bench.writer()
    writer.apply(GROUP)
    before = bench.tree.schemata("BE")

    [failed] = writer.apply([value(resource, BE, wanted)])

    assert failed.state is FAILED
    assert message in failed.message
    assert bench.tree.schemata("BE") == before
    assert [key.resource for key in writer.ledger] == [RESCTRL_GROUP]


def test_bandwidth_that_the_kernel_rounds_is_in_force(bench):
    writer = bench.writer()
    writer.apply(GROUP)
    wanted = value(RESCTRL_MB, BE, "0=33;1=33")

    first, again = (writer.apply([wanted])[0] for _ in range(2))

    assert (first.state, first.value, again.wrote) == (IN_FORCE, "0=40;1=40", False)


def test_out_of_closids_is_a_failed_claim(tmp_path):
    bench = Bench(tmp_path, closids=2)
    writer = bench.writer()
    writer.apply(GROUP)

    [failed] = writer.apply([value(RESCTRL_GROUP, Target.resctrl("LS"), "present")])

    assert failed.state is FAILED
    assert "No space left on device (Out of CLOSIDs)" in failed.message
    assert "each group takes a CLOSID" in failed.message
    assert bench.tree.groups == ["BE"]


def test_a_busy_kernel_is_asked_again_later(bench):
    (bench.tree.root / "busy").touch()
    writer = bench.writer()

    [failed] = writer.apply(GROUP)
    (bench.tree.root / "busy").unlink()
    bench.clock.tick(11)
    [made] = writer.apply(GROUP)

    assert "Device or resource busy" in failed.message
    assert (failed.state, made.state) == (FAILED, IN_FORCE)


def test_a_process_of_the_same_number_is_not_moved(bench):
    writer = bench.writer()
    writer.apply(GROUP)
    bench.tree.end(7)
    bench.tree.start(7, at=999)

    [gone] = writer.apply(MOVES[:1])

    assert gone.state is GONE
    assert bench.tree.tasks("BE") == []


def test_a_process_waits_for_its_group(bench):
    writer = bench.writer()

    [failed] = writer.apply(MOVES[:1])

    assert failed.state is FAILED
    assert "wanted a control group to move a process to" in failed.message


def test_a_tree_that_is_mounted_anew_has_nothing_of_ours(bench):
    writer = bench.writer()
    live_until_moved = (GROUP, LINES)
    for batch in live_until_moved:
        writer.apply(batch)
    bench.tree.unmount()

    answers = writer.apply([DesiredValue(each.key, RELEASE) for each in (*LINES, *GROUP)])

    assert {answer.state for answer in answers} <= {GONE, ClaimState.UNSUPPORTED}
    assert not list(writer.ledger)


@pytest.mark.parametrize(
    ("resource", "level", "place", "original"),
    [
        ("resctrl_tasks", "process", "7", "../../etc"),
        ("resctrl_tasks", "process", "7", "a/b"),
        ("resctrl_tasks", "process", "7", "info"),
        ("resctrl_tasks", "process", "7", "/mon_groups/../.."),
        ("resctrl_tasks", "process", "7/..", "/"),
        ("resctrl_tasks", "resctrl", "BE", "/"),
        ("resctrl_l3", "resctrl", "../x", "0=f"),
        ("resctrl_l3", "resctrl", "BE", "0=0"),
        ("resctrl_l3", "resctrl", "BE", "0=f\nMB:0=1"),
        ("resctrl_l3", "resctrl", "BE", "whatever"),
        ("resctrl_l3", "node", "", "0=f"),
        ("resctrl_mb", "resctrl", "BE", "0=f"),
    ],
)
def test_hostile_records_are_refused(bench, resource, level, place, original):
    """What write access to the journal allows is what a plugin could claim, and no more."""
    writer = bench.writer()
    writer.apply(GROUP)
    journal = Journal(OwnedDirectory.open(bench.run_dir), "boot")
    [record] = journal.records.values()
    record.resource, record.level = resource, level
    record.place, record.original = place, original
    journal.begin([record])

    assert len(bench.writer().ledger.refused) == 1


def test_a_link_in_the_place_of_a_group_is_not_followed(bench, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/tasks").write_text("")
    (bench.tree.root / "BE").symlink_to(tmp_path / "elsewhere")

    [failed] = bench.writer().apply(MOVES[:1])

    assert failed.state is FAILED
    assert (tmp_path / "elsewhere/tasks").read_text() == ""
