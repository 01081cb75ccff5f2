"""A daemon under measurement: its own process, its own cgroup."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.tree import ROOT

KOORDLET = (str(Path(sys.executable).with_name("koordlet")),)
GROUP = "koordlet-benchmark"
_CONTROLLERS = ("cpuacct", "memory")

Enter = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a stretch of time. memory_mib is charged by the kernel, page tables included."""

    cores: float
    rss_mib: float
    memory_mib: float
    held_descriptors: int


class Daemon:
    """A running daemon, observed over HTTP and through its cgroup."""

    def __init__(self, process: "subprocess.Popen[bytes]", address: str) -> None:
        self.pid = process.pid
        self._process = process
        self.url = f"http://{address}"

    def fetch(self, path: str) -> bytes:
        """The body of one GET."""
        with urllib.request.urlopen(self.url + path, timeout=10) as response:
            body: bytes = response.read()
            return body

    def wait_until_measuring(self, pods: int, deadline: float = 60) -> None:
        """Return when the newest exposition shows every pod."""
        what = f"show {pods} pods"
        self.wait(lambda: self.fetch("/metrics").count(b"koordlet_pod_cpu_usage_cores{") >= pods,
                  what, deadline)  # fmt: skip

    def wait(self, until: Callable[[], bool], what: str, deadline: float = 60) -> None:
        """Return when the condition holds; failing to connect counts as not yet.

        Raises:
            RuntimeError: it did not within deadline seconds, or the daemon ended.
        """
        end = time.monotonic() + deadline
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                if until():
                    return
            if self._process.poll() is not None:
                raise RuntimeError(f"the daemon ended with status {self._process.returncode}")
            time.sleep(0.5)
        raise RuntimeError(f"the daemon did not {what} within {deadline} s")

    def cost(self, seconds: float) -> Cost:
        """Watch it for a while and return its cost per second."""
        before, start = self._cpu_ns(), time.monotonic()
        time.sleep(seconds)
        cores = (self._cpu_ns() - before) / 1e9 / (time.monotonic() - start)
        return Cost(cores, self.rss_mib(), self._memory_mib(), self._descriptors())

    def rss_mib(self) -> float:
        """Resident memory, files mapped into it included."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def _cpu_ns(self) -> int:
        return int((ROOT / "cpuacct" / GROUP / "cpuacct.usage").read_text())

    def _memory_mib(self) -> float:
        return int((ROOT / "memory" / GROUP / "memory.usage_in_bytes").read_text()) / 2**20

    def _descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))


@contextlib.contextmanager
def own_group() -> Iterator[Enter]:
    """Make the cgroup whose cost is measured; yield a function that moves the caller into it."""
    groups = [ROOT / controller / GROUP for controller in _CONTROLLERS]
    for group in groups:
        group.mkdir(exist_ok=True)

    def enter() -> None:
        for group in groups:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    try:
        yield enter
    finally:
        for group in groups:
            group.rmdir()


@contextlib.contextmanager
def running_daemon(
    run_dir: Path,
    flags: Sequence[str] = (),
    *,
    program: Sequence[str] = KOORDLET,
    standalone: bool = True,
    enter: Enter | None = None,
) -> Iterator[Daemon]:
    """Start the daemon of this checkout, in the cgroup that enter leads to; stop it."""
    address = f"127.0.0.1:{free_port()}"
    command = [
        *program,
        *(["--standalone"] if standalone else []),
        f"--addr={address}",
        f"--run-dir={run_dir}",
        "--log-level=warning",
        *flags,
    ]
    environ = {**os.environ, "agent_mode": "hostMode"}  # this host's directories, in a cluster too
    with started(command, environ, enter) as process:
        yield Daemon(process, address)


@contextlib.contextmanager
def started(
    command: Sequence[str],
    environ: Mapping[str, str],
    enter: Enter | None,
    output: IO[bytes] | None = None,
) -> "Iterator[subprocess.Popen[bytes]]":
    """Start a program in the cgroup that enter leads to; stop it. output: None is the caller's."""
    process = subprocess.Popen(
        command,
        env=environ,
        stdout=output,
        stderr=output,
        preexec_fn=enter,  # noqa: PLW1509
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """Return a port of the loopback that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
