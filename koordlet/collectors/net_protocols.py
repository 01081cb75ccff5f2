"""Trouble on the node's network: retransmits, full listen queues, dropped packets, conntrack."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import Metric

from koordlet.collectors.engine.base import Tick
from koordlet.collectors.engine.exposition import counter, gauge
from koordlet.collectors.node_exporter import NodeExporter, Protocols
from koordlet.collectors.node_network import NODE_NETWORK_GATE
from koordlet.collectors.rates import Rates
from koordlet.host.net.netfiles import Softnet
from koordlet.host.proc.namespaces import OWN
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
from koordlet.metriccache.kinds import NODE_TCP_RETRANSMITS, Cadence
from koordlet.metriccache.sample import Sample

_TROUBLE = (  # protocol, field, name, help
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
class _Reading:
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
        self._latest = _Reading()

    def collect(self, tick: Tick) -> Iterable[Sample]:
        process = self._process()
        self._latest = _Reading() if process is None else _read(tick, process)
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

    def _own(self, latest: _Reading) -> Iterator[Metric]:
        for protocol, name, part, text in _TROUBLE:
            value = latest.protocols.get(protocol, {}).get(name)
            if value is not None:
                yield self._single(counter, f"{part}_total", text, value)
        if latest.softnet:
            dropped = sum(cpu.dropped for cpu in latest.softnet.values())
            text = "Received packets dropped because the backlog of a CPU was full."
            yield self._single(counter, "softnet_dropped_total", text, dropped)
        if latest.conntrack:
            entries, limit = latest.conntrack
            yield self._single(gauge, "conntrack_entries", "Connections tracked.", entries)
            yield self._single(gauge, "conntrack_entries_limit", "Most that can be.", limit)

    def _single(self, family: Callable[..., Metric], part: str, text: str, value: float) -> Metric:
        return family(f"koordlet_node_network_{part}", text, ("node",), [(self._node, value)])


def _read(tick: Tick, process: str) -> _Reading:
    return _Reading(
        _merged(tick.get(NETSTAT), tick.get(SNMP), tick.get(SNMP6)),
        _merged(tick.get(SOCKSTAT), tick.get(SOCKSTAT6)),
        _softnet(tick),
        # Below /proc/sys/net is the namespace of the reader, whatever the process.
        _conntrack(tick) if process == OWN else None,
    )


def _softnet(tick: Tick) -> Mapping[int, Softnet]:
    found = tick.get(SOFTNET)
    return {} if found is None else found


def _merged(*parts: Protocols | None) -> Protocols:
    return {name: fields for part in parts if part for name, fields in part.items()}


def _conntrack(tick: Tick) -> tuple[int, int] | None:
    entries, limit = tick.get(CONNTRACK_COUNT), tick.get(CONNTRACK_MAX)
    return None if entries is None or limit is None else (entries, limit)
