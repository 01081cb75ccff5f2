"""The audit log takes events at once, writes them soon, and keeps within its disk."""

import asyncio
import errno
import os

import pytest

from koord.util.health import HealthStatus
from koordlet.executor.audit.files import MIB, LogBudget, rotated_files
from koordlet.executor.audit.log import MAX_PENDING_BYTES


@pytest.mark.parametrize(
    ("megabytes", "kept"), [(16, 7), (10, 4), (32, 15), (4, 1), (3, 1), (1, 1)]
)
def test_how_many_files_a_budget_allows(megabytes, kept):
    """Koordinator's numbers; below 4 MiB the files are smaller, so that one can be kept."""
    budget = LogBudget.of(megabytes)

    assert budget.rotated == kept
    assert budget.file_bytes * (1 + budget.rotated) <= megabytes * MIB
    assert budget.file_bytes == 2 * MIB or megabytes < 4


async def test_events_are_on_disk_within_a_second(bench):
    """Those that come together are one write, and nothing is held back."""
    run = asyncio.create_task(bench.log.run(bench.stop))
    bench.record("one")
    await bench.clock.settle()
    bench.record("two")
    bench.record("three")
    assert bench.messages() == ["one"]
    await bench.clock.advance(1)
    assert bench.messages() == ["three", "two", "one"]
    bench.record("four")
    bench.stop.set()
    await run
    bench.record("after the end")
    bench.log.close()
    assert bench.messages()[:2] == ["after the end", "four"]
    assert bench.count("written") == 4
    modes = [
        oct(path.stat().st_mode & 0o777) for path in (bench.directory, *bench.directory.iterdir())
    ]
    assert modes == ["0o750", "0o640"]


@pytest.mark.parametrize(
    ("verbose", "kept"), [(3, [0, 3]), (1, [0]), (0, [0, 3, 5]), (5, [0, 3, 5])]
)
async def test_more_verbose_events_are_left_out(bench, verbose, kept):
    """0 keeps all."""
    bench.log = bench.make(verbose=verbose)
    for verbosity in (0, 3, 5):
        bench.record(str(verbosity), verbosity=verbosity)
    await bench.log.flush()
    assert bench.messages() == [str(verbosity) for verbosity in reversed(kept)]


async def test_the_gate_is_asked_at_each_event(bench):
    """Switched off, nothing is recorded, and no directory made."""
    bench.enabled = False
    bench.record("off")
    await bench.log.flush()
    assert not bench.directory.exists()
    bench.enabled = True
    bench.record("on")
    await bench.log.flush()
    assert bench.messages() == ["on"]


async def test_files_are_rotated_and_the_oldest_removed(bench):
    """By their real size, over restarts; the whole stays within the budget."""
    bench.log = bench.make(megabytes=1)
    text = "x" * 900
    for number in range(2000):
        bench.record(f"{number} {text}")
        if number % 100 == 99:
            await bench.log.flush()
            bench.clock.tick(1)
            bench.log = bench.make(megabytes=1)  # a restart
    names = sorted(os.listdir(bench.directory))
    assert names[0].startswith("audit-2023-11-")
    assert names[0].endswith("-0.log")
    assert names[1:] == ["audit.log"]
    # At most one batch more than the budget, as files are rotated after a write.
    assert sum(path.stat().st_size for path in bench.directory.iterdir()) < 1.3 * MIB
    numbers = [int(message.split()[0]) for message in bench.messages()]
    assert numbers == list(range(1999, 1999 - len(numbers), -1))
    assert len(numbers) > 500


async def test_rotations_of_one_second_are_distinguished(bench):
    """By a number; the ninth takes the last one's place."""
    bench.log = bench.make(megabytes=32)
    for number in range(11):
        (bench.directory / "audit.log").parent.mkdir(exist_ok=True)
        (bench.directory / "audit.log").write_bytes(b"\n" * 2 * MIB)
        bench.record(str(number))
        await bench.log.flush()
    assert [name[-5] for name in rotated_files(bench.directory)] == list("876543210")
    assert bench.messages()[0] == "10"


async def test_a_restart_goes_on_after_half_a_line(bench):
    """What a crash cut off costs that line only."""
    bench.record("first")
    await bench.log.flush()
    with (bench.directory / "audit.log").open("ab") as file:
        file.write(b'{"createdAt":"2026-07-24T06:5')
    bench.log = bench.make()
    bench.record("second")
    await bench.log.flush()
    assert bench.messages() == ["second", "first"]


async def test_a_full_disk_is_reported_and_costs_nothing_but_the_log(bench, monkeypatch):
    """Events wait in memory, whole lines only reach the file, and all is well afterwards."""
    bench.record("before")
    await bench.log.flush()
    real = os.write

    def no_room(fd, data):
        if len(data) < 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[: len(data) // 2])

    run = asyncio.create_task(bench.log.run(bench.stop))
    with monkeypatch.context() as patch:
        patch.setattr("koordlet.executor.audit.log.os.write", no_room)
        bench.record("during")
        await bench.clock.advance(3)
        assert bench.messages() == ["before"]
        health = bench.log.health()
        assert health.status is HealthStatus.DEGRADED
        assert "No space left on device; free some space" in health.reason
        assert "--audit-log-dir" in health.reason
        bench.record("later")
    await bench.clock.advance(5)
    assert bench.messages() == ["later", "during", "before"]
    assert bench.log.health().status is HealthStatus.OK
    bench.stop.set()
    await run


async def test_events_that_cannot_be_written_are_bounded(bench):
    """The oldest are lost, and counted."""
    bench.directory.write_text("a file stands in the way")
    for number in range(2000):
        bench.record(f"{number} " + "x" * 900)
        if number % 500 == 0:
            await bench.log.flush()
    bench.log.close()
    lost = bench.count("lost")
    assert 800 < lost < 1200
    bench.directory.unlink()
    await bench.log.flush()
    assert len(bench.messages()) == 2000 - lost
    assert sum(path.stat().st_size for path in bench.directory.iterdir()) <= MAX_PENDING_BYTES


@pytest.mark.parametrize("what", ["link", "hard link", "pipe", "directory", "open to all"])
async def test_only_a_plain_file_is_written_to(bench, tmp_path, what):
    """Files planted there are neither followed nor waited for."""
    bench.directory.mkdir()
    place, other = bench.directory / "audit.log", tmp_path / "other"
    other.write_text("precious")
    match what:
        case "link":
            place.symlink_to(other)
        case "hard link":
            place.hardlink_to(other)
        case "pipe":
            os.mkfifo(place)
        case "open to all":
            bench.directory.chmod(0o1777)
        case "directory":
            place.mkdir()
    bench.record("event")
    await bench.log.flush()
    assert bench.log.problem
    assert other.read_text() == "precious"
    assert bench.count("written") in (None, 0)


async def test_a_log_that_is_removed_by_hand_begins_anew(bench):
    """No notification is needed."""
    bench.record("first")
    await bench.log.flush()
    (bench.directory / "audit.log").unlink()
    bench.record("second")
    await bench.log.flush()
    assert bench.messages() == ["second"]
