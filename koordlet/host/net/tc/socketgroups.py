"""Reads which cgroup of v2 the sockets of a pod are told by, where the kernel can do that."""

import os
import re

from koordlet.host.cgroups.cgroupfs import CgroupFs
from koordlet.host.errors import KernelFileError, Unsupported
from koordlet.host.net.tc import TrafficControl
from koordlet.host.net.tc.node import node_traffic
from koordlet.host.net.tc.tree import MOST_LEVEL, NODE_NETWORK
from koordlet.host.paths import HostPaths

NEEDS = (
    "cgroup v2, CONFIG_NF_TABLES and CONFIG_NFT_SOCKET with the match on cgroups (Linux 5.13 or "
    f"newer), in {NODE_NETWORK}"
)
_GROUP = re.compile(r"([1-9]\d?)/([1-9]\d{0,19})\n?", re.ASCII)

SocketGroup = tuple[int, int]
"""How deep a cgroup is, and its number."""


def parse_socket_group(data: bytes) -> SocketGroup:
    """Return the two. Raises ValueError: it is none."""
    found = _GROUP.fullmatch(data.decode("ascii", "replace"))
    if found is None or int(found[1]) > MOST_LEVEL or int(found[2]) >> 64:
        raise ValueError(f"wanted a level and a number, found {data[:60]!r}")
    return int(found[1]), int(found[2])


class SocketGroupReader:
    """An ObjectReader; see koordlet.host.objects. control: in place of the usual."""

    def __init__(self, paths: HostPaths, control: TrafficControl | None = None) -> None:
        self._paths = paths
        self._control = control
        self._knows: bool | None = None  # None: nobody has asked yet
        self._root = CgroupFs(paths.cgroup).unified

    def path(self, name: str) -> str:
        """What messages call it."""
        return f"{self._root or self._paths.cgroup}/{name}"

    def read(self, name: str) -> bytes:
        """As ObjectReader.read."""
        if self._root is None:
            raise Unsupported.here(self.path(name), "no hierarchy of cgroup v2", NEEDS)
        if self._knows is None:
            if self._control is None:
                self._control = node_traffic(self._paths)
            self._knows = self._control.knows_sockets()
        if not self._knows:
            raise Unsupported.here(self.path(name), "no match of nf_tables on cgroups", NEEDS)
        try:
            number = os.stat(self.path(name), follow_symlinks=False).st_ino
        except OSError as err:
            raise KernelFileError.from_os_error(self.path(name), err) from err
        return f"{name.count('/') + 1}/{number}\n".encode()


def reader(paths: HostPaths) -> SocketGroupReader:
    """As koordlet.host.objects wants it."""
    return SocketGroupReader(paths)
