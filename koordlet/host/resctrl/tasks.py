"""The resctrl control group of a process's threads: read, and moved.

A thread is moved by its id, one write each; those that it makes later inherit the group. So all
threads are moved again until no new one is found. The first thread stands for all: it goes first
into a group and last out of it, so that what was half moved counts as moved, and is restored.

Source: kernel, arch/x86/kernel/cpu/resctrl/rdtgroup.c (proc_resctrl_show).
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from koordlet.host.errors import KernelFileError, Unsupported
from koordlet.host.files import read_head
from koordlet.host.paths import HostPaths
from koordlet.host.processes import open_process
from koordlet.host.resctrl.groups import last_status
from koordlet.host.resctrl.schemata import DEFAULT_GROUP, MON_GROUPS, is_membership
from koordlet.host.resource import ObjectKey, Root, Text

MEMBERSHIP_NEEDS = "resctrl, mounted, and Linux 5.6 (CONFIG_PROC_CPU_RESCTRL)"
_MAX_BYTES = 1024  # bytes; two names


def parse_membership(data: bytes) -> str:
    """Return the group of a task: "/", "BE", or with its monitoring group "BE/mon_groups/m1".

    Raises:
        ValueError: a line is missing, resctrl is not mounted, or a name is none that can be used.
    """
    fields = {}
    for line in data.decode("ascii", "replace").splitlines():
        name, _, value = line.partition(":")
        fields[name] = value
    if not fields.get("res"):
        raise ValueError("wanted a line res: with the name of a group, found none")
    group, monitor = fields["res"], fields.get("mon", "").strip("/")
    text = group
    if monitor:
        text = f"{group.removesuffix('/')}/{MON_GROUPS}/{monitor}"
    return _membership(text)


def _membership(text: str) -> str:
    if not isinstance(text, str) or not is_membership(text):
        raise ValueError(f"wanted the name of a control group, found {text!r:.80}")
    return text


MEMBERSHIP_TEXT: Text[str] = Text(_membership, parse_membership, _membership)


class ResctrlTaskReader:
    """Reads the group of a process's first thread. Threads inherit it from the one that made them.

    That the others are in the same is not looked at: it would be a read for each.
    """

    def __init__(self, paths: HostPaths) -> None:
        self._proc = paths.proc

    def path(self, pid: str) -> str:
        """The file that says so."""
        return f"{self._proc}/{pid}/cpu_resctrl_groups"

    def read(self, pid: str) -> bytes:
        """Return the control group of a process; raises as ObjectReader.read does."""
        path = self.path(pid)
        found = read_head(Path(path), _MAX_BYTES)
        if found.startswith(b"res:\n"):
            raise Unsupported.here(path, "that resctrl is not mounted", MEMBERSHIP_NEEDS)
        return found


MAX_SCANS = 8  # looks for new threads; one suffices unless the process makes many at this moment
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ResctrlTaskWriter:
    """The ObjectWriter of a process's control group; see koordlet.host.object_writers."""

    def __init__(self, paths: HostPaths) -> None:
        self._paths = paths
        self._root = str(paths.resctrl)

    def identity(self, key: ObjectKey) -> int:
        """Return 0: the start time, which is checked, identifies a process. Raises OSError."""
        os.close(open_process(self._paths.proc, key.target))
        return 0

    def write(self, key: ObjectKey, identity: int, content: str) -> None:
        """Move all threads of a process to a control group; raises as ObjectWriter.write does."""
        process = open_process(self._paths.proc, key.target)
        try:
            for steps in _tasks_files(content):
                self._move(process, int(key.target.place), steps, into=content != DEFAULT_GROUP)
        finally:
            os.close(process)

    def append(self, tasks: int, thread: int) -> None:
        """Move one thread. Raises OSError."""
        os.write(tasks, b"%d\n" % thread)

    def _move(self, process: int, pid: int, steps: tuple[str, ...], *, into: bool) -> None:
        """Move all threads to a group, which is reached by these steps from the root."""
        path = "/".join((self._root, *steps, "tasks"))
        try:
            tasks = self._open(steps)
        except OSError as err:
            raise KernelFileError(
                path,
                wanted="a control group to move a process to",
                found=err.strerror or repr(err),
                hint="it is tried again when the group is there",
            ) from err
        try:
            self._paths.check(tasks, Root.RESCTRL, path)
            moved: set[int] = set()
            for _ in range(MAX_SCANS):
                new = [thread for thread in _threads(process) if thread not in moved]
                if not new:
                    return
                for thread in sorted(new, key=lambda one: (one == pid) is not into):
                    self._append(tasks, path, thread)
                    moved.add(thread)
        finally:
            os.close(tasks)

    def _append(self, tasks: int, path: str, thread: int) -> None:
        try:
            self.append(tasks, thread)
        except ProcessLookupError:
            return  # it has ended
        except OSError as err:
            detail = last_status(self._paths)
            raise KernelFileError.from_write_error(
                path, err, f"to move thread {thread}", detail
            ) from err

    def _open(self, steps: tuple[str, ...]) -> int:
        """Open the tasks file of a group, without following a link. Raises OSError."""
        directory = os.open(self._root, _DIRECTORY)
        for step in steps:
            above = directory
            try:
                directory = os.open(step, _DIRECTORY, dir_fd=above)
            finally:
                os.close(above)
        try:
            return os.open("tasks", _WRITE | os.O_APPEND, dir_fd=directory)
        finally:
            os.close(directory)


def _tasks_files(membership: str) -> Iterator[tuple[str, ...]]:
    """The directories of the groups to move to, one after the other: the monitoring group last."""
    group, slash, monitor = membership.partition(f"/{MON_GROUPS}/")
    control = (group,) if group.strip(DEFAULT_GROUP) else ()
    yield control
    if slash:
        yield (*control, MON_GROUPS, monitor)


def _threads(process: int) -> list[int]:
    """The ids of the threads of an open process. Raises OSError: it has ended."""
    fd = os.open("task", _DIRECTORY, dir_fd=process)
    try:
        found = sorted(int(name) for name in os.listdir(fd))
    finally:
        os.close(fd)
    if not found:
        raise ProcessLookupError(errno.ESRCH, "it has ended")
    return found
