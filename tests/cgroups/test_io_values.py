"""Limits and weights by block device on a real kernel: accepted, refused, and back to the byte."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koord.util.clock import SystemClock
from koord.util.ownedfiles import OwnedDirectory
from koordlet.executor.claims.claim import RELEASE, ClaimState, DesiredValue, Key, Target
from koordlet.executor.journal import Journal
from koordlet.executor.kernel.writer import Writer
from koordlet.host import resources as r
from koordlet.host.host import Host
from koordlet.host.resource import Level

from .conftest import VERSION, Tree

LIMITS = {
    1: {
        r.BLKIO_READ_BPS: (1048576, 2**40),
        r.BLKIO_WRITE_BPS: (1, 10**12),
        r.BLKIO_READ_IOPS: (100, 2**32 - 2),
        r.BLKIO_WRITE_IOPS: (1, 5000),
    },
    2: {
        r.IO_MAX: ({"rbps": 1048576, "wiops": 120}, {"wbps": 2**40, "riops": 2**32 - 2}),
        r.IO_LATENCY: ({"target": 75000}, {"target": 10**6}),
    },
}[VERSION]
WEIGHTS = {1: (r.BLKIO_WEIGHT,), 2: (r.IO_WEIGHT, r.IO_BFQ_WEIGHT)}[VERSION]


def _disks() -> list[str]:
    """Whole block devices of this machine; a loop device will do, bound or not."""
    disks = sorted(Path("/sys/block").glob("*/dev"))
    return [disk.read_text().strip() for disk in disks if not disk.parent.name.startswith("zram")]


DISKS = _disks()
IN_FORCE, FAILED, GONE = ClaimState.IN_FORCE, ClaimState.FAILED, ClaimState.GONE


@pytest.fixture
def host(tree: Tree, make_host: Callable[[], Host]) -> Host:
    tree.make("pod")
    return make_host()


def desired(row: Any, value: Any) -> DesiredValue:
    return DesiredValue(Key(Target(Level.POD, "pod"), row), value, None, ("Test",))


def file_of(host: Host, row: Any) -> Path:
    path = Path(host.path(row, "pod"))
    if not path.exists():
        pytest.skip(f"this kernel has no {path.name}")
    return path


@pytest.mark.skipif(len(DISKS) < 2, reason="needs two block devices; modprobe loop")
@pytest.mark.parametrize("row", LIMITS, ids=lambda row: row.name)
def test_limits_by_device(host, tmp_path, row):
    """Set, changed, moved to another device, and after kill -9 restored with what another set."""
    file = file_of(host, row)
    one, other = LIMITS[row]
    how, (first, second) = host.file(row).text, DISKS[:2]
    foreign = how.content(how.of({second: other}), b"")
    file.write_text(foreign)
    before = file.read_bytes()
    assert host.read(row, "pod") == {second: other}
    writer = Writer(host, Journal(OwnedDirectory.open(tmp_path), "this-boot"), SystemClock())

    for value in ({first: one}, {first: other, second: one}, {second: other}, {first: one}, {}):
        [applied] = writer.apply([desired(row, value)])
        assert (applied.state, applied.value) == (IN_FORCE, value), applied
        assert host.read(row, "pod") == value
        assert not writer.sweep()
    writer.apply([desired(row, {first: other, second: one})])
    again = Writer(host, Journal(OwnedDirectory.open(tmp_path), "this-boot"), SystemClock())
    [applied] = again.restore(again.unclaimed())

    assert applied.state is GONE
    assert file.read_bytes() == before


@pytest.mark.skipif(not DISKS, reason="needs a block device")
@pytest.mark.parametrize("row", LIMITS, ids=lambda row: row.name)
def test_a_device_that_is_not_there(host, tmp_path, row):
    """The whole claim fails in words, the kernel has nothing of it, and neither has the journal."""
    file, (one, _) = file_of(host, row), LIMITS[row]
    writer = Writer(host, Journal(OwnedDirectory.open(tmp_path), "this-boot"), SystemClock())

    [applied] = writer.apply([desired(row, {DISKS[0]: one, "4095:77": one})])

    assert applied.state is FAILED
    assert "no such device" in applied.message
    assert file.read_bytes() == b""
    assert not writer.ledger.journal.records


@pytest.mark.parametrize("row", WEIGHTS, ids=lambda row: row.name)
def test_weights(host, tmp_path, row):
    """Those of the kernel's schedulers, whichever it has."""
    file = file_of(host, row)
    before = file.read_bytes()
    writer = Writer(host, Journal(OwnedDirectory.open(tmp_path), "this-boot"), SystemClock())

    [applied] = writer.apply([desired(row, 250)])
    assert (applied.state, applied.value, applied.original) == (IN_FORCE, 250, 100)
    assert file.read_bytes() != before
    [refused] = writer.apply([desired(row, 10_001)])
    assert (refused.state, "out of its range" in refused.message) == (FAILED, True)
    writer.apply([desired(row, RELEASE)])

    assert file.read_bytes() == before


def test_a_group_that_ends_takes_its_limits_along(tree, host, tmp_path):
    """The kernel says "no such device" then, too."""
    row = next(row for row in LIMITS if os.path.exists(host.path(row, "pod")))
    writer = Writer(host, Journal(OwnedDirectory.open(tmp_path), "this-boot"), SystemClock())
    writer.apply([desired(row, {DISKS[0]: LIMITS[row][0]})])
    tree.remove("pod")

    [applied] = writer.apply([desired(row, {DISKS[0]: LIMITS[row][1]})])

    assert applied.state is GONE
    assert not writer.ledger.journal.records
