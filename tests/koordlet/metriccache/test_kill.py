"""kill -9 at any moment: every completed column is there afterwards, and no torn one."""

import importlib.util
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from koord.util.clock import stamp
from koordlet.metriccache.kinds import NODE_CPU_USAGE, POD_CPU_USAGE, Sample
from koordlet.metriccache.ring import HEADER_BYTES, unpack_header

WRITER = Path(__file__).with_name("ring_writer.py")
KILLS = 60


@pytest.fixture
def writer_module():
    spec = importlib.util.spec_from_file_location("ring_writer", WRITER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_killed_writers_lose_nothing_that_was_complete(tmp_path, writer_module):
    """Real processes, killed at random moments of appending, growing and reusing rows."""
    directory, progress = tmp_path / "metrics", tmp_path / "progress"
    moments = random.Random(3)
    before = (0, 0)
    with subprocess.Popen(
        [sys.executable, WRITER, directory, progress],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as parent:
        for number in range(KILLS):
            print("next", file=parent.stdin, flush=True)
            victim = int(parent.stdout.readline())
            while number % 2 and writer_module.read_progress(progress) == before:
                time.sleep(0.001)  # every other one comes as far as writing
            time.sleep(moments.uniform(0.001, 0.02))  # the moment of a kill is the test's subject
            os.kill(victim, signal.SIGKILL)
            assert parent.stdout.readline() == "gone\n"
            before = _check(writer_module, directory, progress, before)
    assert before > (0, 0)


def _check(writer, directory, progress, before):
    """All ticks that were noted as completed are whole; what was begun is there whole or not."""
    begun, last = writer.read_progress(progress)
    if last == 0:
        return begun, last
    clock = writer.TickClock()
    clock.tick = begun
    with capture_logs() as logs:
        cache = writer.open_cache(directory, clock)
    found = {
        key: dict(aggregate.points())
        for key, aggregate in cache.aggregate_all(POD_CPU_USAGE, writer.RETENTION).items()
    }
    cache.close()
    assert not [log for log in logs if log["event"] == "ring.discarded"]
    ticks = {int(boot - writer.FIRST_BOOT) for boot in found[("steady-0",)]}
    assert last in ticks
    for tick in ticks:
        boot = writer.FIRST_BOOT + tick
        for _, value, key in writer.samples(tick):
            assert found[key][boot] == value
    assert sum(map(len, found.values())) == len(ticks) * len(writer.samples(0))
    last_begun, _ = before  # by the writer that was killed before this one
    assert ticks >= set(range(max(last_begun, last - 99) + 1, last + 1))
    return begun, last


def test_a_kill_between_any_two_bytes(make_cache, clock, tmp_path):
    """Every image that an interrupted append can leave opens, with or without that column."""
    metrics = tmp_path / "metrics"
    file = metrics / "pod_cpu_usage.ring"
    keys = [("a",), ("b",), ("c",)]
    cache = make_cache(metrics)
    for tick in range(3):
        clock.tick(1)
        cache.append(stamp(clock), [Sample(POD_CPU_USAGE, tick + 0.5, key) for key in keys[:2]])
    old = file.read_bytes()
    clock.tick(1)
    cache.append(stamp(clock), [Sample(POD_CPU_USAGE, 9.5, key) for key in keys])
    cache.close()

    states = set()
    for image in _interrupted(old, file.read_bytes()):
        file.write_bytes(image)
        reopened = make_cache(metrics)
        states.add(
            tuple(
                tuple(value for _, value in reopened.series(POD_CPU_USAGE, key, 300))
                for key in keys
            )
        )
        reopened.close()

    before, after = (0.5, 1.5, 2.5), (0.5, 1.5, 2.5, 9.5)
    assert states == {(before, before, ()), (after, after, (9.5,))}


def _interrupted(old, new):
    """File images while `old` becomes `new`, in the order of the stores."""
    _, geometry = unpack_header(old[:HEADER_BYTES])
    parts = [
        range(HEADER_BYTES, geometry.stamps_at),
        range(geometry.cells_at, geometry.file_bytes),
        range(geometry.stamps_at, geometry.cells_at),
    ]
    image = bytearray(old)
    yield bytes(image)
    for part in parts:
        for at in part:
            if image[at] != new[at]:
                image[at] = new[at]
                yield bytes(image)
    assert image == new


def test_a_kill_before_the_first_column(make_cache, clock, tmp_path):
    """A file without any column is an ordinary sight, not a damage."""
    metrics = tmp_path / "metrics"
    cache = make_cache(metrics)
    clock.tick(1)
    cache.append(stamp(clock), [Sample(NODE_CPU_USAGE, 1.0)])
    cache.close()
    file = metrics / "node_cpu_usage.ring"
    data = bytearray(file.read_bytes())
    _, geometry = unpack_header(bytes(data[:HEADER_BYTES]))
    data[geometry.stamps_at :] = bytes(len(data) - geometry.stamps_at)
    file.write_bytes(data)

    with capture_logs() as logs:
        cache = make_cache(metrics)

    assert cache.last(NODE_CPU_USAGE) is None
    assert [log["log_level"] for log in logs] == ["info"]
