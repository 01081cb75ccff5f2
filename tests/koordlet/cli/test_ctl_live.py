"""The live view of koordletctl top on a real terminal."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from dataclasses import replace

import pytest

from koord.util.clock import stamp
from koordlet.metriccache.kinds import POD_CPU_USAGE, POD_MEMORY_USAGE, Sample

TIMEOUT = 60.0  # seconds; only a broken view takes them
LEFT = b"\x1b[?1049l"  # back from the alternate screen


class Terminal:
    """A terminal of 80 by 24 with `koordletctl top` on it."""

    def __init__(self, run_dir):
        self.screen, inside = pty.openpty()
        self.resize(80, 24)
        self.before = termios.tcgetattr(inside)
        self._inside = inside
        self._seen = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "koordlet.cli.koordletctl", "top", "--run-dir", run_dir],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env={"PATH": os.environ["PATH"], "TERM": "xterm"},  # no COLUMNS: they would win
            process_group=0,  # ^Z stops the whole group
        )

    def resize(self, width, height):
        fcntl.ioctl(self.screen, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def type(self, keys):
        os.write(self.screen, keys)

    def until(self, text):
        """Return what was shown up to and with that text."""
        deadline = time.monotonic() + TIMEOUT
        while text not in self._seen:
            ready, _, _ = select.select([self.screen], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"{text!r} was never shown, but {self._seen[-500:]!r}"
            self._seen += os.read(self.screen, 65536)
        shown, _, self._seen = self._seen.partition(text)
        return shown + text

    def ended(self):
        """Return the exit status; the terminal must be as before."""
        code = self.process.wait(TIMEOUT)
        assert termios.tcgetattr(self._inside) == self.before
        return code

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._inside)
        os.close(self.screen)


@pytest.fixture
def terminal(daemon):
    daemon.cache.append(
        stamp(daemon.clock),
        [
            Sample(POD_CPU_USAGE, 0.25, ("uid-web",)),
            Sample(POD_CPU_USAGE, 0.125, ("uid-batch",)),
            Sample(POD_MEMORY_USAGE, 2**20, ("uid-web",)),
            Sample(POD_MEMORY_USAGE, 2**21, ("uid-batch",)),
        ],
    )
    terminal = Terminal(daemon.run_dir)
    yield terminal
    terminal.close()


def test_keys_sort_and_q_quits(terminal):
    """The order in force is marked; other keys, arrows too, do nothing."""
    first = terminal.until(b"quit")
    terminal.type(b"m")
    second = terminal.until(b"quit")
    terminal.type(b"\x1b[C")
    terminal.until(b"quit")
    terminal.type(b"xQ")
    terminal.until(LEFT)

    assert first.index(b"default/web") < first.index(b"default/batch")
    assert second.index(b"default/batch") < second.index(b"default/web")
    assert b"\x1b[7mcpu" in first
    assert b"\x1b[7mmemory" in second
    assert terminal.ended() == 0


def test_it_looks_again_by_itself(terminal, daemon):
    """Each second."""
    terminal.until(b"0.25")
    daemon.clock.tick(1)
    daemon.cache.append(stamp(daemon.clock), [Sample(POD_CPU_USAGE, 3.75, ("uid-web",))])

    terminal.until(b"3.75")


@pytest.mark.parametrize("end", [b"\x03", b"\x04", signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_left_as_it_was(terminal, end):
    """However the view ends."""
    terminal.until(b"quit")
    if isinstance(end, bytes):
        terminal.type(end)
    else:
        terminal.process.send_signal(end)
    terminal.until(LEFT)

    assert terminal.ended() == 0


def test_suspended_it_gives_the_terminal_back(terminal):
    """As with ^Z in any program; fg goes on."""
    terminal.until(b"quit")
    terminal.type(b"\x1a")
    terminal.until(LEFT)
    _, status = os.waitpid(terminal.process.pid, os.WUNTRACED)
    stopped_as_before = termios.tcgetattr(terminal._inside) == terminal.before
    os.kill(terminal.process.pid, signal.SIGCONT)
    terminal.until(b"quit")
    terminal.type(b"q")
    terminal.until(LEFT)

    assert os.WIFSTOPPED(status)
    assert stopped_as_before
    assert terminal.ended() == 0


def test_it_follows_the_size_of_the_terminal(terminal):
    """At once; a wide one gets wider gaps."""
    wide_gap = b"  \x1b[0m\x1b[1mMEMORY"
    narrow = terminal.until(b"quit")
    terminal.resize(120, 30)
    terminal.process.send_signal(signal.SIGWINCH)
    terminal.until(wide_gap)

    assert wide_gap not in narrow


def test_a_daemon_may_go_and_come_back(daemon, serve, tmp_path):
    """Meanwhile the view shows why there are no figures, not the last ones."""
    again = replace(daemon, run_dir=tmp_path / "other")
    again.run_dir.mkdir()
    with contextlib.ExitStack() as stack:
        with serve(again):
            terminal = Terminal(again.run_dir)
            stack.callback(terminal.close)
            terminal.until(b"quit")
        gone = terminal.until(b"q quits")
        with serve(again):
            terminal.until(b"default/web")

    assert b"no ctl.sock" in gone
