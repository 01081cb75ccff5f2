"""A machine inside this one: network, processes, mounts and cgroups of its own, ended as one.

Its cgroup root is a group of ours in each of this machine's hierarchies, as a node in a container
has it. What it writes to /etc, /opt, /run, /var/lib and /var/log is in its directory and in memory.
Only cgroups v1: on v2 the process would have to leave its root for the controllers.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.node.cgroup_trees import make_group
from tests.support.real_runtime.containerd_node import JOIN, CgroupMount, cgroup_mounts
from tests.support.real_runtime.containerd_node import unusable as no_containerd

TIMEOUT = 30.0  # seconds for the kernel to end what was killed
_GRACE = 5.0  # seconds for the first process to end when it is asked to
_PREFIX = "koord-cluster-"  # of the names of our groups; the process follows
_SHARES = 16 * 1024  # of CPU time, as many as sixteen of this machine's processes together
_OVERLAID = ("/etc", "/opt", "/var/lib", "/var/log")
# Arguments: the machine's directory, "type options directory" of each hierarchy, --, the command.
_SETUP = """
set -e
work=$1
shift
mount --make-rshared /  # containers see what the kubelet mounts for them
for each in $OVERLAID; do
  name=$(echo "$each" | tr / _)
  mkdir -p "$work/changed/$name" "$work/overlay/$name"
  mount -t overlay overlay "$each" \
    -o "lowerdir=$each,upperdir=$work/changed/$name,workdir=$work/overlay/$name"
done
mount -t tmpfs tmpfs /run
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
while [ "$1" != -- ]; do
  set -- $1 "$@"
  mkdir -p "$3"
  mount -t "$1" -o "$2" cgroup "$3"
  shift 4
done
shift
ip link set lo up
exec "$@"
"""


def unusable() -> str:
    """Why there can be none here; empty when there can."""
    if os.geteuid() != 0:
        return "needs root"
    lacking = [name for name in ("nsenter", "unshare", "ip") if not shutil.which(name)]
    return no_containerd() or (f"needs {' and '.join(lacking)}" if lacking else "")


class InnerMachine:
    """The machine, with its files in a directory of its own. A context manager: nothing stays."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pid = 0  # of its first process, as this machine numbers it
        self._mounts = list(cgroup_mounts())
        self._name = f"{_PREFIX}{os.getpid()}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "InnerMachine":
        remove_dead_groups(self._mounts)
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        for mount, group in zip(self._mounts, self._groups(), strict=True):
            make_group(group)
            if "cpu" in mount.options.split(","):
                # Its CPUs are its own when it wants them, whatever else this machine does.
                (group / "cpu.shares").write_text(f"{_SHARES}\n")
        return self

    def start(self, *command: str | Path) -> "subprocess.Popen[bytes]":
        """Begin with this as its first process. When it ends, so does all else in the machine."""
        mounts = [f"{each.kind} {each.options} {each.directory}" for each in self._mounts]
        procs = [str(group / "cgroup.procs") for group in self._groups()]
        spaces = ["--mount", "--cgroup", "--net", "--pid", "--ipc", "--uts", "--mount-proc"]
        self._process = subprocess.Popen(
            [
                "sh", "-c", JOIN, "sh", *procs, "--",
                # Neither outlives the one before it, however that ends.
                "setpriv", "--pdeathsig", "KILL", "unshare", "--fork", "--kill-child", *spaces,
                "sh", "-c", _SETUP, "sh", self.directory, *mounts, "--", *command,
            ],
            env={**os.environ, "OVERLAID": " ".join(_OVERLAID)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a ^C of the terminal is for us
        )  # fmt: skip
        self.pid = _only_child(self._process.pid)
        return self._process

    def enter(self, *command: str) -> Sequence[str]:
        """A command as one of this machine runs it in that one."""
        spaces = ["--mount", "--cgroup", "--net", "--pid", "--ipc", "--uts"]
        return ["nsenter", "-t", str(self.pid), *spaces, *command]

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._end(self._process)
        _remove_groups(self._groups())
        shutil.rmtree(self.directory)

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        """End the first of its processes, and by that all others."""
        for how, seconds in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, TIMEOUT)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
                return

    def _groups(self) -> list[Path]:
        return [each.directory / self._name for each in self._mounts]


def remove_dead_groups(mounts: Sequence[CgroupMount]) -> None:
    """Remove what a machine has left whose maker was killed."""
    for each in mounts:
        for group in each.directory.glob(f"{_PREFIX}*"):
            if not Path("/proc", group.name.removeprefix(_PREFIX)).exists():
                _remove_groups([group])


def _remove_groups(groups: Sequence[Path]) -> None:
    for group in groups:
        for directory, _, _ in os.walk(group, topdown=False):
            _retry(Path(directory))


def _retry(directory: Path) -> None:
    """Remove a group; the kernel may be about to end the last process in it."""
    until = time.monotonic() + TIMEOUT
    while True:
        try:
            directory.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return


def _only_child(pid: int) -> int:
    """The process that unshare has made."""
    until = time.monotonic() + TIMEOUT
    while time.monotonic() < until:
        for child in _children(pid):
            return child
        time.sleep(0.01)
    raise TimeoutError("no machine inside this one can be made here")


def _children(pid: int) -> Iterator[int]:
    try:
        yield from map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    except FileNotFoundError:
        sys.exit("no machine inside this one can be made here")
