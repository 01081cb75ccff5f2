"""Kernel files that plugins declare: claimed, journalled and restored like those of the table."""

import contextlib
from dataclasses import replace

import pytest

from koord.util.errors import OptionError
from koord.util.ownedfiles import OwnedDirectory
from koordlet.executor.claims.claim import (
    RELEASE,
    Claim,
    ClaimScope,
    ClaimState,
    DesiredValue,
    Key,
    Target,
)
from koordlet.executor.claims.table import ClaimTable
from koordlet.executor.journal import Journal
from koordlet.executor.kernel.values import KernelValues
from koordlet.executor.kernel.writer import Writer
from koordlet.host.files import Descriptors
from koordlet.host.host import Host
from koordlet.host.kernelfile import ChoiceForm, IntegerForm, IntegerOrMaxForm, KernelFile
from koordlet.host.resource import Level
from koordlet.plugin.testing import FakeHost, SimulatedClock
from tests.support.node.model_tree import BOOT, Died, Mortal

POD = Target(Level.POD, "kubepods/pod1", qos="BE")
PIDS = KernelFile("pids.max", "tasks", IntegerOrMaxForm(1, 4_194_304))
SWAPPINESS = KernelFile("/proc/sys/vm/swappiness", "percent", IntegerForm(0, 100))
KIND = KernelFile("misc.kind", "a word", ChoiceForm(("hot", "cold")))
VALUES = {Key(POD, PIDS): 50, Key(POD, KIND): "cold", Key(Target.node(), SWAPPINESS): 10}


class Node:
    """A node with the three files, and writers that come and go on it."""

    def __init__(self, root, version):
        self.root, self.version = root, version
        self.host = FakeHost(root / "host", version)
        self.group = self.host.group(POD.place)
        self.run = root / "run"
        self.run.mkdir()

    def file(self, name):
        return f"{name.partition('.')[0]}/{name}" if self.version == 1 else name

    def dawn(self):
        self.group.write(self.file("pids.max"), "max\n")
        self.group.write(self.file("misc.kind"), "hot\n")
        self.host.write("proc/sys/vm/swappiness", "160\n")  # beyond what the plugin may set
        (self.run / "journal").unlink(missing_ok=True)

    def snapshot(self):
        return (
            self.group.read(self.file("pids.max")),
            self.group.read(self.file("misc.kind")),
            self.host.read("proc/sys/vm/swappiness"),
        )

    def writer(self, step=lambda name: None):
        host = Host(self.host.paths, Descriptors(0))
        journal = Journal(OwnedDirectory.open(self.run), BOOT, step=step)
        return Writer(host, journal, SimulatedClock(), values=KernelValues(host, step))

    def restore(self, step=lambda name: None):
        """As the next start does, which has the plugin no more: from the journal alone."""
        writer = self.writer(step)
        return writer.restore(writer.unclaimed(), at_once=True)


BEFORE, SQUEEZED = ("max", "hot", "160"), ("50", "cold", "10")


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def node(request, tmp_path):
    node = Node(tmp_path, request.param)
    node.dawn()
    return node


def want(key, value):
    return DesiredValue(key, value, None, ("P",))


def live(node, step=lambda name: None):
    """Claim all, change one, withdraw one."""
    writer = node.writer(step)
    applied = writer.apply([want(*pair) for pair in VALUES.items()])
    assert [each.state for each in applied] == [ClaimState.IN_FORCE] * 3, applied
    assert node.snapshot() == SQUEEZED
    writer.apply([want(Key(POD, PIDS), -1)])
    writer.apply([want(Key(POD, PIDS), 70)])
    writer.apply([DesiredValue(Key(POD, KIND), RELEASE)])
    return writer


def test_after_death_at_any_step_the_next_start_restores_without_the_plugin(node):
    hook = Mortal()
    live(node, hook)
    assert node.snapshot() == ("70", "hot", "10")
    assert len(hook.steps) > 15
    for at, step in enumerate(hook.steps, 1):
        node.dawn()
        with pytest.raises(Died):
            live(node, Mortal(at))
        with contextlib.suppress(Died):
            node.restore(Mortal(at % 5 + 1))
        node.restore()
        assert node.snapshot() == BEFORE, step
        assert not node.writer().unclaimed()


def test_a_later_declaration_of_the_file_goes_on_with_the_record(node):
    """Another range and another form: the value is still ours, with its original."""
    live(node)
    wider = KernelFile("pids.max", "processes", IntegerForm(0, 200))
    writer = node.writer()
    key = Key(POD, wider)

    [applied] = writer.apply([want(key, 150)])

    assert (applied.state, applied.value) == (ClaimState.IN_FORCE, 150)
    assert key not in writer.unclaimed()
    [record] = [r for r in writer.ledger.journal.records.values() if r.resource == "pids.max"]
    assert (record.original, record.definition) == ("max", wider.definition)


def test_a_value_outside_of_the_declaration_is_not_written(node):
    for key, value in ((Key(POD, PIDS), 0), (Key(POD, KIND), "warm"), (Key(POD, PIDS), "7")):
        [applied] = node.writer().apply([want(key, value)])
        assert applied.state is ClaimState.FAILED
        assert "it is not written" in applied.message
    assert node.snapshot() == BEFORE
    assert not node.writer().unclaimed()


def test_a_file_that_is_not_of_the_form_is_not_claimed(node):
    """What was there could not be restored."""
    node.group.write(node.file("pids.max"), "9 of 10\n")

    [applied] = node.writer().apply([want(Key(POD, PIDS), 5)])

    assert applied.state is ClaimState.FAILED
    assert node.group.read(node.file("pids.max")) == "9 of 10"


def test_a_file_that_this_kernel_lacks_is_unsupported(node):
    row = KernelFile("rdma.none", "x", IntegerForm(0, 1))
    other = {1: "io.none", 2: "blkio.none"}[node.version]
    for missing in (row, KernelFile(other, "x", IntegerForm(0, 1))):
        [applied] = node.writer().apply([want(Key(POD, missing), 1)])
        assert applied.state is ClaimState.UNSUPPORTED


def test_a_record_that_names_another_file_is_refused_and_left(node):
    """By name, at the start; the records beside it count."""
    node.group.write(node.file("pids.current"), "50\n")
    writer = live(node)
    journal = writer.ledger.journal
    [record] = [r for r in journal.records.values() if r.resource == "pids.max"]
    for name in ("cgroup.procs", "../pids.max", "cpu_shares", "pids.current", "cpu.max"):
        journal.begin([replace(record, resource=name, confirmed="50", original="1")])

    found = node.writer()
    assert len(found.ledger.refused) == 5
    assert "'cgroup.procs' of 'kubepods/pod1'" in found.ledger.refused
    node.restore()

    assert node.snapshot() == BEFORE
    assert node.group.read(node.file("pids.current")) == "50"


def test_two_plugins_with_one_file_are_in_conflict():
    """By the file, whatever each declares of it."""
    table, other = ClaimTable(), KernelFile("pids.max", "x", IntegerForm(1, 9))
    table.declare("A", (ClaimScope(PIDS, Level.POD),))

    with pytest.raises(OptionError, match=r"B may_claim: found 'value of pids\.max at level pod"):
        table.declare("B", (ClaimScope(other, Level.POD),))
    with pytest.raises(OptionError, match="declare it in may_claim"):
        table.check("A", Claim(target=POD, resource=other, value=5, reason="because"))
    table.check("A", Claim(target=POD, resource=PIDS, value=5, reason="because"))
    with pytest.raises(OptionError, match=r"wanted level node for /proc/sys/vm/swappiness"):
        table.declare("C", (ClaimScope(SWAPPINESS, Level.POD),))
