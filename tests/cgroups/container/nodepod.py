"""A pod in the node's own cgroups, where a kubelet makes them, with a process in it."""

import contextlib
import subprocess
import uuid
from pathlib import Path

from koordlet.host.cgroups.tree import CgroupFs

from ..conftest import REAL, VERSION, Process, make_group

NETWORK_OF_ITS_OWN = "import ctypes; assert ctypes.CDLL(None).unshare(0x40000000) == 0"
_V1 = ("cpu", "cpuacct", "cpuset", "memory")


class NodePod:
    """Beside whatever else runs here: its UID is its own. Use it as a context manager."""

    def __init__(self) -> None:
        self.uid = str(uuid.uuid4())
        self.group = f"kubepods/burstable/pod{self.uid}/c1"
        cgroups = CgroupFs(REAL.cgroup)
        self._tops = [REAL.cgroup]
        if VERSION == 1:
            unified = [cgroups.unified] if cgroups.unified else []
            self._tops = [*(cgroups.hierarchy(name, 1) for name in _V1), *unified]

    def __enter__(self) -> "NodePod":
        for top in self._tops:
            while not (top / self.group).exists():
                with contextlib.suppress(FileExistsError, FileNotFoundError):
                    self._make(top)  # others make and remove kubepods at the same time
        self.process = Process([top / self.group for top in self._tops])
        self.process.do(NETWORK_OF_ITS_OWN)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.end()
        for top in self._tops:
            for group in self._groups(top):
                with contextlib.suppress(OSError):  # others may have pods there, too
                    group.rmdir()

    def connect(self) -> str:
        """Give it an interface; return the node's end of it, "" where the kernel cannot."""
        name = f"kt{self.uid[:8]}"
        pid = str(self.process.pid)
        link = ["ip", "link", "add", name, "type", "veth", "peer", "eth0", "netns", pid]
        if subprocess.run(link, capture_output=True).returncode:
            return ""
        subprocess.run(["ip", "link", "set", name, "up"], check=True)
        subprocess.run(["nsenter", "-t", pid, "-n", "ip", "link", "set", "eth0", "up"], check=True)
        return name

    def _make(self, top: Path) -> None:
        for group in reversed(self._groups(top)):
            make_group(group)

    def _groups(self, top: Path) -> list[Path]:
        """From the container's up to kubepods."""
        group, kubepods = top / self.group, top / "kubepods"
        return [each for each in (group, *group.parents) if each.is_relative_to(kubepods)]
