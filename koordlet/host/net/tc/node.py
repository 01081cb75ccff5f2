"""Reads what is at the root of the node's network interfaces."""

import os
from functools import cache

from koordlet.host.errors import Unsupported, Vanished
from koordlet.host.net.tc import TrafficControl
from koordlet.host.paths import HostPaths
from koordlet.host.proc.namespaces import INIT, OWN, node_network_process, sees_host_pids

_NEEDS = "the node's network namespace (hostNetwork, or hostPID with CAP_SYS_ADMIN)"


def node_namespace(paths: HostPaths) -> str:
    """Return the file of the node's network namespace; "": this process is in it.

    Raises:
        Unsupported: it cannot be entered from here.
    """
    if node_network_process(paths.proc) == OWN:
        return ""
    namespace = str(paths.proc / INIT / "ns/net")
    if not sees_host_pids(paths.proc) or not os.path.lexists(namespace):
        where = str(paths.proc / "self/ns/net")
        raise Unsupported.here(where, "that of a container", _NEEDS)
    return namespace


@cache
def node_traffic(paths: HostPaths) -> TrafficControl:
    """Return what reads and sets the node's interfaces: one helper process for all callers.

    Raises:
        Unsupported: as node_namespace.
    """
    network = node_namespace(paths)
    from koordlet.host.net.guard.client import helper_traffic  # only where it is used

    cgroup = str(paths.proc / INIT / "ns/cgroup") if sees_host_pids(paths.proc) else ""
    return helper_traffic(paths, network=network, cgroup=cgroup)


class TrafficReader:
    """An ObjectReader; see koordlet.host.objects. control: in place of the usual."""

    def __init__(self, paths: HostPaths, control: TrafficControl | None = None) -> None:
        self._paths = paths
        self._control = control

    def path(self, name: str) -> str:
        """What messages call it."""
        return f"root qdisc of {name}"

    def read(self, name: str) -> bytes:
        """As ObjectReader.read."""
        if self._control is None:
            self._control = node_traffic(self._paths)
        found = self._control.read(name)
        if found is None:
            raise Vanished(
                self.path(name),
                wanted="a network interface of that name",
                found="none",
                hint="it was removed or renamed",
            )
        return found


def reader(paths: HostPaths) -> TrafficReader:
    """As koordlet.host.objects wants it."""
    return TrafficReader(paths)
