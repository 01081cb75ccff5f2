"""Emulate kernel files that read back other text than was written, and resctrl."""

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koordlet.executor.claims.claim import Key
from koordlet.executor.kernel.values import KernelValues
from koordlet.host import resctrl
from koordlet.host.objects import RESCTRL_GROUPS, RESCTRL_MEMBERSHIPS
from koordlet.host.resctrl import ResctrlGroupWriter, ResctrlTaskWriter
from koordlet.host.resource import Root, Text

if TYPE_CHECKING:
    from koordlet.plugin.testing.host import FakeHost


_AMD_UNLIMITED = 2048
_STAT = "{pid} (it) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0\n"
_USAGE = ("llc_occupancy", "mbm_local_bytes", "mbm_total_bytes")


class FakeResctrl:
    """resctrl, mounted on a fake host."""

    def __init__(
        self,
        host: "FakeHost",
        *,
        mask: int = 0x7FF,
        fewest_ways: int = 1,
        caches: Iterable[int] = (0, 1),
        closids: int = 16,
        vendor: str = "GenuineIntel",
        bandwidth: bool = True,
    ) -> None:
        """closids: groups that there can be, the default one included."""
        self._host = host
        self.root = host.paths.resctrl
        full = _AMD_UNLIMITED if vendor == "AuthenticAMD" else 100
        ids = sorted(caches)
        lines = [f"    L3:{';'.join(f'{cache}={mask:x}' for cache in ids)}"] if mask else []
        if bandwidth:
            lines.insert(0, f"    MB:{';'.join(f'{cache}={full}' for cache in ids)}")
        self._write("info/L3/cbm_mask", f"{mask:x}\n")
        self._write("info/L3/min_cbm_bits", f"{fewest_ways}\n")
        self._write("info/L3/num_closids", f"{closids}\n")
        self._write("info/last_cmd_status", "ok\n")
        self._write("full", "\n".join(lines) + "\n")  # what a new group has; no file of a kernel
        _fill(self.root, self.root)
        host.object_writers[RESCTRL_GROUPS] = FakeResctrlGroups
        host.object_writers[RESCTRL_MEMBERSHIPS] = FakeResctrlTasks
        text = host.read("proc/cpuinfo").replace("GenuineIntel", vendor)
        host.write("proc/cpuinfo", text + "\n")

    @property
    def groups(self) -> list[str]:
        """The control groups, without the default one."""
        return sorted(_groups(self.root))

    def schemata(self, group: str = "") -> str:
        """The lines of a group, without what the kernel fills up with."""
        text = (self.root / group / "schemata").read_text()
        return "\n".join(line.strip() for line in text.splitlines())

    def tasks(self, group: str = "") -> list[int]:
        """The threads in a group."""
        return sorted(map(int, (self.root / group / "tasks").read_text().split()))

    def start(self, pid: int, *, threads: Iterable[int] = (), group: str = "", at: int = 0) -> None:
        """A process begins in a group: "", which is the default one, or that of its parent."""
        proc = self._host.paths.proc
        self._host.write(f"proc/{pid}/stat", _STAT.format(pid=pid, start=at or pid * 10))
        for thread in (pid, *threads):
            (proc / f"{pid}/task/{thread}").mkdir(parents=True, exist_ok=True)
            _put(self.root, self.root / group, thread)
        _show(proc, self.root, pid)

    def end(self, pid: int) -> None:
        """A process ends."""
        for thread in os.listdir(self._host.paths.proc / f"{pid}/task"):
            _take(self.root, int(thread))
        shutil.rmtree(self._host.paths.proc / str(pid))

    def make(self, group: str) -> None:
        """Another agent makes a group."""
        (self.root / group).mkdir()
        _fill(self.root, self.root / group)

    def remove(self, group: str) -> None:
        """Another agent removes a group."""
        _remove(self._host.paths.proc, self.root, group)

    def move(self, pid: int, group: str) -> None:
        """Another agent moves a process."""
        for thread in os.listdir(self._host.paths.proc / f"{pid}/task"):
            _put(self.root, self.root / group, int(thread))
        _show(self._host.paths.proc, self.root, pid)

    def use(self, group: str, cache: int, **usage: int | str) -> None:
        """Set what the tasks of a group use of a cache: llc_occupancy, mbm_local_bytes, ..."""
        for name, value in usage.items():
            self._write(f"{group}/mon_data/mon_L3_{cache:02}/{name}", f"{value}\n")

    def unmount(self) -> None:
        """All is gone, but the directory."""
        shutil.rmtree(self.root)
        self.root.mkdir()

    def _write(self, path: str, text: str) -> None:
        self._host.write(f"sys/fs/resctrl/{path}", text)


class FakeResctrlGroups(ResctrlGroupWriter):
    """Makes and removes groups as the kernel does."""

    def make(self, directory: int, name: str) -> None:
        root = Path(self._root)
        if (root / "busy").exists():
            raise _reject_reason(root, errno.EBUSY, "pseudo-locking in progress")
        if not (root / name).exists():
            most = int((root / "info/L3/num_closids").read_text()) - 1
            if len(list(_groups(root))) >= most:
                raise _reject_reason(root, errno.ENOSPC, "Out of CLOSIDs")
        super().make(directory, name)
        _fill(root, root / name)

    def remove(self, directory: int, name: str) -> None:
        root = Path(self._root)
        if not (root / name).exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        _remove(self._paths.proc, root, name)


class FakeResctrlTasks(ResctrlTaskWriter):
    """Moves threads as the kernel does."""

    def append(self, tasks: int, thread: int) -> None:
        group = Path(os.readlink(f"/proc/self/fd/{tasks}")).parent
        proc, root = self._paths.proc, Path(self._root)
        process = next(iter(proc.glob(f"*/task/{thread}")), None)
        if process is None:
            raise _reject_reason(root, errno.ESRCH, "No such process")
        _put(root, group, thread)
        _show(proc, root, int(process.parts[-3]))


def write_schemata(root: Path, group: Path, line: str) -> str:
    """Return a group's schemata after one line was written. Raises OSError, as the kernel does."""
    name, _, rest = line.partition(":")
    lines = dict(each.strip().split(":") for each in (group / "schemata").read_text().splitlines())
    if name not in lines:
        raise _reject_reason(root, errno.EINVAL, f"Unknown or unsupported resource name '{name}'")
    numbers = resctrl.entries(name, lines[name])
    for cache, number in resctrl.entries(name, rest).items():
        if cache not in numbers:
            raise _reject_reason(root, errno.EINVAL, "Domain not found")
        numbers[cache] = _accepted_number(root, name, number)
    (root / "info/last_cmd_status").write_text("ok\n")
    lines[name] = resctrl.render(name, numbers)
    return "".join(f"{name:>6}:{text}\n" for name, text in lines.items())


def _accepted_number(root: Path, name: str, number: int) -> int:
    """Return the number that the kernel stores for a written one. Raises OSError."""
    if name == resctrl.MB:
        most = max(resctrl.entries(name, resctrl.parse_line(name, _read(root / "full"))).values())
        least, step = (1, 1) if most == _AMD_UNLIMITED else (10, 10)
        if not least <= number <= most:
            text = f"MB value {number} out of range [{least},{most}]"
            raise _reject_reason(root, errno.EINVAL, text)
        return -(-number // step) * step
    mask = int((root / "info/L3/cbm_mask").read_text(), 16)
    fewest = int((root / "info/L3/min_cbm_bits").read_text())
    if not 0 < number <= mask:
        raise _reject_reason(root, errno.EINVAL, "Mask out of range")
    run = number // (number & -number)
    if run & (run + 1):
        raise _reject_reason(root, errno.EINVAL, f"The mask {number:x} has non-consecutive 1-bits")
    if run.bit_length() < fewest:
        raise _reject_reason(root, errno.EINVAL, f"Need at least {fewest} bits in the mask")
    return number


def _reject_reason(root: Path, number: int, status: str) -> OSError:
    (root / "info/last_cmd_status").write_text(f"{status}\n")
    return OSError(number, os.strerror(number))


def _groups(root: Path) -> Iterable[str]:
    return (path.parent.name for path in root.glob("*/schemata"))


def _fill(root: Path, group: Path) -> None:
    """The files of a new group."""
    full = _read(root / "full")
    (group / "schemata").write_bytes(full)
    (group / "tasks").write_text("")
    for cache in resctrl.entries("L3", full.decode().partition("L3:")[2]) if b"L3" in full else ():
        data = group / f"mon_data/mon_L3_{cache:02}"
        data.mkdir(parents=True)
        for name in _USAGE:
            (data / name).write_text("0\n")


def _remove(proc: Path, root: Path, name: str) -> None:
    """Remove a group; its tasks return to the default one."""
    threads = (root / name / "tasks").read_text().split()
    for thread in threads:
        _put(root, root, int(thread))
    shutil.rmtree(root / name)
    for pid in {path.parts[-3] for thread in threads for path in proc.glob(f"*/task/{thread}")}:
        _show(proc, root, int(pid))


def _put(root: Path, group: Path, thread: int) -> None:
    _take(root, thread)
    with open(group / "tasks", "a") as file:
        file.write(f"{thread}\n")


def _take(root: Path, thread: int) -> None:
    for group in ("", *_groups(root)):
        tasks = root / group / "tasks"
        left = [each for each in tasks.read_text().split() if int(each) != thread]
        tasks.write_text("".join(f"{each}\n" for each in left))


def _show(proc: Path, root: Path, pid: int) -> None:
    """Write the resctrl group of a process to its file in /proc."""
    found = "/"
    for group in _groups(root):
        if str(pid) in (root / group / "tasks").read_text().split():
            found = group
    (proc / f"{pid}/cpu_resctrl_groups").write_text(f"res:{found}\nmon:\n")


def _read(path: Path) -> bytes:
    return path.read_bytes()


class FakeKernelValues(KernelValues):
    """Writes the files of a directory as a kernel would have them afterwards.

    Where a write is about one device the lines of the others stay.
    """

    def _write(self, place: Any, key: Key, inode: int, content: bytes) -> None:
        if self._host.file(key.resource).root is Root.RESCTRL and self._host.paths.laid_out:
            line = content.decode().rstrip("\n")
            text = write_schemata(self._host.paths.resctrl, Path(place.directory), line)
            super()._write(place, key, inode, text.encode())
            return
        if not place.text.by_line or not self._host.paths.laid_out:  # a real kernel knows itself
            super()._write(place, key, inode, content)
            return
        line = content.decode().rstrip("\n")
        device = line.partition(" ")[0]
        file = self._host.file(key.resource)
        before = self._host.bind(key.resource, key.target.place).text().decode().splitlines()
        lines = [each for each in before if each.partition(" ")[0] != device]
        if file.text is not None and _is_shown(file.text, content):  # else the device goes
            lines.insert(0, line)
        text = "".join(f"{each}\n" for each in lines)
        super()._write(place, key, inode, text.encode())


def _is_shown(text: Text[Any], content: bytes) -> bool:
    """Whether a line says more than that the device has no setting: 0, "max" or "default"."""
    try:
        return bool(text.shown(content))
    except ValueError:
        return False
