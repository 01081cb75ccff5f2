"""Desired values reach the kernel in an order it accepts, and are restored from the journal."""

import errno

import pytest

from koord.api.machine import parse_cpulist
from koordlet.executor.claims.claim import ClaimState, DesiredValue, Key, Target
from koordlet.executor.journal import AppendLog
from koordlet.executor.kernel.plan import OnForeignChange
from koordlet.host.resource import Level
from koordlet.host.resources import OOM_SCORE_ADJ
from tests.support.node.kernel_model import MOST
from tests.support.node.model_tree import (
    BURST,
    CPUS,
    IDLE,
    QUOTA,
    SHARES,
    ModelTree,
    Mortal,
    StrictValues,
    desired,
    release,
)

NO_LIMIT = {1: "-1", 2: "max"}
IN_FORCE, GONE, WAITING, YIELDED, FAILED = (
    ClaimState.IN_FORCE,
    ClaimState.GONE,
    ClaimState.WAITING,
    ClaimState.YIELDED,
    ClaimState.FAILED,
)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def tree(request, tmp_path):
    return ModelTree(tmp_path / "host", request.param)


@pytest.fixture
def v1(tmp_path):
    return ModelTree(tmp_path / "host", 1)


def states(applied):
    return [one.state for one in applied]


def test_a_value_is_written_once_and_restored(tree):
    """The journal is empty when nothing is ours any more."""
    before, writer = tree.snapshot(), tree.writer()

    [first] = writer.apply([desired(QUOTA, "be", 50_000)])
    assert (first.state, first.value, first.original, first.wrote) == (IN_FORCE, 50_000, -1, True)
    assert tree.read(QUOTA, "be") == "50000"
    [again] = writer.apply([desired(QUOTA, "be", 50_000)])
    assert (again.state, again.wrote) == (IN_FORCE, False)
    [back] = writer.apply([release(QUOTA, "be")])

    assert (back.state, back.wrote) == (GONE, True)
    assert tree.snapshot() == before
    assert not tree.writer().unclaimed()


def test_what_is_there_already_is_not_ours(tree):
    """So it is not touched afterwards either."""
    tree.foreign(QUOTA, "be", "50000")
    writer = tree.writer()

    writer.apply([desired(QUOTA, "be", 50_000)])
    assert not writer.unclaimed()
    writer.apply([release(QUOTA, "be")])

    assert tree.read(QUOTA, "be") == "50000"


def test_the_given_original_is_restored(tree):
    """Also where the value was in force before: left behind by another agent, say."""
    tree.foreign(QUOTA, "be", "50000")
    writer = tree.writer()

    writer.apply([desired(QUOTA, "be", 50_000, original=100_000)])
    writer.apply([desired(QUOTA, "be", 50_000, original=120_000)])  # the pod was resized
    writer.apply([release(QUOTA, "be")])

    assert tree.read(QUOTA, "be") == "120000"


def test_shares_are_restored_exactly(tree):
    """A weight of 100 is no whole number of shares."""
    before, writer = tree.snapshot(), tree.writer()

    writer.apply([desired(SHARES, "be/pod1", 1000)])
    assert tree.read(SHARES, "be/pod1") == {1: "1000", 2: "39"}[tree.version]
    assert states(writer.apply([desired(SHARES, "be/pod1", 1000)])) == [IN_FORCE]
    writer.apply([release(SHARES, "be/pod1")])

    assert tree.snapshot() == before


def test_a_tree_shrinks_and_grows_in_one_batch(tree):
    """In whatever order values are desired: parents and children never contradict each other."""
    before, writer = tree.snapshot(), tree.writer()
    places = ("be", "be/pod2", "be/pod1/c1", "be/pod1")

    for cpus, quota in (("0-3", 50_000), ("2-5", 80_000), ("6", 20_000)):
        desired_values = [desired(CPUS, place, parse_cpulist(cpus)) for place in places]
        desired_values += [desired(QUOTA, place, quota) for place in places]
        assert set(states(writer.apply(desired_values))) == {IN_FORCE}
        assert {tree.read(CPUS, place) for place in places} == {cpus}
    assert set(states(tree.restore())) == {GONE}

    assert tree.snapshot() == before


def test_a_burst_is_as_large_as_the_quota_lets_it_be(tree):
    """It is lowered before the quota is, and comes back with it."""
    before, writer = tree.snapshot(), tree.writer()

    assert states(writer.apply([desired(BURST, "be", 90_000)])) == [IN_FORCE]
    for quota, burst in ((50_000, "50000"), (70_000, "70000"), (200_000, "90000")):
        assert states(writer.apply([desired(QUOTA, "be", quota)])) == [IN_FORCE]
        assert tree.read(BURST, "be") == burst
    writer.apply([release(QUOTA, "be"), release(BURST, "be")])

    assert tree.snapshot() == before


def test_idleness_sets_shares_aside_and_they_come_back(tree):
    """Claimed or not: its end would leave the kernel's default."""
    tree.foreign(SHARES, "be/pod1", "512")
    tree.foreign(SHARES, "be/pod2", "700")
    before, writer = tree.snapshot(), tree.writer()

    writer.apply([desired(SHARES, "be/pod1", 2000)])
    idle = [desired(IDLE, place, 1) for place in ("be/pod1", "be/pod2")]
    assert states(writer.apply(idle)) == [IN_FORCE, IN_FORCE]
    [waiting] = writer.apply([desired(SHARES, "be/pod1", 3000)])
    assert waiting.state is WAITING
    assert "idle" in waiting.message

    writer.apply([release(IDLE, "be/pod1"), release(IDLE, "be/pod2")])
    assert states(writer.apply([desired(SHARES, "be/pod1", 3000)])) == [IN_FORCE]
    assert tree.read(SHARES, "be/pod2") == "700"
    writer.apply([release(SHARES, "be/pod1")])

    assert tree.snapshot() == before


def test_what_the_kernel_refuses_is_reported_and_not_tried_each_time(v1):
    """Another value is tried at once, the same one after a while."""
    v1.foreign(QUOTA, "be/pod1", "50000")
    step = Mortal()
    writer = v1.writer(step)

    [refused] = writer.apply([desired(QUOTA, "be", 20_000)])
    assert refused.state is FAILED
    assert "found EINVAL" in refused.message
    assert not writer.unclaimed()
    del step.steps[:]
    writer.apply([desired(QUOTA, "be", 20_000)])
    assert not step.steps
    assert states(writer.apply([desired(QUOTA, "be", 60_000)])) == [IN_FORCE]
    v1.foreign(QUOTA, "be/pod1", "10000")
    assert states(writer.apply([desired(QUOTA, "be", 20_000)])) == [IN_FORCE]


def test_an_ended_group_is_forgotten(tree):
    """There is nothing to restore."""
    writer = tree.writer()
    writer.apply([desired(QUOTA, "be/pod2", 50_000)])
    tree.remove("be/pod2")

    assert [str(key) for key in writer.sweep()] == ["cpu_quota of be/pod2"]
    assert states(writer.apply([desired(QUOTA, "be/pod2", 50_000)])) == [GONE]
    assert not writer.unclaimed()


@pytest.mark.parametrize("crash", [False, True])
def test_nothing_is_restored_into_a_group_of_the_same_name(tree, crash):
    """It is another group, with a life of its own."""
    writer = tree.writer()
    writer.apply([desired(QUOTA, "be/pod2", 50_000)])
    tree.remove("be/pod2")
    tree.add("be/pod2")
    tree.foreign(QUOTA, "be/pod2", "50000")

    if crash:
        tree.restore()
    else:
        writer.apply([release(QUOTA, "be/pod2")])

    assert tree.read(QUOTA, "be/pod2") == "50000"
    assert not tree.writer().unclaimed()


def test_a_group_born_under_a_squeezed_one_gets_its_original(v1):
    """Whether it is claimed later or never; one that another agent has pinned keeps that."""
    writer = v1.writer()
    squeezed = [
        desired(CPUS, place, {0, 1}) for place in ("be", "be/pod1", "be/pod1/c1", "be/pod2")
    ]
    writer.apply(squeezed)
    v1.add("be/pod3")
    v1.add("be/pod4")
    v1.add("be/pod4/c1")
    v1.add("be/pod5")
    v1.foreign(CPUS, "be/pod5", "1")
    writer.apply([desired(CPUS, place, {0, 1, 2}) for place in ("be", "be/pod3")])
    v1.add("be/pod6")
    writer.apply([desired(CPUS, "be/pod3", {0})])
    assert v1.read(CPUS, "be/pod4/c1") == "0-1"

    v1.restore()

    pinned = v1.kernel.groups.pop("be/pod5")
    assert pinned.cpus == {1}
    assert all(group.cpus == MOST for group in v1.kernel.groups.values())


def test_a_foreign_value_is_retaken_after_a_while_and_restored_in_the_end(tree):
    """Ten seconds, then twice as long; the value that the other wanted last is the original."""
    writer, ours = tree.writer(), desired(QUOTA, "be", 50_000)
    writer.apply([ours])
    for pause, text in ((10, "70000"), (20, "80000")):
        tree.foreign(QUOTA, "be", text)
        assert [k.resource for k in writer.sweep()] == [QUOTA]
        [found] = writer.apply([ours])
        assert (found.state, found.foreign_change, found.value) == (WAITING, "foreign", int(text))
        assert f"retaken in {pause} s" in found.message
        tree.clock.tick(pause - 1)
        assert writer.apply([ours])[0].foreign_change == ""
        tree.clock.tick(1)
        [retaken] = writer.apply([ours])
        assert (retaken.state, retaken.foreign_change) == (IN_FORCE, "retaken")
        assert not writer.sweep()
    writer.apply([release(QUOTA, "be")])

    assert tree.read(QUOTA, "be") == "80000"


def test_who_insists_is_yielded_to(tree):
    """After five times; if it gives in by itself, all is well."""
    writer, ours = tree.writer(), desired(QUOTA, "be", 50_000)
    writer.apply([ours])
    applied = []
    while not applied or applied[-1].state is not YIELDED:
        tree.foreign(QUOTA, "be", "70000")
        applied += [writer.apply([ours])[0] for _ in writer.sweep()]
        tree.clock.tick(10)

    assert [one.foreign_change for one in applied if one.foreign_change] == [
        "foreign",
        "retaken",
    ] * 5 + ["yielded"]
    tree.foreign(QUOTA, "be", "50000")
    assert states(writer.apply([ours])) == [IN_FORCE]


def test_the_policy_may_be_to_yield(tree):
    """Told once; the other's value stays when the claim ends."""
    tree.policy = OnForeignChange.YIELD
    writer, ours = tree.writer(), desired(QUOTA, "be", 50_000)
    writer.apply([ours])
    tree.foreign(QUOTA, "be", "70000")

    applied = [writer.apply([ours])[0] for _ in range(3)]
    writer.apply([release(QUOTA, "be")])

    assert states(applied) == [YIELDED] * 3
    assert [one.foreign_change for one in applied] == ["yielded", "", ""]
    assert tree.read(QUOTA, "be") == "70000"


def test_without_a_record_nothing_is_written_but_values_are_restored(tree, monkeypatch):
    """A full disk keeps new values from being set, not old ones from being restored."""
    before, writer = tree.snapshot(), tree.writer()
    writer.apply([desired(QUOTA, "be", 50_000)])

    def full(log, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(AppendLog, "_write", full)
        applied = writer.apply([desired(QUOTA, "be", 40_000), desired(QUOTA, "be/pod1", 40_000)])
        assert states(applied) == [FAILED, FAILED]
        assert all("free some space" in one.message for one in applied)
        assert tree.read(QUOTA, "be") == "50000"
        [back] = writer.apply([release(QUOTA, "be")])
    assert (back.state, tree.snapshot()) == (GONE, before)
    assert states(writer.apply([desired(QUOTA, "be", 40_000)])) == [IN_FORCE]


@pytest.mark.parametrize(
    ("code", "state", "hint"),
    [
        (errno.EINVAL, FAILED, "does not fit the limits"),
        (errno.EBUSY, FAILED, "groups below it or memory in use"),
        (errno.EPERM, FAILED, "the capability that the file asks for"),
        (errno.EACCES, FAILED, "run as root"),
        (errno.EROFS, FAILED, "mount that file system writable"),
        (errno.EIO, FAILED, "kernel log"),
        (errno.ENOENT, GONE, "it has ended"),
        (errno.ENODEV, GONE, "it has ended"),
    ],
)
def test_every_refusal_is_an_outcome(tree, monkeypatch, code, state, hint):
    """With words for people; what stood there before is not forgotten, unless it is gone."""
    writer = tree.writer()
    writer.apply([desired(QUOTA, "be", 50_000)])

    def refuse(self, place, key, inode, content):
        raise OSError(code, "the kernel's words")

    with monkeypatch.context() as patched:
        patched.setattr(StrictValues, "_write", refuse)
        [set_anew, first] = writer.apply([desired(QUOTA, "be", 40_000), desired(SHARES, "be", 2)])
        assert (set_anew.state, first.state) == (state, state)
        assert "the kernel's words" in set_anew.message
        assert hint in set_anew.message
        [back] = writer.apply([release(QUOTA, "be")])
        assert back.state is state
        assert len(writer.unclaimed()) == (state is FAILED)
    assert set(states(writer.restore(writer.unclaimed(), at_once=True))) <= {GONE}
    if state is FAILED:
        assert tree.read(QUOTA, "be") == NO_LIMIT[tree.version]


def process_value(value, start_time):
    target = Target(Level.PROCESS, "4711", start_time)
    return DesiredValue(Key(target, OOM_SCORE_ADJ), value, None, ("OOMScoreAdj",))


def test_a_process_is_its_pid_and_start_time(tree):
    """A pid comes again; its next bearer is left alone."""
    directory = tree.paths.proc / "4711"
    directory.mkdir(parents=True)
    score = directory / "oom_score_adj"
    score.write_text("0\n")
    stat = directory / "stat"
    stat.write_text(f"4711 (a (b) c) S 1 4711 {' '.join('0' * 16)} 777 {' '.join('0' * 30)}\n")
    writer = tree.writer()

    assert states(writer.apply([process_value(-998, 778)])) == [GONE]
    assert score.read_text() == "0\n"
    assert states(writer.apply([process_value(-998, 777)])) == [IN_FORCE]
    assert score.read_text() == "-998\n"
    stat.write_text(stat.read_text().replace(" 777 ", " 900 "))

    assert states(tree.restore()) == [GONE]
    assert score.read_text() == "-998\n"


def test_values_that_are_no_such_thing_are_refused_before_a_write(tree):
    """By type and range, in words."""
    for row, value, why in (
        (QUOTA, "50000", "wanted a whole number"),
        (SHARES, 1, "wanted 2 to 262144 shares" if tree.version == 2 else "out of its range"),
        (CPUS, [0, 1], "wanted a set of CPU numbers"),
    ):
        [refused] = tree.writer().apply([desired(row, "be", value)])
        assert (refused.state, why in refused.message) == (FAILED, True), refused.message


def test_on_v2_a_group_below_that_has_the_same_cpus_keeps_them(tmp_path):
    """There no runtime copies the CPUs of the parent: they were asked for."""
    tree = ModelTree(tmp_path / "host", 2)
    writer = tree.writer()
    writer.apply([desired(CPUS, "be", parse_cpulist("0-3"))])
    tree.foreign(CPUS, "be/pod1", "0-3")

    [claimed] = writer.apply([desired(CPUS, "be/pod1", parse_cpulist("0-1"))])
    assert claimed.original == parse_cpulist("0-3")
    writer.apply([release(CPUS, "be/pod1")])
    writer.apply([release(CPUS, "be")])

    assert tree.read(CPUS, "be") == ""
    assert tree.read(CPUS, "be/pod1") == "0-3"
