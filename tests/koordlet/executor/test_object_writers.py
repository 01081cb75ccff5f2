"""Objects of the kernel that are no files, as claims see them: an object writer of the test.

The fake keeps each object as a file of a directory, so that it outlives a process.
"""

import asyncio
import errno
import os
import signal

import pytest

from koord.util.ownedfiles import OwnedDirectory
from koordlet.executor.claimmanager import ClaimManager
from koordlet.executor.claims.claim import (
    RELEASE,
    Claim,
    ClaimScope,
    ClaimState,
    DesiredValue,
    Key,
    Target,
)
from koordlet.executor.claims.table import ObservedValue, claimed_value_json
from koordlet.executor.journal import Journal, ignore_step
from koordlet.executor.kernel.plan import ValueChange, ordered_steps
from koordlet.executor.kernel.values import KernelValues
from koordlet.executor.kernel.view import InlineWorker
from koordlet.executor.kernel.writer import Writer
from koordlet.host.files import Descriptors
from koordlet.host.host import Host
from koordlet.host.objects import RESCTRL_GROUPS
from koordlet.host.resource import ABSENT, Level
from koordlet.host.resources import RESCTRL_GROUP
from koordlet.plugin.testing import FakeHost, SimulatedClock

BE = Target.resctrl("BE")
KEY = Key(BE, RESCTRL_GROUP)
WANTED = DesiredValue(KEY, "present", owners=("test",))
RELEASED = DesiredValue(KEY, RELEASE)


class Shelf:
    """Reader and writer at once."""

    def __init__(self, directory):
        self.directory = directory
        self.refuses = 0
        self.identities = 7
        directory.mkdir(exist_ok=True)

    def path(self, name):
        return f"shelf/{name}"

    def read(self, name):
        try:
            return (self.directory / name).read_bytes()
        except FileNotFoundError:
            return f"{ABSENT}\n".encode()

    def identity(self, key):
        return self.identities

    def write(self, key, identity, content):
        assert identity == self.identities
        if self.refuses:
            raise OSError(self.refuses, os.strerror(self.refuses))
        if content == ABSENT:
            (self.directory / key.target.place).unlink(missing_ok=True)
        else:
            (self.directory / key.target.place).write_text(f"{content}\n")


class Bench:
    def __init__(self, root):
        self.fake = FakeHost(root / "host", 2)
        self.shelf = Shelf(root / "shelf")
        self.clock = SimulatedClock()
        self.run_dir = root / "run"
        self.run_dir.mkdir(exist_ok=True)

    def writer(self, step=ignore_step):
        host = Host(self.fake.paths, Descriptors(0), objects={RESCTRL_GROUPS: self.shelf})
        values = KernelValues(host, step, {RESCTRL_GROUPS: self.shelf})
        journal = Journal(OwnedDirectory.open(self.run_dir), "boot")
        return Writer(host, journal, self.clock, values=values)

    @property
    def there(self):
        return sorted(os.listdir(self.shelf.directory))


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_what_was_made_for_a_claim_is_deleted_with_it(bench):
    writer = bench.writer()

    [made] = writer.apply([WANTED])
    assert (made.state, made.value, made.original, made.wrote) == (
        ClaimState.IN_FORCE, "present", ABSENT, True,
    )  # fmt: skip
    assert bench.there == ["BE"]
    [again] = writer.apply([WANTED])
    assert (again.state, again.wrote) == (ClaimState.IN_FORCE, False)

    [gone] = writer.apply([RELEASED])
    assert (gone.state, gone.value) == (ClaimState.GONE, ABSENT)
    assert not bench.there
    assert not list(writer.ledger)


def test_what_was_there_before_stays_behind_the_claim(bench):
    (bench.shelf.directory / "BE").write_text("present\n")
    writer = bench.writer()

    [found] = writer.apply([WANTED])
    writer.apply([RELEASED])

    assert (found.state, found.wrote) == (ClaimState.IN_FORCE, False)
    assert bench.there == ["BE"]


@pytest.mark.parametrize("at", range(1, 7))
def test_after_kill_9_at_any_step_the_journal_restores_to_absent(bench, at):
    child = os.fork()
    if child == 0:
        steps = iter(range(1, 100))

        def die(name):
            if next(steps) == at:
                os.kill(os.getpid(), signal.SIGKILL)

        writer = bench.writer(die)
        writer.apply([WANTED])
        writer.apply([RELEASED])
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)

    writer = bench.writer()
    writer.restore(writer.unclaimed())

    assert not bench.there
    assert not writer.unclaimed()


def test_a_foreign_change_is_found_and_retaken_after_a_while(bench):
    writer = bench.writer()
    writer.apply([WANTED])
    (bench.shelf.directory / "BE").unlink()

    assert writer.sweep() == [KEY]
    [waits] = writer.apply([WANTED])
    assert (waits.state, waits.foreign_change) == (ClaimState.WAITING, "foreign")
    bench.clock.tick(11)
    [retaken] = writer.apply([WANTED])

    assert (retaken.state, retaken.foreign_change) == (ClaimState.IN_FORCE, "retaken")
    assert bench.there == ["BE"]


def test_a_refusal_is_a_failed_claim_and_leaves_no_record(bench):
    bench.shelf.refuses = errno.EBUSY
    writer = bench.writer()

    [failed] = writer.apply([WANTED])

    assert failed.state is ClaimState.FAILED
    assert "shelf/BE: wanted to set 'present', found Device or resource busy" in failed.message
    assert not list(writer.ledger)


def test_another_object_of_the_same_name_is_not_ours(bench):
    """Its identity shows that; what was ours has ended with the one before."""
    writer = bench.writer()
    writer.apply([WANTED])
    bench.shelf.identities = 8

    writer.apply([RELEASED])

    assert bench.there == ["BE"]
    assert not list(writer.ledger)


@pytest.mark.parametrize(
    ("place", "level", "original"),
    [
        ("../../etc", "resctrl", ABSENT),
        ("a/b", "resctrl", ABSENT),
        (".", "resctrl", ABSENT),
        ("info", "resctrl", ABSENT),
        ("", "resctrl", ABSENT),
        ("BE", "pod", ABSENT),
        ("1", "process", ABSENT),
        ("", "node", ABSENT),
        ("BE", "resctrl", "whatever"),
        ("BE", "resctrl", "present\nabsent"),
    ],
)
def test_hostile_records_of_a_journal_are_refused_by_name(bench, place, level, original):
    writer = bench.writer()
    writer.apply([WANTED])
    journal = Journal(OwnedDirectory.open(bench.run_dir), "boot")
    [record] = journal.records.values()
    record.place, record.level, record.original = place, level, original
    journal.begin([record])

    found = bench.writer()

    assert len(found.ledger.refused) == 1
    assert found.unclaimed() == [KEY]


def test_dry_run_makes_nothing_and_explain_shows_what_it_would(bench):
    changes, dry = [], True

    async def is_dry(_):
        return dry

    async def story():
        nonlocal dry
        manager = ClaimManager(
            bench.writer(), InlineWorker(), bench.clock, dry_run=is_dry, listeners=[changes.append]
        )
        manager.declare("test", (ClaimScope(RESCTRL_GROUP, Level.RESCTRL),))
        claim = Claim(target=BE, resource=RESCTRL_GROUP, value="present", reason="class group")
        outcome = await manager.claim("test", claim)
        assert (outcome.state, bench.there) == (ClaimState.WOULD, [])
        [shown] = manager.snapshot()
        found = claimed_value_json(shown, ObservedValue(ABSENT, 0.0))
        assert (found["target"], found["wanted"], found["value"]) == (
            "resctrl BE", "present", "absent",
        )  # fmt: skip
        dry = False
        await manager.refresh()
        assert bench.there == ["BE"]
        assert [entry["target"] for entry in manager.in_force("BE")] == ["resctrl BE"]
        await manager.withdraw_all("test")
        assert bench.there == []

    asyncio.run(story())
    assert [change.what for change in changes] == ["would_set", "set", "restored"]


def test_objects_are_made_from_the_top_and_deleted_from_the_bottom():
    makes = [ValueChange(RESCTRL_GROUP, place, ABSENT, "present") for place in ("a/b", "a")]
    deletes = [ValueChange(RESCTRL_GROUP, place, "present", ABSENT) for place in ("a", "a/b")]

    assert [step.move for step in ordered_steps(makes)] == [1, 0]
    assert [step.move for step in ordered_steps(deletes)] == [1, 0]
