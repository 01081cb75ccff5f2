"""Makes, changes and deletes the trees of traffic classes of network interfaces."""

from koordlet.executor.claims.claim import Key
from koordlet.host.host import Host
from koordlet.host.net.tc import TrafficControl
from koordlet.host.net.tc.node import node_traffic


class TrafficClasses:
    """A Medium; see koordlet.executor.kernel.media. control: in place of the usual."""

    def __init__(self, host: Host, control: TrafficControl | None = None) -> None:
        self._host = host
        self._control = control

    def identity(self, key: Key) -> int:
        """The number of the interface: another one may get the name. Raises OSError."""
        return self._traffic().identity(key.target.place)

    def write(self, key: Key, identity: int, content: str) -> None:
        """As Medium.write."""
        self._traffic().write(key.target.place, identity, f"{content}\n".encode())

    def _traffic(self) -> TrafficControl:
        if self._control is None:
            self._control = node_traffic(self._host.paths)
        return self._control


def medium(host: Host) -> TrafficClasses:
    """As koordlet.executor.kernel.media wants it."""
    return TrafficClasses(host)
