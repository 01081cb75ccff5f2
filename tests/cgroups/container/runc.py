"""A container under runc, and how to talk to it from outside."""

import ctypes
import json
import os
import select
import shutil
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

from .seccomp import PROFILE

CLONE_NEWNET = 0x40000000
WAIT = 120.0  # real seconds, in an emulated machine too
# Go's scheduler interrupts itself by signals, and runc passes each on to the container: in an
# emulated machine it gets to nothing else.
_ENVIRON = {**os.environ, "GODEBUG": "asyncpreemptoff=1"}


def missing() -> str:
    """What this machine lacks to run containers; "" when nothing."""
    if not shutil.which("runc"):
        return "runc (Debian: apt-get install runc)"
    if not PROFILE.exists():
        return f"{PROFILE} (Debian: apt-get install golang-github-containers-common)"
    return ""


class Container:
    """One container: created first, so that its network is there, then started."""

    def __init__(self, directory: Path, name: str, spec: dict[str, Any]) -> None:
        self.name = name
        self._state = directory / "state"
        self._bundle = directory / "bundle"
        self._log = directory / "output"
        (self._bundle / "rootfs").mkdir(parents=True)
        (self._bundle / "config.json").write_text(json.dumps(spec))

    def create(self) -> "Container":
        """Make namespaces, cgroup and mounts; nothing runs yet."""
        with self._log.open("wb") as log:
            done = subprocess.run(
                [*self._runc, "create", "--bundle", self._bundle, self.name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_ENVIRON,
                timeout=WAIT,
            )
        assert done.returncode == 0, self.output
        return self

    def start(self) -> None:
        self._do("start", self.name)

    def run(self) -> str:
        """Create, start and wait for a command; return what it printed."""
        return self._do("run", "--bundle", str(self._bundle), self.name)

    def execute(self, *command: str) -> str:
        """What a command prints that is run in the container, as `kubectl exec` does.

        Its status may be 1, by which koordletctl reports a problem.
        """
        return self._do("exec", self.name, *command, good=(0, 1))

    def stop(self) -> None:
        """End it as a kubelet does, and wait for the end."""
        process = os.pidfd_open(self.pid)
        try:
            self._do("kill", self.name, "TERM")
            ended, _, _ = select.select([process], [], [], WAIT)
        finally:
            os.close(process)
        assert ended, f"it does not end\n{self.output}"

    def remove(self) -> None:
        """Leave nothing behind, whatever state it is in."""
        command = [*self._runc, "delete", "--force", self.name]
        subprocess.run(command, capture_output=True, env=_ENVIRON, timeout=WAIT)

    @property
    def output(self) -> str:
        """What its process has printed, when it was created first."""
        return self._log.read_text() if self._log.exists() else ""

    @property
    def pid(self) -> int:
        """The process, as the host numbers it."""
        return int(json.loads(self._do("state", self.name))["pid"])

    def socket(self) -> socket.socket:
        """A TCP socket in the container's network: a socket stays where it was made."""
        made: list[socket.socket] = []

        def make() -> None:
            with open(f"/proc/{pid}/ns/net") as namespace:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(namespace.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            made.append(socket.socket())

        pid = self.pid
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        return made[0]

    @property
    def _runc(self) -> list[str]:
        return ["runc", "--root", str(self._state)]

    def _do(self, *arguments: str, good: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(
            [*self._runc, *arguments], capture_output=True, text=True, timeout=WAIT, env=_ENVIRON
        )
        assert done.returncode in good, f"{arguments}: {done.stderr}\n{self.output}"
        return done.stdout
