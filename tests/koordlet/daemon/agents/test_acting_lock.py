"""Of the daemons of one host, one acts, whatever their run directories are."""

import asyncio
import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from koord.util.health import OK, HealthStatus
from koord.util.stop import Stop
from koordlet.daemon.other_agents import LOCK_INTERVAL, ActingLock
from koordlet.plugin.testing.scripted import SimulatedClock

HOLDER = """\
import fcntl, os, sys
if len(sys.argv) > 2:
    os.setuid(int(sys.argv[2]))
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""
NOBODY = 65534


@contextlib.contextmanager
def locked_by_another(directory, *user):
    """A process that holds the lock; gives its pid."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory), *user],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"locked\n"
        yield process.pid
        process.stdin.close()


def is_locked(directory):
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class World:
    """A lock, and whether something needs it."""

    def __init__(self, directory, proc=Path("/proc")):
        self.clock = SimulatedClock()
        self.needed = True
        self.lock = ActingLock(directory, proc, self.clock, needed=lambda: self.needed)


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    yield world
    world.lock.close()


async def test_it_is_taken_by_who_is_about_to_act_and_by_none_before(world, tmp_path):
    """A daemon that only measures never has it."""
    await world.lock.settle()
    assert not is_locked(tmp_path)

    assert await world.lock.wait_observe_only() == ""
    assert world.lock.held
    assert is_locked(tmp_path)
    assert world.lock.health() == OK


async def test_it_is_released_when_no_plugin_may_act_any_more(world, tmp_path):
    await world.lock.wait_observe_only()
    await world.lock.settle()
    assert is_locked(tmp_path)

    world.needed = False
    stop = Stop(world.clock)
    running = asyncio.ensure_future(world.lock.run(stop))
    await world.clock.settle()
    await world.clock.advance(LOCK_INTERVAL)
    assert not is_locked(tmp_path)
    stop.set()
    await running


async def test_while_another_process_has_it_this_one_does_not_act(world, tmp_path):
    """It is named, and when it has gone the next attempt succeeds."""
    with capture_logs() as logs, locked_by_another(tmp_path) as pid:
        reason = await world.lock.wait_observe_only()
        assert reason == world.lock.reject_reason
        assert f"{tmp_path}: wanted to be the only koordlet that acts on this host" in reason
        assert f"found it locked by process {pid}; only observing: stop one of the two" in reason
        assert world.lock.health().status is HealthStatus.DEGRADED
        world.clock.tick(LOCK_INTERVAL)
        assert await world.lock.wait_observe_only() == reason
    assert await world.lock.wait_observe_only() == reason  # it is not asked for all the time
    world.clock.tick(LOCK_INTERVAL)

    assert await world.lock.wait_observe_only() == ""
    assert world.lock.health() == OK
    assert [log["event"] for log in logs] == ["acting_lock.held_elsewhere"]


async def test_who_does_not_want_to_act_any_more_is_not_refused(world, tmp_path):
    """Switched to dry-run, the daemon is well beside the other."""
    with locked_by_another(tmp_path):
        await world.lock.wait_observe_only()
        world.needed = False
        await world.lock.settle()

        assert (world.lock.reject_reason, world.lock.health()) == ("", OK)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")
async def test_another_users_lock_stops_no_daemon():
    """Any user may lock a directory that any user can read; only a koordlet's lock counts."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        world = World(Path(directory))
        with locked_by_another(directory, str(NOBODY)) as pid:
            assert await world.lock.wait_observe_only() == ""

            assert not world.lock.held
            health = world.lock.health()
        world.lock.close()
    assert health.status is HealthStatus.DEGRADED
    assert f"the lock of process {pid}, which is of user {NOBODY}; acting all the" in health.reason


async def test_a_holder_out_of_sight_is_taken_for_a_koordlet(tmp_path):
    """In a container without the host's processes nothing else is known of it."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "locks").write_text("")
    world = World(tmp_path, tmp_path / "proc")
    with locked_by_another(tmp_path):
        assert "a process that is not visible here" in await world.lock.wait_observe_only()


async def test_a_directory_that_cannot_be_locked_is_said(tmp_path):
    world = World(tmp_path / "none")

    assert await world.lock.wait_observe_only() == ""
    assert "none: cannot be locked: No such file" in world.lock.health().reason
