"""The files of a fake host: kernel files and cgroups below one directory."""

import os
import shutil
from pathlib import Path

from koordlet.host.paths import HostPaths

PSI_RESOURCES = ("cpu", "memory", "io")
V1_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "blkio")


class FakeTree:
    """Files as a host with that cgroup version, number of CPUs and kind of kernel has them."""

    def __init__(self, root: Path, version: int, *, cpus: int, psi: bool) -> None:
        self.paths = HostPaths.below(root)
        self._root = str(self.paths.cgroup.parent)
        self.version = version
        self.cpus = cpus
        self.psi = psi

    def write(self, path: str, text: str | bytes) -> Path:
        """Write any file, for example "proc/vmstat" or "cgroup/cpu/kubepods/cpu.shares"."""
        name = f"{self._root}/{path}"
        data = text.encode() if isinstance(text, str) else text
        try:
            _write(name, data)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(name), exist_ok=True)
            _write(name, data)
        return Path(name)

    def read(self, path: str) -> str:
        """Return the text of a file, named as with write, without the end of line."""
        return (self.paths.cgroup.parent / path).read_text().rstrip("\n")

    def remove(self, path: str) -> None:
        """End a cgroup and all below it, in every hierarchy."""
        for directory in self._directories(path):
            shutil.rmtree(directory, ignore_errors=True)

    def _directories(self, path: str) -> list[Path]:
        """The directories with the files of a cgroup: one per v1 hierarchy."""
        if self.version == 2:
            return [self.paths.cgroup / path]
        return [self.paths.cgroup / controller / path for controller in V1_CONTROLLERS]


def _write(name: str, data: bytes) -> None:
    """Path.write_bytes takes four times as long, and a host has hundreds of files."""
    with open(name, "wb", buffering=0) as file:
        file.write(data)
