"""A kernel file that a plugin declares, on a real kernel: set, refused, and restored without it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from koord.util.clock import SystemClock
from koord.util.ownedfiles import OwnedDirectory
from koordlet.executor.claims.claim import ClaimState, DesiredValue, Key, Target
from koordlet.executor.journal import Journal
from koordlet.executor.kernel.writer import Writer
from koordlet.host.host import Host
from koordlet.host.resource import Level
from koordlet.plugin.kernel import IntegerForm, KernelFile

from .conftest import VERSION, Tree

# Files that every group has where the controller is on.
NAME, VALUE = {1: ("memory.swappiness", 30), 2: ("cpu.weight.nice", 5)}[VERSION]
POD = Target(Level.POD, "pod")


def writer_of(host: Host, run_dir: Path) -> Writer:
    return Writer(host, Journal(OwnedDirectory.open(run_dir), "this-boot"), SystemClock())


def test_a_declared_file_is_set_and_restored_from_the_journal_alone(
    tree: Tree, make_host: Callable[[], Host], tmp_path: Path
):
    """By a writer that has nothing but the record, as after kill -9 and without the plugin."""
    tree.make("pod")
    host = make_host()
    row = KernelFile(NAME, "a number", IntegerForm(-20, 150))
    file = Path(host.path(row, "pod"))
    if not file.exists():
        pytest.skip(f"this kernel has no {NAME}")
    before = file.read_bytes()
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    writer = writer_of(host, run_dir)

    [applied] = writer.apply([DesiredValue(Key(POD, row), VALUE, None, ("Test",))])
    assert (applied.state, file.read_text()) == (ClaimState.IN_FORCE, f"{VALUE}\n"), applied
    [refused] = writer.apply([DesiredValue(Key(POD, row), 151, None, ("Test",))])
    assert refused.state is ClaimState.FAILED
    assert file.read_text() == f"{VALUE}\n"
    [record] = writer.ledger.journal.records.values()
    assert json.loads(record.definition)["high"] == 150
    writer.ledger.journal.close()

    later = writer_of(make_host(), run_dir)
    [key] = later.unclaimed()
    assert (str(key), key.resource is row) == (f"{NAME} of pod", False)
    assert [each.wrote for each in later.restore([key])] == [True]
    assert file.read_bytes() == before
    assert not later.unclaimed()
