"""Traffic of the node's network interfaces: counters, and bytes per second."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import Metric

from koordlet.collectors.engine.base import Tick
from koordlet.collectors.engine.exposition import gauge
from koordlet.collectors.node_exporter import NodeExporter
from koordlet.collectors.traffic import Traffic, TrafficRates, traffic_families
from koordlet.host.net.links import LinkStats
from koordlet.host.net.network import LinkSpeeds, NodeNetwork
from koordlet.metriccache.kinds import NODE_NETWORK_RECEIVE, NODE_NETWORK_TRANSMIT, Cadence
from koordlet.metriccache.sample import Sample

NODE_NETWORK_GATE = "NodeNetworkCollector"

SPEEDS_EVERY = 60.0  # seconds; asking a driver can take it a while

_POD_SIDE = ("veth", "cali", "lxc", "nerdctl")  # the node's ends of pods' interfaces, by CNI plugin


class NodeNetworkCollector:
    """Keeps and exposes under its own names all interfaces but the node's ends of pods' ones.

    Those are the pods' traffic seen from the other side, one per pod; under node_exporter's names
    they are there, as node_exporter has them.
    """

    name = "node_network"
    gates: tuple[str, ...] = (NODE_NETWORK_GATE,)
    cadence = Cadence.NETWORK

    def __init__(
        self,
        node: str,
        interval: float,
        network: NodeNetwork,
        speeds: LinkSpeeds,
        exporter: NodeExporter | None,
    ) -> None:
        """exporter: exports the figures under node_exporter's names too; None: no export."""
        self._node = node
        self._network = network
        self._link_speeds = speeds
        self._exporter = exporter
        self._speeds: Mapping[str, int] = {}  # bytes per second, by interface
        self._speeds_at: float | None = None
        self._rates = TrafficRates(interval)
        self._latest: tuple[Mapping[str, LinkStats], Mapping[str, Traffic]] = ({}, {})

    def collect(self, tick: Tick) -> Iterable[Sample]:
        self._network.prepare()
        answer = tick.call("node network interfaces", self._network.read)
        if answer is None:
            self._latest = ({}, {})
            return []
        interfaces, at = answer
        rates = {name: self._rate(stats, name, at) for name, stats in _own(interfaces).items()}
        traffic = {name: rate for name, rate in rates.items() if rate is not None}
        self._rates.purge(at)
        if self._speeds_at is None or at - self._speeds_at >= SPEEDS_EVERY:
            self._read_speeds(tick, list(rates), at)
        self._latest = interfaces, traffic
        return list(_samples(traffic))

    def _rate(self, stats: LinkStats, name: str, at: float) -> Traffic | None:
        index = stats.link.ifindex if stats.link else ""
        return self._rates.rate(f"{name} {index}", stats.counters, at)

    def _read_speeds(self, tick: Tick, names: list[str], at: float) -> None:
        answer = tick.call("speed of network links", lambda: self._link_speeds.read(names))
        self._speeds, self._speeds_at = answer[0] if answer else {}, at

    @property
    def interfaces(self) -> Mapping[str, LinkStats]:
        """All interfaces of the node, as latest read."""
        return self._latest[0]

    def families(self) -> Iterator[Metric]:
        interfaces, traffic = self._latest
        node = self._node
        yield from traffic_families(
            "koordlet_node_network",
            ("node", "device"),
            {(node, name): stats.counters for name, stats in _own(interfaces).items()},
            {(node, name): rate for name, rate in traffic.items()},
        )
        yield gauge(
            "koordlet_node_network_speed_bytes",
            "Bytes per second that the link can carry in each direction.",
            ("node", "device"),
            [((node, name), speed) for name, speed in self._speeds.items()],
        )
        if self._exporter is not None:
            yield from self._exporter.netdev(interfaces)
            yield self._exporter.speeds(self._speeds)
            yield from self._exporter.netclass(interfaces)


def _own(interfaces: Mapping[str, LinkStats]) -> dict[str, LinkStats]:
    return {name: stats for name, stats in interfaces.items() if not name.startswith(_POD_SIDE)}


def _samples(traffic: Mapping[str, Traffic]) -> Iterator[Sample]:
    for name, rate in traffic.items():
        yield Sample(NODE_NETWORK_RECEIVE, rate.received, (name,))
        yield Sample(NODE_NETWORK_TRANSMIT, rate.sent, (name,))
