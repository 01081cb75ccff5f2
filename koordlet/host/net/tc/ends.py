"""Reads which interface of the node is the other end of a process's."""

from koordlet.host.errors import KernelFileError
from koordlet.host.net.tc import TrafficControl
from koordlet.host.net.tc.node import node_traffic
from koordlet.host.paths import HostPaths


class EndReader:
    """An ObjectReader; see koordlet.host.objects. control: in place of the usual."""

    def __init__(self, paths: HostPaths, control: TrafficControl | None = None) -> None:
        self._paths = paths
        self._control = control

    def path(self, name: str) -> str:
        """What messages call it."""
        return f"interface of process {name}"

    def read(self, name: str) -> bytes:
        """As ObjectReader.read."""
        if self._control is None:
            self._control = node_traffic(self._paths)
        try:
            return f"{self._control.end_of(int(name))}\n".encode("ascii", "replace")
        except OSError as err:
            raise KernelFileError.from_os_error(self.path(name), err) from err


def reader(paths: HostPaths) -> EndReader:
    """As koordlet.host.objects wants it."""
    return EndReader(paths)
