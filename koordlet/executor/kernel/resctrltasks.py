"""Moves the threads of a process to a control group of resctrl.

A thread is moved by its id, one write each; those that it makes later inherit the group. So all
threads are moved again until no new one is found. Of two that look at the process in between, one
after a crash amid the move, the first thread stands for all: it goes first into a group and last
out of it, so that what was half moved counts as moved, and is restored.
"""

import errno
import os
from collections.abc import Iterator

from koordlet.executor.claims.claim import Key
from koordlet.executor.kernel.processes import open_process
from koordlet.host.errors import KernelFileError
from koordlet.host.host import Host
from koordlet.host.resctrl.names import DEFAULT, MON_GROUPS
from koordlet.host.resctrl.status import last_status
from koordlet.host.resource import Root

ROUNDS = 8  # looks for new threads; one suffices unless the process makes many at this moment
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ResctrlTasks:
    """A Medium; see koordlet.executor.kernel.media."""

    def __init__(self, host: Host) -> None:
        self._paths = host.paths
        self._root = str(host.paths.resctrl)

    def identity(self, key: Key) -> int:
        """None: its start time tells a process apart, and is looked at. Raises OSError."""
        os.close(open_process(self._paths.proc, key.target))
        return 0

    def write(self, key: Key, identity: int, content: str) -> None:
        """As Medium.write."""
        process = open_process(self._paths.proc, key.target)
        try:
            for steps in _tasks_files(content):
                self._move(process, int(key.target.place), steps, into=content != DEFAULT)
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
            for _ in range(ROUNDS):
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
    control = (group,) if group.strip(DEFAULT) else ()
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


def medium(host: Host) -> ResctrlTasks:
    """As koordlet.executor.kernel.media wants it."""
    return ResctrlTasks(host)
