"""Kernel objects of traffic control: classes of an interface, veth peers, socket cgroups."""

import os
import re
from functools import cache

from koordlet.host.cgroups.tree import CgroupFs
from koordlet.host.errors import KernelFileError, Unsupported, Vanished
from koordlet.host.net.interfaces import node_namespace
from koordlet.host.net.tc.tree import MAX_CGROUP_LEVEL, NODE_NETWORK, TrafficControl
from koordlet.host.paths import HostPaths
from koordlet.host.processes import INIT_PROCESS, sees_host_pids
from koordlet.host.resource import ObjectKey


@cache
def node_traffic(paths: HostPaths) -> TrafficControl:
    """Return what reads and sets the node's interfaces: one helper process for all callers.

    Raises:
        Unsupported: as node_namespace.
    """
    network = node_namespace(paths)
    from koordlet.host.net.guard.client import helper_traffic  # only where it is used

    cgroup = str(paths.proc / INIT_PROCESS / "ns/cgroup") if sees_host_pids(paths.proc) else ""
    return helper_traffic(paths, network=network, cgroup=cgroup)


class _TrafficObjects:
    """Objects that are read or set by way of the node's TrafficControl."""

    def __init__(self, paths: HostPaths, control: TrafficControl | None = None) -> None:
        """control: in place of that of the node."""
        self._paths = paths
        self._control = control

    def _traffic(self) -> TrafficControl:
        """Return it, at the first use: it starts a helper process. Raises Unsupported."""
        if self._control is None:
            self._control = node_traffic(self._paths)
        return self._control


class TrafficReader(_TrafficObjects):
    """The ObjectReader of traffic trees; see koordlet.host.objects."""

    def path(self, name: str) -> str:
        """Return the name of the object in messages."""
        return f"root qdisc of {name}"

    def read(self, name: str) -> bytes:
        """Return the state of the object as a line; raises as ObjectReader.read does."""
        found = self._traffic().read(name)
        if found is None:
            raise Vanished(
                self.path(name),
                wanted="a network interface of that name",
                found="none",
                hint="it was removed or renamed",
            )
        return found


class VethPeerReader(_TrafficObjects):
    """The ObjectReader of the node's ends of pods' interfaces; see koordlet.host.objects."""

    def path(self, name: str) -> str:
        """Return the name of the object in messages."""
        return f"interface of process {name}"

    def read(self, name: str) -> bytes:
        """Return the state of the object as a line; raises as ObjectReader.read does."""
        traffic = self._traffic()
        try:
            return f"{traffic.veth_peer(int(name))}\n".encode("ascii", "replace")
        except OSError as err:
            raise KernelFileError.from_os_error(self.path(name), err) from err


CGROUP_MAP_NEEDS = (
    "cgroup v2, CONFIG_NF_TABLES and CONFIG_NFT_SOCKET with the match on cgroups (Linux 5.13 or "
    f"newer), in {NODE_NETWORK}"
)
_SOCKET_CGROUP = re.compile(r"([1-9]\d?)/([1-9]\d{0,19})\n?", re.ASCII)

SocketCgroup = tuple[int, int]
"""How deep a cgroup is, and its number."""


def parse_socket_cgroup(data: bytes) -> SocketCgroup:
    """Return the two. Raises ValueError: it is none."""
    found = _SOCKET_CGROUP.fullmatch(data.decode("ascii", "replace"))
    if found is None or int(found[1]) > MAX_CGROUP_LEVEL or int(found[2]) >> 64:
        raise ValueError(f"wanted a level and a number, found {data[:60]!r}")
    return int(found[1]), int(found[2])


class SocketCgroupReader(_TrafficObjects):
    """The ObjectReader of cgroups of sockets; see koordlet.host.objects."""

    def __init__(self, paths: HostPaths, control: TrafficControl | None = None) -> None:
        super().__init__(paths, control)
        self._supports_cgroup_map: bool | None = None  # None: not read yet
        self._root = CgroupFs(paths.cgroup).unified

    def path(self, name: str) -> str:
        """Return the name of the object in messages."""
        return f"{self._root or self._paths.cgroup}/{name}"

    def read(self, name: str) -> bytes:
        """Return the state of the object as a line; raises as ObjectReader.read does."""
        if self._root is None:
            raise Unsupported.here(self.path(name), "no hierarchy of cgroup v2", CGROUP_MAP_NEEDS)
        if self._supports_cgroup_map is None:
            self._supports_cgroup_map = self._traffic().supports_cgroup_map()
        if not self._supports_cgroup_map:
            raise Unsupported.here(
                self.path(name), "no match of nf_tables on cgroups", CGROUP_MAP_NEEDS
            )
        try:
            number = os.stat(self.path(name), follow_symlinks=False).st_ino
        except OSError as err:
            raise KernelFileError.from_os_error(self.path(name), err) from err
        return f"{name.count('/') + 1}/{number}\n".encode()


class TrafficWriter(_TrafficObjects):
    """The ObjectWriter of traffic trees; see koordlet.host.object_writers."""

    def identity(self, key: ObjectKey) -> int:
        """The number of the interface: another one may get the name. Raises OSError."""
        return self._traffic().identity(key.target.place)

    def write(self, key: ObjectKey, identity: int, content: str) -> None:
        """Set the traffic tree of an interface; raises as ObjectWriter.write does."""
        self._traffic().write(key.target.place, identity, f"{content}\n".encode())
