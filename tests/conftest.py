"""Settings of all tests, and the daemon as users run it: a process, signals, real sockets."""

import contextlib
import gc
import http.client
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import settings

from koord.util import logs
from tests.support.warm_python import Program, WarmPython, warm_python

# The same examples in every run, and no failures because a machine is slow.
settings.register_profile(
    "koordlet", derandomize=True, deadline=None, database=None, max_examples=40
)
settings.register_profile("thorough", settings.get_profile("koordlet"), max_examples=200)
settings.load_profile("koordlet")

# A shell starts its background processes deaf to ^C, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

WARM_MODULES = (
    "koordlet.cli.daemon",
    "koordlet.cli.ctl.client",
    "aiohttp.web",
)  # what programs of tests import
TIMEOUT = 180.0  # seconds in which anything must happen, in an emulated machine too


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """A command in a test sets form and levels of all logs, but not those of the next test."""
    before = structlog.get_config()["processors"]
    yield
    if structlog.get_config()["processors"] is not before:
        logs.configure("json", logs.LevelSpec())


def pytest_collection_finish() -> None:
    """Thousands of tests stay until the end: the garbage collector need not look at them."""
    gc.collect()
    gc.freeze()


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("koordlet", timeout=TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT)
        self.sock.connect(str(self._path))


class Koordlet:
    """One process. What it prints goes to a file; it says over NOTIFY_SOCKET when it is ready."""

    def __init__(
        self,
        directory: Path,
        run_dir: Path,
        command: Sequence[str],
        environ: Mapping[str, str],
        warm: WarmPython | None,
    ) -> None:
        self.run_dir = run_dir
        self._log = directory / "stderr"
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(str(directory / "notify"))
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "NOTIFY_SOCKET": str(directory / "notify"),
            **environ,
        }
        self.process: Program | subprocess.Popen[bytes]
        with self._log.open("wb") as log, Path(os.devnull).open("rb") as nothing:
            if warm is not None:
                self.process = warm.start(
                    command, environ=environ, cwd=directory, stdin=nothing, stdout=log, stderr=log
                )
            else:
                self.process = subprocess.Popen(
                    [sys.executable, *command],
                    env=environ,
                    stdin=nothing,
                    stdout=log,
                    stderr=log,
                    cwd=directory,
                )

    def wait_ready(self) -> list[str]:
        """Return the lines of its first message once it serves.

        Raises:
            AssertionError: it ended before that, or takes too long.
        """
        pidfd = os.pidfd_open(self.process.pid)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(pidfd, selectors.EVENT_READ, "ended")
                selector.register(self._notify, selectors.EVENT_READ, "told")
                found = {key.data for key, _ in selector.select(TIMEOUT)}
        finally:
            os.close(pidfd)
        assert "told" in found, f"not ready: {found or 'late'}\n{self.stderr}"
        return self._notify.recv(4096).decode().splitlines()

    def wait(self, seconds: float = TIMEOUT) -> int:
        """Return the exit status; negative: the signal that ended it."""
        return self.process.wait(seconds)

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self.process.kill()
        self.process.wait()

    def signal(self, *numbers: signal.Signals) -> None:
        for number in numbers:
            self.process.send_signal(number)

    def stop(self) -> int:
        """End it as systemd does; return the exit status."""
        self.process.terminate()
        return self.wait()

    @property
    def stderr(self) -> str:
        return self._log.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log events of that name."""
        whole = self.stderr.split("\n")[:-1]
        lines = (line for line in whole if line.startswith("{"))
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def ctl(self, path: str) -> Any:
        """The answers to koordletctl."""
        _, body = _get(UnixConnection(self.run_dir / "ctl.sock"), f"/{path}")
        return json.loads(body)

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of an HTTP response."""
        return _get(http.client.HTTPConnection(*self.address, timeout=TIMEOUT), path)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of HTTP, once it is ready."""
        [started] = self.events("daemon.started")
        host, _, port = started["address"].rpartition(":")
        return host, int(port)

    def until(self, condition: Callable[[], Any], seconds: float = TIMEOUT) -> Any:
        """Ask again and again until the response is true; return it."""
        deadline = time.monotonic() + seconds
        while not (answer := condition()):
            assert time.monotonic() < deadline, f"still not so after {seconds} s\n{self.stderr}"
            assert self.process.poll() is None, self.stderr
            time.sleep(0.02)
        return answer

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self._notify.close()


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmPython]:
    """Python with what the daemon and koordletctl import."""
    plugins = {entry.module for entry in entry_points(group="koordlet.qos_plugins")}
    with warm_python(*WARM_MODULES, *sorted(plugins)) as python:
        yield python


@pytest.fixture
def koordlet(warm: WarmPython) -> Iterator[Callable[..., Koordlet]]:
    """Starts the daemon standalone, on any free loopback port, in a run directory of its own.

    cold: in a new interpreter, for what is about the start.
    """
    with contextlib.ExitStack() as stack:
        # Not tmp_path: the path of a socket may have 107 characters.
        short = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="koordlet-")))

        def start(
            *args: str,
            run_dir: Path | None = None,
            program: Sequence[str] = ("-m", "koordlet.cli.koordlet"),
            cold: bool = False,
            **environ: str,
        ) -> Koordlet:
            directory = Path(tempfile.mkdtemp(dir=short))
            run_dir = run_dir or directory / "run"
            own = [f"--run-dir={run_dir}", "--addr=127.0.0.1:0", "--log-format=json"]
            cold |= program[0] == "-c" or any(name.startswith("PYTHON") for name in environ)
            command = [*program, *own, *args]
            daemon = Koordlet(directory, run_dir, command, environ, None if cold else warm)
            stack.callback(daemon.close)
            return daemon

        yield start


def _get(connection: http.client.HTTPConnection, path: str) -> tuple[int, str]:
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
