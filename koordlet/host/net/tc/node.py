"""Reads what is at the root of the node's network interfaces."""

from koordlet.host.errors import Unsupported, Vanished
from koordlet.host.net.tc import TrafficControl
from koordlet.host.net.tc.tree import NEEDS
from koordlet.host.paths import HostPaths
from koordlet.host.proc.namespaces import OWN, node_network_process


def check_node_network(paths: HostPaths) -> None:
    """Raise Unsupported in the network namespace of a container, whose interfaces are its own."""
    if node_network_process(paths.proc) != OWN:
        where = str(paths.proc / "self/ns/net")
        raise Unsupported.here(where, "that of a container", NEEDS)


def node_traffic(paths: HostPaths) -> TrafficControl:
    """Return what reads and sets the node's interfaces. It takes 10 MiB.

    Raises:
        Unsupported: as check_node_network.
    """
    check_node_network(paths)
    from koordlet.host.net.tc.kernel import KernelTraffic

    return KernelTraffic()


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
