"""Signals to the real process, at any moment of its life."""

import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from koordlet.plugin.testing import FakeHost

TRIES = 10
# A file system that does not answer, in a worker thread; with less time than the default of 10 s.
HANGING = """
import time
from koordlet.daemon import run
from koordlet.statesinformer.pod_source import PodSource
run.STOP_LIMIT = 0.5
PodSource._look = lambda self: time.sleep(3600)
from koordlet.cli.koordlet import main
main()
"""
LONGEST = 0.7  # seconds after which it has started
PARALLEL = 3


@pytest.fixture
def host(tmp_path):
    return FakeHost(tmp_path / "host")


@pytest.fixture
def start(koordlet, host):
    flags = [
        "--standalone",
        f"--cgroup-root-dir={host.paths.cgroup}",
        f"--proc-root-dir={host.paths.proc}",
        f"--sys-root-dir={host.paths.sys}",
    ]
    return lambda *args, **options: koordlet(*flags, *args, **options)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_at_any_moment_of_the_start_ends_it_without_a_traceback(start, number):
    """By the signal until the daemon has taken it over, in order from then on."""

    def strike(turn):
        if number == signal.SIGINT:  # what Python says to it before our first line is not ours
            daemon = start(PYTHONPROFILEIMPORTTIME="1")
            daemon.until(lambda: "asyncio" in daemon.stderr)
        else:
            daemon = start(cold=True)
        time.sleep(LONGEST * turn / TRIES)
        daemon.signal(number)
        return daemon.wait(60), daemon.stderr

    with ThreadPoolExecutor(PARALLEL) as pool:
        for status, stderr in pool.map(strike, range(TRIES)):
            assert status in (0, -number), stderr
            assert "Traceback" not in stderr
            assert status != 0 or "daemon.stopped" in stderr


def test_a_second_signal_ends_it_at_once(start):
    """A user who presses ^C twice does not want to wait. Both come while it does not run."""
    daemon = start()
    daemon.wait_ready()
    daemon.signal(signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT)

    assert daemon.wait() == 1
    assert daemon.events("daemon.killed_by_second_signal")
    assert not daemon.events("daemon.stopped")
    assert "Traceback" not in daemon.stderr


def test_a_request_under_way_is_answered_and_an_idle_client_does_not_hold_it(start):
    """Keep-alive connections are closed; SIGTERM ends it within two seconds."""
    daemon = start()
    daemon.wait_ready()

    def connect():
        return socket.create_connection(daemon.address, timeout=60)

    with connect() as idle, connect() as half:
        idle.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(4096).startswith(b"HTTP/1.1 200")
        half.sendall(b"GET /metrics HTT")
        before = time.monotonic()
        assert daemon.stop() == 0
    assert time.monotonic() - before < 4


def test_nothing_that_hangs_keeps_it_from_ending(start, host):
    """A thread in a kernel read is given up; after any other the process ends as it is."""
    os.mkfifo(host.paths.proc / "hanging")
    (host.paths.proc / "hanging").rename(host.paths.proc / "meminfo")
    in_sampling, in_a_worker = start(), start(program=("-c", HANGING))
    for daemon in (in_sampling, in_a_worker):
        daemon.wait_ready()
        daemon.signal(signal.SIGTERM)

    assert in_sampling.wait(60) == 0
    assert in_sampling.events("daemon.stopped")
    assert in_a_worker.wait(60) == 1
    assert in_a_worker.events("daemon.stop_forced")
    assert "Traceback" not in in_sampling.stderr + in_a_worker.stderr


def test_hangup_reads_the_config_file_again(start, tmp_path):
    """Changed or not; without one it says so."""
    config = tmp_path / "koordlet.yaml"
    config.write_text("feature-gates: {PressureWatch: true}\n")
    with_file, without = start(f"--config={config}"), start()
    for daemon in (with_file, without):
        daemon.wait_ready()
    with_file.signal(signal.SIGHUP)
    without.signal(signal.SIGHUP)

    with_file.until(lambda: with_file.events("config.read"))
    assert without.events("sighup.ignored")
    assert [daemon.stop() for daemon in (with_file, without)] == [0, 0]
