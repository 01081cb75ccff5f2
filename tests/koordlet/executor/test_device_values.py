"""Claims on values by block device: as a whole or not at all, and back to the letter."""

import errno
import os

import pytest

from koord.util.ownedfiles import OwnedDirectory
from koordlet.executor.claims.claim import RELEASE, Claim, ClaimState, DesiredValue, Key, Target
from koordlet.executor.journal import Journal
from koordlet.executor.kernel.writer import Writer
from koordlet.host.files import Descriptors
from koordlet.host.host import Host
from koordlet.host.resource import Level
from koordlet.host.resources import (
    BLKIO_READ_BPS,
    BLKIO_WEIGHT,
    BLKIO_WRITE_IOPS,
    IO_MAX,
    IO_WEIGHT,
)
from koordlet.plugin.testing import FakeHost, SimulatedClock
from koordlet.plugin.testing.kernel import FakeKernelValues

GROUP = "kubepods/besteffort"
IN_FORCE, FAILED, GONE = ClaimState.IN_FORCE, ClaimState.FAILED, ClaimState.GONE


class Killed(BaseException):
    """As kill -9 at one step."""


class Devices(FakeKernelValues):
    """A kernel that has some devices."""

    def __init__(self, host: Host, step=lambda _: None, missing=()) -> None:
        super().__init__(host, step)
        self.missing = set(missing)
        self.written: list[str] = []

    def _write(self, place, key, inode, content):
        if content.decode().split()[0] in self.missing:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        self.written.append(content.decode().rstrip("\n"))
        super()._write(place, key, inode, content)


class Bench:
    """A fake host with one group, and the writers of processes that follow each other."""

    def __init__(self, root, version: int) -> None:
        self.fake = FakeHost(root / "host", version)
        self.group = self.fake.group(GROUP)
        self.run_dir = root / "run"
        self.run_dir.mkdir()
        self.missing: set[str] = set()
        self.values = None

    def writer(self, step=lambda _: None) -> Writer:
        host = Host(self.fake.paths, Descriptors(0))
        self.values = Devices(host, step, self.missing)
        return Writer(
            host,
            Journal(OwnedDirectory.open(self.run_dir), "boot"),
            SimulatedClock(),
            values=self.values,
        )


@pytest.fixture
def v1(tmp_path) -> Bench:
    return Bench(tmp_path, 1)


@pytest.fixture
def v2(tmp_path) -> Bench:
    return Bench(tmp_path, 2)


def desired(resource, value) -> DesiredValue:
    return DesiredValue(Key(Target(Level.QOS, GROUP), resource), value, None, ("Test",))


READ_BPS = "blkio/blkio.throttle.read_bps_device"


def test_each_device_is_a_write_of_its_own_and_all_come_back(v1):
    """Another agent's limits are restored as they were, those on other devices too."""
    v1.group.write(READ_BPS, "8:16 500\n8:0 700\n")
    writer = v1.writer()

    [applied] = writer.apply([desired(BLKIO_READ_BPS, {"8:0": 100, "7:0": 300})])
    assert (applied.state, applied.value) == (IN_FORCE, {"7:0": 300, "8:0": 100})
    assert applied.original == {"8:0": 700, "8:16": 500}
    assert v1.values.written == ["7:0 300", "8:0 100", "8:16 0"]
    assert not writer.sweep()
    assert not writer.apply([desired(BLKIO_READ_BPS, {"8:0": 100, "7:0": 300})])[0].wrote

    assert (
        writer.restore(writer.unclaimed() or [desired(BLKIO_READ_BPS, None).key])[0].state is GONE
    )
    assert sorted(v1.group.read(READ_BPS).splitlines()) == ["8:0 700", "8:16 500"]


def test_a_device_that_had_no_limit_has_none_again(v2):
    """ "max" for all of it takes the line away."""
    writer = v2.writer()

    writer.apply([desired(IO_MAX, {"8:16": {"rbps": 1048576, "wiops": 120}})])
    assert v2.group.read("io.max") == "8:16 rbps=1048576 wbps=max riops=max wiops=120"
    writer.apply([desired(IO_MAX, RELEASE)])

    assert v2.values.written[-1] == "8:16 rbps=max wbps=max riops=max wiops=max"
    assert v2.group.read("io.max") == ""
    assert not writer.unclaimed()


def test_kill_at_every_step_leaves_what_the_next_start_restores(tmp_path):
    """Between the writes of two devices the file is neither what it was nor what it shall be."""
    steps: list[str] = []
    bench = Bench(tmp_path / "count", 1) if (tmp_path / "count").mkdir() is None else None
    bench.writer(steps.append).apply([desired(BLKIO_READ_BPS, {"8:0": 1, "8:1": 2, "8:2": 3})])
    assert len(steps) == 9  # three writes, each with a moment before, after and read back

    for end in range(len(steps)):
        directory = tmp_path / str(end)
        directory.mkdir()
        bench, seen = Bench(directory, 1), []
        bench.group.write(READ_BPS, "8:1 7\n")

        def kill(step: str, end=end, seen=seen) -> None:
            seen.append(step)
            if len(seen) > end:
                raise Killed(step)

        with pytest.raises(Killed):
            bench.writer(kill).apply([desired(BLKIO_READ_BPS, {"8:0": 1, "8:1": 2, "8:2": 3})])
        after = bench.writer()
        after.restore(after.unclaimed())

        assert bench.group.read(READ_BPS) == "8:1 7", end
        assert not after.unclaimed()


def test_a_device_that_is_not_there_fails_the_claim_as_a_whole(v1):
    """The others are not limited either, and nothing stays in the journal."""
    v1.group.write(READ_BPS, "8:1 7\n")
    v1.missing = {"99:0"}
    writer = v1.writer()

    [applied] = writer.apply([desired(BLKIO_READ_BPS, {"8:0": 1, "8:1": 2, "99:0": 3})])

    assert (applied.state, "'99:0 3'" in applied.message) == (FAILED, True)
    assert "not a partition" in applied.message
    assert v1.group.read(READ_BPS) == "8:1 7"
    writer.apply([desired(BLKIO_READ_BPS, RELEASE)])
    assert not writer.ledger.journal.records


def test_a_device_that_is_gone_does_not_keep_others_from_being_restored(v1):
    """Its setting went with it."""
    v1.group.write(READ_BPS, "8:0 10\n9:0 7\n")
    v1.writer().apply([desired(BLKIO_READ_BPS, {"8:0": 1, "10:0": 3})])
    v1.missing = {"9:0", "10:0"}
    writer = v1.writer()

    [applied] = writer.restore(writer.unclaimed())

    assert applied.state is GONE
    assert "8:0 10" in v1.group.read(READ_BPS).splitlines()
    assert not writer.unclaimed()


def test_no_limits_is_a_value_to_restore_too(v1):
    """An original that the plugin gives counts, also when it is no device at all."""
    v1.group.write(READ_BPS, "8:0 10\n")
    writer, key = v1.writer(), desired(BLKIO_READ_BPS, None).key

    writer.apply([DesiredValue(key, {"8:0": 5}, {}, ("Test",))])
    writer.apply([DesiredValue(key, RELEASE)])

    assert v1.group.read(READ_BPS) == ""


def test_a_claim_does_not_follow_what_the_plugin_does_with_its_mapping():
    """Otherwise a change of it would look like no news."""
    limits = {"8:0": {"rbps": 5}}
    claim = Claim(target=Target(Level.QOS, GROUP), resource=IO_MAX, value=limits, reason="test")
    limits["8:0"]["rbps"] = 6

    assert claim.value == {"8:0": {"rbps": 5}}


def test_what_is_out_of_the_kernels_range_is_refused(v1):
    """It keeps 32 bits of operations per second; what is left of them might be none."""
    [applied] = v1.writer().apply([desired(BLKIO_WRITE_IOPS, {"8:0": 2**32})])

    assert (applied.state, "out of its range" in applied.message) == (FAILED, True)
    assert v1.values.written == []


@pytest.mark.parametrize("name", ["blkio.weight", "blkio.bfq.weight"])
def test_the_weight_is_where_the_kernel_has_it(v1, name):
    """Named after the scheduler cfq until Linux 5.0, then after bfq."""
    (v1.fake.paths.cgroup / "blkio" / "kubepods/blkio.bfq.weight").rename(
        v1.fake.paths.cgroup / "blkio/kubepods" / name
    )
    (v1.fake.paths.cgroup / "blkio" / GROUP / "blkio.bfq.weight").rename(
        v1.fake.paths.cgroup / "blkio" / GROUP / name
    )

    assert v1.writer().apply([desired(BLKIO_WEIGHT, 50)])[0].state is IN_FORCE
    assert v1.group.read(f"blkio/{name}") == "50"


def test_the_weight_of_v2(v2):
    """Only the group's own."""
    v2.group.write("io.weight", "default 100\n8:16 300\n")
    writer = v2.writer()

    assert writer.apply([desired(IO_WEIGHT, 200)])[0].original == 100
    assert v2.values.written == ["default 200"]
    v2.group.write("io.weight", "default 200\n8:16 300\n")
    assert not writer.sweep()
