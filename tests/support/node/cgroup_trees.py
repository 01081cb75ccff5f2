"""A cgroup tree of our own on a real kernel, with processes in it."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from koordlet.host import resources as r
from koordlet.host.cgroups.tree import CgroupFs
from koordlet.host.host import Host
from koordlet.host.paths import HostPaths

REAL = HostPaths.for_mode("hostMode")
VERSION = CgroupFs(REAL.cgroup).version("memory")
MIB = 2**20

_V1_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory")
V2_CONTROLLERS = {"cpu", "cpuset", "memory", "io", "pids"}
_PROGRAM = """
import os, sys, time
for procs in sys.argv[1:]:
    open(procs, "w").write(str(os.getpid()))
joined = time.process_time()
scope = {"os": os, "time": time}
print(0.0, flush=True)
for line in sys.stdin:
    exec(eval(line), scope)
    print(time.process_time() - joined, flush=True)
"""
_numbers = count()


def unusable() -> str:
    """Why no cgroup can be made here; empty when it can."""
    cgroups = CgroupFs(REAL.cgroup)
    for name in _V1_CONTROLLERS if VERSION == 1 else sorted(V2_CONTROLLERS):
        if cgroups.version(name) != VERSION or name not in cgroups.controllers():
            return f"needs the cgroup controller {name} at {REAL.cgroup}"
        if not os.access(cgroups.hierarchy(name, VERSION) / "cgroup.procs", os.W_OK):
            return "needs root"
    return ""


class Tree:
    """A cgroup root below the real one: a Host made with `paths` sees the groups in it alone.

    So it does not matter what else runs on this machine.
    """

    def __init__(self, links: Path) -> None:
        """links: an empty directory, for v1, which has one hierarchy per controller."""
        name = f"koordlet-test-{os.getpid()}-{next(_numbers)}"
        cgroups = CgroupFs(REAL.cgroup)
        self._processes: list[Process] = []
        if VERSION == 2:
            root = REAL.cgroup / name
            self.hierarchies = [root]
        else:
            root = links
            self.hierarchies = []
            tops = {c: cgroups.hierarchy(c, 1) for c in _V1_CONTROLLERS}
            if "blkio" in cgroups.controllers() and cgroups.version("blkio") == 1:
                tops["blkio"] = cgroups.hierarchy("blkio", 1)
            if cgroups.unified:  # a hybrid host has pressure there
                tops["unified"] = cgroups.unified
            for controller, top in tops.items():
                (links / controller).symlink_to(top / name)
                self.hierarchies.append(top / name)
        self.paths = dataclasses.replace(REAL, cgroup=root)
        self.objects, self.object_writers = {}, {}  # as a FakeHost has them: those of the kernel
        self.base = self.hierarchies[0]  # the one in which pods are looked for

    def make(self, path: str = "") -> "Group":
        """Make a group with all above it, ready to let processes in."""
        for hierarchy in self.hierarchies:
            directory = hierarchy
            for part in (".", *Path(path).parts):
                directory /= part
                make_group(directory)
        return Group(self, path)

    def run(self, path: str, code: str) -> "Process":
        """Start a Python process in a group, which runs the code and then waits for more."""
        process = Process([hierarchy / path for hierarchy in self.hierarchies])
        self._processes.append(process)
        process.do(code)
        return process

    def remove(self, path: str = "") -> None:
        """Remove a group and all below it, after its processes were ended."""
        for hierarchy in self.hierarchies:
            for directory, _, _ in os.walk(hierarchy / path, topdown=False):
                os.rmdir(directory)  # the files in it go with it

    def close(self) -> None:
        """End all processes and remove everything."""
        for process in self._processes:
            process.end()
        self.remove()


@contextmanager
def tree_of(directory: Path) -> Iterator[Tree]:
    """A tree that is removed afterwards. directory: a new one, for its links."""
    directory.mkdir()
    tree = Tree(directory)
    tree.make()
    try:
        yield tree
    finally:
        tree.close()


def make_group(directory: Path) -> None:
    """Make a group of one hierarchy, ready to let processes in, unless it is there."""
    if directory.exists():
        return
    if VERSION == 2:
        enable_controllers(directory.parent)
    directory.mkdir()
    if VERSION == 1:
        for name in ("cpuset.cpus", "cpuset.mems"):  # v1 lets no process in before these are set
            if (directory / name).exists():
                (directory / name).write_text((directory.parent / name).read_text())


class Group:
    """A cgroup in all hierarchies."""

    def __init__(self, tree: Tree, path: str) -> None:
        self.tree = tree
        self.path = path

    def write(self, resource: r.Resource[int], text: str) -> None:
        Path(Host(self.tree.paths).path(resource, self.path)).write_text(text)

    def run(self, code: str = "") -> "Process":
        return self.tree.run(self.path, code)

    def make(self) -> "Group":
        return self.tree.make(self.path)

    def remove(self) -> None:
        self.tree.remove(self.path)


class Process:
    """A Python process that joins a group before it runs its program."""

    def __init__(self, directories: list[Path]) -> None:
        procs = [directory / "cgroup.procs" for directory in directories]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, *procs],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self.cpu_seconds = 0.0  # used since it joined the group
        self._wait()

    def do(self, code: str) -> "Process":
        """Run code, and return when it has ended."""
        assert self._process.stdin is not None
        print(repr(code), file=self._process.stdin, flush=True)
        self._wait()
        return self

    def _wait(self) -> None:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        assert answer, "the process failed; its traceback is on stderr"
        self.cpu_seconds = float(answer)

    def end(self) -> None:
        with self._process:
            self._process.kill()


def burn(seconds: float) -> str:
    """Code that uses so much CPU time."""
    return f"end = time.process_time() + {seconds}\nwhile time.process_time() < end: pass"


def touch(size: int) -> str:
    """Code that holds so many bytes of anonymous memory."""
    return f"data = bytearray({size})\nfor i in range(0, {size}, 4096): data[i] = 1"


def enable_controllers(directory: Path) -> None:
    """Let the children of a v2 group use all controllers that the group has itself."""
    control = directory / "cgroup.subtree_control"
    available = set((directory / "cgroup.controllers").read_text().split())
    for name in (V2_CONTROLLERS & available).difference(control.read_text().split()):
        control.write_text(f"+{name}")
