"""Faults of make cluster-soak: kill -9 of a program of the cluster, or of a daemon's process."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROGRAMS = ("kube-apiserver", "etcd", "kubelet", "containerd")
DAEMONS = ("koordlet", "koord-descheduler", "koord-scheduler", "koord-manager")
SHORTEST, LONGEST = 2.0, 10.0  # seconds from one fault to the next


class Faults:
    """Kills one of them at a time, chosen by a random number generator."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.done: Counter[str] = Counter()
        self._pids = directory / "pids"
        self._chance = chance

    def wait(self) -> float:
        """Seconds until the next one."""
        return self._chance.uniform(SHORTEST, LONGEST)

    def kill(self) -> str:
        """Kill one and return its name; empty when that one does not run at the moment."""
        name = self._chance.choice(PROGRAMS + DAEMONS)
        pids = sorted(processes_of(name)) if name in DAEMONS else [self._program(name)]
        turn = self._chance.random()
        if not pids:
            return ""
        with suppress(ProcessLookupError):
            os.kill(pids[int(turn * len(pids))], signal.SIGKILL)
            self.done[name] += 1
            return name
        return ""

    def _program(self, name: str) -> int:
        """Return the process that the supervisor has started last."""
        return int((self._pids / name).read_text())


def processes_of(daemon: str) -> Iterator[int]:
    """Yield the processes of a daemon's containers on the real node."""
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (directory / "cmdline").read_bytes().split(b"\0")
            if len(command) > 1 and command[1] == f"/{daemon}".encode():
                yield int(directory.name)


def say(what: str, began: float) -> None:
    """Print a line with the seconds since the beginning."""
    print(f"{time.monotonic() - began:6.1f} s  {what}", flush=True)
