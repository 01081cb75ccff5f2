"""The node's network: traffic of interfaces, retransmits, drops, conntrack."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from prometheus_client import Metric

from koordlet.collectors.engine.collector import FamilySpec, Tick, counter_or_gauge
from koordlet.collectors.engine.usage import Rates
from koordlet.collectors.network_compat import NodeExporter, Protocols
from koordlet.host.net.interfaces import LinkSpeeds, LinkStats, NodeNetwork
from koordlet.host.net.netfiles import InterfaceCounters, Softnet
from koordlet.host.processes import OWN_PROCESS
from koordlet.host.resources import (
    CONNTRACK_COUNT,
    CONNTRACK_MAX,
    NETSTAT,
    SNMP,
    SNMP6,
    SOCKSTAT,
    SOCKSTAT6,
    SOFTNET,
)
from koordlet.metriccache.kinds import (
    NODE_NETWORK_RECEIVE,
    NODE_NETWORK_TRANSMIT,
    NODE_TCP_RETRANSMITS,
    Cadence,
    Sample,
)

LabelValues = tuple[str, ...]

_TRAFFIC_COUNTERS = {  # part of the name, in the words of node_exporter -> field, help
    "receive_bytes": ("rx_bytes", "Bytes received."),
    "receive_packets": ("rx_packets", "Packets received."),
    "receive_errs": ("rx_errs", "Packets that arrived broken."),
    "receive_drop": ("rx_drop", "Packets that arrived and were dropped."),
    "transmit_bytes": ("tx_bytes", "Bytes sent."),
    "transmit_packets": ("tx_packets", "Packets sent."),
    "transmit_errs": ("tx_errs", "Packets that could not be sent because of an error."),
    "transmit_drop": ("tx_drop", "Packets that were dropped instead of sent."),
}
ALL_TRAFFIC_COUNTERS = tuple(_TRAFFIC_COUNTERS)
BYTES_AND_DROPS = ("receive_bytes", "receive_drop", "transmit_bytes", "transmit_drop")


class Traffic(NamedTuple):
    """Bytes per second."""

    received: float
    sent: float


class TrafficRates:
    """Traffic by key. A key must name one life of an interface: its counters start anew."""

    def __init__(self, interval: float) -> None:
        self._received = Rates(interval)
        self._sent = Rates(interval)

    def rate(self, key: str, counters: InterfaceCounters, at: float) -> Traffic | None:
        """Return the traffic since the key's previous reading; None without a usable one."""
        received = self._received.rate(key, counters.rx_bytes, at)
        sent = self._sent.rate(key, counters.tx_bytes, at)
        return None if received is None or sent is None else Traffic(received, sent)

    def purge(self, now: float) -> None:
        self._received.purge(now)
        self._sent.purge(now)


def traffic_families(
    prefix: str,
    names: Sequence[str],
    counters: Mapping[LabelValues, InterfaceCounters],
    traffic: Mapping[LabelValues, Traffic],
    parts: Sequence[str] = ALL_TRAFFIC_COUNTERS,
) -> Iterator[Metric]:
    """Counters and bytes per second under one prefix; both mappings are by label values."""
    for part in parts:
        field, text = _TRAFFIC_COUNTERS[part]
        rows = ((labels, getattr(found, field)) for labels, found in counters.items())
        unit = "bytes" if part.endswith("bytes") else "count"
        yield FamilySpec(f"{prefix}_{part}_total", text, names, unit, "counter").metric(rows)
    for direction, field in (("receive", "received"), ("transmit", "sent")):
        rows = ((labels, getattr(rate, field)) for labels, rate in traffic.items())
        name = f"{prefix}_{direction}_bytes_per_second"
        text = f"Bytes {field} per second, over the latest interval."
        yield FamilySpec(name, text, names, "bytes per second").metric(rows)


NODE_NETWORK_GATE = "NodeNetworkCollector"

LINK_SPEED_INTERVAL = 60.0  # seconds; asking a driver can take it a while

_POD_SIDE = ("veth", "cali", "lxc", "nerdctl")  # the node's ends of pods' interfaces, by CNI plugin


_NODE_NETWORK_SPEED_BYTES = FamilySpec(
    "koordlet_node_network_speed_bytes",
    "Bytes per second that the link can carry in each direction.",
    ("node", "device"),
    "bytes per second",
)


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
        result = tick.call("node network interfaces", self._network.read)
        if result is None:
            self._latest = ({}, {})
            return []
        interfaces, at = result
        rates = {
            name: self._rate(stats, name, at) for name, stats in _own_interfaces(interfaces).items()
        }
        traffic = {name: rate for name, rate in rates.items() if rate is not None}
        self._rates.purge(at)
        if self._speeds_at is None or at - self._speeds_at >= LINK_SPEED_INTERVAL:
            self._read_speeds(tick, list(rates), at)
        self._latest = interfaces, traffic
        return list(_traffic_samples(traffic))

    def _rate(self, stats: LinkStats, name: str, at: float) -> Traffic | None:
        index = stats.link.ifindex if stats.link else ""
        return self._rates.rate(f"{name} {index}", stats.counters, at)

    def _read_speeds(self, tick: Tick, names: list[str], at: float) -> None:
        result = tick.call("speed of network links", lambda: self._link_speeds.read(names))
        self._speeds, self._speeds_at = result[0] if result else {}, at

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
            {(node, name): stats.counters for name, stats in _own_interfaces(interfaces).items()},
            {(node, name): rate for name, rate in traffic.items()},
        )
        yield _NODE_NETWORK_SPEED_BYTES.metric(
            [((node, name), speed) for name, speed in self._speeds.items()]
        )
        if self._exporter is not None:
            yield from self._exporter.netdev(interfaces)
            yield self._exporter.speeds(self._speeds)
            yield from self._exporter.netclass(interfaces)


def _own_interfaces(interfaces: Mapping[str, LinkStats]) -> dict[str, LinkStats]:
    return {name: stats for name, stats in interfaces.items() if not name.startswith(_POD_SIDE)}


def _traffic_samples(traffic: Mapping[str, Traffic]) -> Iterator[Sample]:
    for name, rate in traffic.items():
        yield Sample(NODE_NETWORK_RECEIVE, rate.received, (name,))
        yield Sample(NODE_NETWORK_TRANSMIT, rate.sent, (name,))


_ERROR_COUNTERS = (  # protocol, field, name, help
    ("Tcp", "RetransSegs", "tcp_retransmitted_segments", "TCP segments sent again."),
    ("TcpExt", "TCPSynRetrans", "tcp_retransmitted_syns", "TCP connection requests sent again."),
    ("TcpExt", "ListenDrops", "tcp_listen_drops", "TCP connection requests that were dropped."),
    (
        "TcpExt",
        "ListenOverflows",
        "tcp_listen_overflows",
        "Times that the queue of a listening TCP socket was full.",
    ),
)


@dataclass(frozen=True, slots=True)
class _ProtocolReading:
    protocols: Protocols = field(default_factory=dict)
    sockets: Protocols = field(default_factory=dict)
    softnet: Mapping[int, Softnet] = field(default_factory=dict)
    conntrack: tuple[int, int] | None = None  # entries and limit


class NetProtocolsCollector:
    """Counters for scrapes; only retransmits are samples, too."""

    name = "net_protocols"
    gates: tuple[str, ...] = (NODE_NETWORK_GATE,)
    cadence = Cadence.NETWORK

    def __init__(
        self,
        node: str,
        interval: float,
        process: Callable[[], str | None],
        exporter: NodeExporter | None,
    ) -> None:
        """process: whose network namespace is the node's ("self" or "1"; None: out of reach).

        exporter: exports the figures under node_exporter's names too; None: no export.
        """
        self._node = (node,)
        self._process = process
        self._exporter = exporter
        self._retransmits = Rates(interval)
        self._latest = _ProtocolReading()

    def collect(self, tick: Tick) -> Iterable[Sample]:
        process = self._process()
        self._latest = _ProtocolReading() if process is None else _read_protocols(tick, process)
        snmp = None if process is None else tick.get_at(SNMP)
        sent_again = None if snmp is None else snmp[0].get("Tcp", {}).get("RetransSegs")
        if snmp is not None and sent_again is not None:
            rate = self._retransmits.rate(f"{process}", sent_again, snmp[1])
            if rate is not None:
                yield Sample(NODE_TCP_RETRANSMITS, rate)

    def families(self) -> Iterator[Metric]:
        latest = self._latest
        yield from self._own(latest)
        if self._exporter is not None:
            yield from self._exporter.netstat(latest.protocols)
            yield from self._exporter.sockstat(latest.sockets)
            yield from self._exporter.softnet(latest.softnet)
            if latest.conntrack:
                yield from self._exporter.conntrack(*latest.conntrack)

    def _own(self, latest: _ProtocolReading) -> Iterator[Metric]:
        for protocol, name, part, text in _ERROR_COUNTERS:
            value = latest.protocols.get(protocol, {}).get(name)
            if value is not None:
                yield self._single(f"{part}_total", text, value)
        if latest.softnet:
            dropped = sum(cpu.dropped for cpu in latest.softnet.values())
            text = "Received packets dropped because the backlog of a CPU was full."
            yield self._single("softnet_dropped_total", text, dropped)
        if latest.conntrack:
            entries, limit = latest.conntrack
            yield self._single("conntrack_entries", "Connections tracked.", entries)
            yield self._single("conntrack_entries_limit", "Most that can be.", limit)

    def _single(self, part: str, text: str, value: float) -> Metric:
        name = f"koordlet_node_network_{part}"
        spec = FamilySpec(name, text, ("node",), "count", counter_or_gauge(name))
        return spec.metric([(self._node, value)])


def _read_protocols(tick: Tick, process: str) -> _ProtocolReading:
    return _ProtocolReading(
        _merged(tick.get(NETSTAT), tick.get(SNMP), tick.get(SNMP6)),
        _merged(tick.get(SOCKSTAT), tick.get(SOCKSTAT6)),
        _read_softnet(tick),
        # Below /proc/sys/net is the namespace of the reader, whatever the process.
        _read_conntrack(tick) if process == OWN_PROCESS else None,
    )


def _read_softnet(tick: Tick) -> Mapping[int, Softnet]:
    found = tick.get(SOFTNET)
    return {} if found is None else found


def _merged(*parts: Protocols | None) -> Protocols:
    return {name: fields for part in parts if part for name, fields in part.items()}


def _read_conntrack(tick: Tick) -> tuple[int, int] | None:
    entries, limit = tick.get(CONNTRACK_COUNT), tick.get(CONNTRACK_MAX)
    return None if entries is None or limit is None else (entries, limit)
