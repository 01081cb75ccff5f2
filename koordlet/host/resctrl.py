"""resctrl: control groups, their schemata, and the tasks in them."""

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from koordlet.host.errors import KernelFileError, Unsupported
from koordlet.host.files import read_head
from koordlet.host.paths import HostPaths
from koordlet.host.processes import open_process
from koordlet.host.resource import ABSENT, ObjectKey, Root, Text, optional_text

DEFAULT_GROUP = "/"  # the group of all tasks that are in no other one
MON_GROUPS = "mon_groups"
_RESERVED_NAMES = frozenset({"info", "mon_data", MON_GROUPS})
_MAX_NAME_LENGTH = 255  # bytes of a name in the kernel's file systems


def is_group_name(name: str) -> bool:
    """Whether a name is that of one directory right below the root of resctrl."""
    plain = name.isascii() and name.isprintable() and "/" not in name
    return (
        plain
        and 0 < len(name) <= _MAX_NAME_LENGTH
        and name[0] != "."
        and name not in _RESERVED_NAMES
    )


def is_membership(text: str) -> bool:
    """Whether a text says where a task can be: "/", "BE" or "BE/mon_groups/m1"."""
    if text == DEFAULT_GROUP:
        return True
    group, slash, monitor = text.partition(f"/{MON_GROUPS}/")
    return (is_group_name(group) or (not group and bool(slash))) and (
        not slash or is_group_name(monitor)
    )


L3, MB = "L3", "MB"
MAX_CACHES = 256
_BASES = {L3: 16, MB: 10}
_MASK = re.compile(r"[0-9a-fA-F]{1,16}", re.ASCII)
_ENTRIES = {  # the kernel fills up with spaces
    L3: re.compile(r"[0-9]{1,5}= *[0-9a-fA-F]{1,16}", re.ASCII),
    MB: re.compile(r"[0-9]{1,5}= *[0-9]{1,16}", re.ASCII),
}


def parse_line(resource: str, data: bytes) -> str:
    """Return the value of a resource. Raises ValueError: there is no line of it, or it is bad."""
    for line in data.decode("ascii", "replace").splitlines():
        name, colon, rest = line.partition(":")
        if colon and name.strip() == resource:
            return render(resource, entries(resource, rest))
    raise ValueError(f"wanted a line {resource}:, found none")


def parse_mask(data: bytes) -> int:
    """Return the number of a mask in hexadecimal. Raises ValueError."""
    text = data.decode("ascii", "replace").strip()
    if not _MASK.fullmatch(text):
        raise ValueError(f"wanted a mask in hexadecimal, found {text!r:.40}")
    return int(text, 16)


def entries(resource: str, text: str) -> dict[int, int]:
    """Return the numbers of a line by cache id. Raises ValueError."""
    found: dict[int, int] = {}
    for entry in text.strip().split(";"):
        if not entry:
            continue
        if not _ENTRIES[resource].fullmatch(entry.strip()):
            raise ValueError(f"wanted <cache id>=<number>, found {entry!r:.40}")
        cache, _, number = entry.partition("=")
        found[int(cache)] = int(number, _BASES[resource])
    if not 0 < len(found) <= MAX_CACHES:
        raise ValueError(f"wanted 1 to {MAX_CACHES} caches, found {len(found)}")
    return found


def render(resource: str, numbers: Mapping[int, int]) -> str:
    """Return the text of numbers by cache id."""
    form = "x" if _BASES[resource] == 16 else "d"
    return ";".join(f"{cache}={number:{form}}" for cache, number in sorted(numbers.items()))


def schemata_text(resource: str) -> Text[str]:
    """How the line of a resource is read and written; the other lines stay as they are."""
    return Text(
        of=partial(_canonical, resource),
        shown=partial(parse_line, resource),
        value=partial(_canonical, resource),
        content=lambda text, now: f"{resource}:{text}",
    )


def is_positive(resource: str, text: str) -> bool:
    """Accept a part of each cache, of which none is empty."""
    try:
        return all(number > 0 for number in entries(resource, text).values())
    except ValueError:
        return False


def _canonical(resource: str, text: str) -> str:
    if isinstance(text, str):
        return render(resource, entries(resource, text))
    raise ValueError(f"wanted a text as 0=3c;1=3c, found {text!r:.60}")


_MAX_STATUS_BYTES = 200  # bytes


def last_status(paths: HostPaths) -> str:
    """Return the kernel's own words about the last command; "": it was accepted, or has none.

    Source: kernel docs, filesystems/resctrl (last_cmd_status).
    """
    try:
        text = read_head(paths.resctrl / "info/last_cmd_status", _MAX_STATUS_BYTES)
    except KernelFileError:
        return ""
    found = " ".join(text.decode("ascii", "replace").split())
    return "" if found == "ok" or not found.isprintable() else found


PRESENT = "present"
RESCTRL_NEEDS = (
    "a CPU with cache or bandwidth allocation, CONFIG_X86_CPU_RESCTRL, and resctrl mounted"
)


def parse_presence(data: bytes) -> str:
    """Return "present" or "absent". Raises ValueError: it is neither."""
    return _presence(data.decode("ascii", "replace").removesuffix("\n"))


def _presence(text: str) -> str:
    if text not in (PRESENT, ABSENT):
        raise ValueError(f"wanted {PRESENT} or {ABSENT}, found {text!r:.40}")
    return text


PRESENCE_TEXT: Text[str] = optional_text(Text(_presence, parse_presence, _presence))


class ResctrlGroupReader:
    """Reads whether a group is there."""

    def __init__(self, paths: HostPaths) -> None:
        self._root = paths.resctrl

    def path(self, name: str) -> str:
        """The directory of a group."""
        return f"{self._root}/{name}" if name else str(self._root)

    def read(self, name: str) -> bytes:
        """Return the state of a control group as a line; raises as ObjectReader.read does."""
        check_mounted(self._root)
        path = self.path(name)
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return f"{ABSENT}\n".encode()
        except OSError as err:
            raise KernelFileError.from_os_error(path, err) from err
        if not stat.S_ISDIR(mode):
            raise KernelFileError(
                path,
                wanted="a control group",
                found="a file of that name",
                hint="give the group another name",
            )
        return f"{PRESENT}\n".encode()


def check_mounted(root: Path) -> None:
    """Raise Unsupported unless resctrl is mounted there."""
    if not os.path.exists(root / "schemata"):
        raise Unsupported.here(str(root), "that resctrl is not mounted", RESCTRL_NEEDS)


GROUP_MODE = 0o755
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HINTS = {
    errno.ENOSPC: "each group takes a CLOSID, of which a CPU has few (info/*/num_closids); "
    "remove groups, or have fewer pods with one of their own",
    errno.EBUSY: "the kernel works on resctrl; it is tried again",
}


class ResctrlGroupWriter:
    """The ObjectWriter of resctrl control groups; see koordlet.host.object_writers."""

    def __init__(self, paths: HostPaths) -> None:
        self._paths = paths
        self._root = str(paths.resctrl)

    def identity(self, key: ObjectKey) -> int:
        """Return the inode of the mount, as the group comes and goes."""
        return os.stat(self._root).st_ino

    def write(self, key: ObjectKey, identity: int, content: str) -> None:
        """Make or remove a control group; raises as ObjectWriter.write does."""
        name = key.target.place
        directory = os.open(self._root, _DIRECTORY)
        try:
            if os.fstat(directory).st_ino != identity:
                raise FileNotFoundError(errno.ENOENT, "resctrl was mounted anew")
            self._paths.check_directory(directory, Root.RESCTRL, self._root)
            if content == ABSENT:
                with suppress(FileNotFoundError):  # absent is what was wanted
                    self.remove(directory, name)
            else:
                with suppress(FileExistsError):
                    self.make(directory, name)
        except OSError as err:
            if err.errno in _HINTS:
                raise self._refused(name, err) from err
            raise
        finally:
            os.close(directory)

    def make(self, directory: int, name: str) -> None:
        """Make a group. Raises OSError."""
        os.mkdir(name, GROUP_MODE, dir_fd=directory)

    def remove(self, directory: int, name: str) -> None:
        """Remove a group. Raises OSError."""
        os.rmdir(name, dir_fd=directory)

    def _refused(self, name: str, err: OSError) -> KernelFileError:
        detail = last_status(self._paths)
        found = f"{err.strerror}{f' ({detail})' if detail else ''}"
        return KernelFileError(
            f"{self._root}/{name}",
            wanted="another control group",
            found=found,
            hint=_HINTS[err.errno or 0],
        )


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
