"""Python programs that start in a tenth of a second: forked where their modules are loaded.

A start of the daemon is a second of imports, and the suite has more than a hundred. The programs
are processes of their own with everything a process has; what is about the start itself (imports,
signals in the middle of it) starts a new interpreter.
"""

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

MOST_OUTPUT = 64 << 20  # bytes
SERVER = str(Path(__file__).with_name("warm_server.py"))


class Program:
    """A process, as subprocess.Popen has it."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status; negative: the signal that ended it.

        Raises:
            subprocess.TimeoutExpired: it runs on.
        """
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._status, select.POLLIN)
            if not waiting.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            [self.returncode] = struct.unpack("i", os.read(self._status, 4))
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class WarmPython:
    """An interpreter that has these modules loaded, and starts programs."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._one_at_a_time = threading.Lock()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, SERVER, str(theirs.fileno()), *modules],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def start(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        cwd: Path,
        stdin: IO[bytes],
        stdout: IO[bytes],
        stderr: IO[bytes],
    ) -> Program:
        """Start `-m MODULE ARGS` or `FILE ARGS`."""
        request = {"command": command, "environ": dict(environ), "cwd": str(cwd)}
        readable, status = os.pipe()
        streams = [stream.fileno() for stream in (stdin, stdout, stderr)]
        with self._one_at_a_time:
            socket.send_fds(self._requests, [json.dumps(request).encode()], [*streams, status])
            pid = int(self._requests.recv(64))
        os.close(status)
        return Program(pid, readable)

    def run(
        self,
        command: Sequence[str | Path],
        *,
        timeout: float | None = None,
        cwd: Path | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end, as subprocess.run does with captured text."""
        words = [str(word) for word in command]
        with (
            Path(os.devnull).open("rb") as nothing,
            tempfile.TemporaryFile() as stdout,
            tempfile.TemporaryFile() as stderr,
        ):
            program = self.start(
                words,
                environ=environ,
                cwd=cwd or Path.cwd(),
                stdin=nothing,
                stdout=stdout,
                stderr=stderr,
            )
            try:
                status = program.wait(timeout)
            except subprocess.TimeoutExpired:
                program.kill()
                raise
            streams = [os.pread(file.fileno(), MOST_OUTPUT, 0) for file in (stdout, stderr)]
        return subprocess.CompletedProcess(words, status, *(text.decode() for text in streams))

    def close(self) -> None:
        self._requests.close()
        self._server.wait()


@contextlib.contextmanager
def warm_python(*modules: str) -> Iterator[WarmPython]:
    """Start it, and end it when all is over."""
    python = WarmPython(modules)
    try:
        yield python
    finally:
        python.close()
