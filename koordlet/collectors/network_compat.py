"""Network metrics under the names of node_exporter and cAdvisor."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import Metric

from koordlet.collectors.engine.collector import FamilySpec, FamilyType, counter_or_gauge
from koordlet.host.net.interfaces import Link, LinkStats
from koordlet.host.net.netfiles import InterfaceCounters, Softnet

ConstantLabel = tuple[str, str]  # name and value
Protocols = Mapping[str, Mapping[str, int]]  # protocol -> field -> value

_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
_NETDEV = {  # part of the name -> field
    "receive_bytes": "rx_bytes",
    "receive_packets": "rx_packets",
    "receive_errs": "rx_errs",
    "receive_drop": "rx_drop",
    "receive_fifo": "rx_fifo",
    "receive_frame": "rx_frame",
    "receive_compressed": "rx_compressed",
    "receive_multicast": "rx_multicast",
    "receive_nohandler": "rx_nohandler",
    "transmit_bytes": "tx_bytes",
    "transmit_packets": "tx_packets",
    "transmit_errs": "tx_errs",
    "transmit_drop": "tx_drop",
    "transmit_fifo": "tx_fifo",
    "transmit_colls": "tx_colls",
    "transmit_carrier": "tx_carrier",
    "transmit_compressed": "tx_compressed",
}
_NETCLASS = {  # name -> field of Link
    "node_network_carrier": "carrier",
    "node_network_carrier_changes_total": "carrier_changes",
    "node_network_carrier_up_changes_total": "carrier_up_changes",
    "node_network_carrier_down_changes_total": "carrier_down_changes",
    "node_network_flags": "flags",
    "node_network_iface_id": "ifindex",
    "node_network_iface_link": "lower_ifindex",
    "node_network_iface_link_mode": "link_mode",
    "node_network_mtu_bytes": "mtu",
    "node_network_net_dev_group": "group",
    "node_network_protocol_type": "protocol_type",
    "node_network_transmit_queue_length": "tx_queue_length",
}
_SOFTNET = {"processed": "processed", "dropped": "dropped", "times_squeezed": "squeezed"}
_NETSTAT = re.compile(  # node_exporter's default --collector.netstat.fields
    r".*_(InErrors|InErrs)|Ip_Forwarding|Ip(6|Ext)_(InOctets|OutOctets)|Icmp6?_(InMsgs|OutMsgs)"
    r"|TcpExt_(Listen.*|Syncookies.*|TCPSynRetrans|TCPTimeouts|TCPOFOQueue|TCPRcvQDrop)"
    r"|Tcp_(ActiveOpens|InSegs|OutSegs|OutRsts|PassiveOpens|RetransSegs|CurrEstab)"
    r"|Udp6?_(InDatagrams|OutDatagrams|NoPorts|RcvbufErrors|SndbufErrors)"
)


def _statistic(name: str, labels: Sequence[str], type: FamilyType | None = None) -> FamilySpec:
    """The family of a name that node_exporter or cAdvisor gave, which says its unit."""
    return FamilySpec(name, f"Statistic {name}.", labels, type=type or counter_or_gauge(name))


class NodeExporter:
    """Makes the families. constant adds one label to all of them.

    That replaces relabelling at scrape time, where there is none: the NetworkTraffic
    scheduler plugin asks for node_network_receive_bytes_total{kubernetes_node="..."}.
    """

    def __init__(self, constant: ConstantLabel | None = None) -> None:
        self._names = (constant[0],) if constant else ()
        self._values = (constant[1],) if constant else ()

    def netdev(self, found: Mapping[str, LinkStats]) -> Iterator[Metric]:
        """Counters of all interfaces. What the kernel does not report is left out."""
        for part, field in _NETDEV.items():
            rows = [(name, getattr(stats.counters, field)) for name, stats in found.items()]
            yield self._by_device(f"node_network_{part}_total", rows)

    def netclass(self, found: Mapping[str, LinkStats]) -> Iterator[Metric]:
        """State of the interfaces about which more than counters is known."""
        links = {name: stats.link for name, stats in found.items() if stats.link is not None}
        for family, field in _NETCLASS.items():
            yield self._by_device(family, [(n, getattr(x, field)) for n, x in links.items()])
        up = [(name, link.operstate == "up") for name, link in links.items()]
        yield self._by_device("node_network_up", up)
        yield self._info(links)

    def speeds(self, found: Mapping[str, int]) -> Metric:
        """Return the link speed of each device, in bytes per second."""
        return self._by_device("node_network_speed_bytes", found.items())

    def netstat(self, found: Protocols) -> Iterator[Metric]:
        """Protocol statistics of the netstat, snmp and snmp6 files together."""
        for protocol, fields in found.items():
            for field, value in fields.items():
                if _NETSTAT.fullmatch(f"{protocol}_{field}"):
                    yield self._single(f"node_netstat_{protocol}_{field}", value, "untyped")

    def sockstat(self, found: Protocols) -> Iterator[Metric]:
        """Sockets in use, of the sockstat and sockstat6 files together."""
        for protocol, fields in found.items():
            for field, value in fields.items():
                yield self._single(f"node_sockstat_{protocol}_{field}", value)
            if "mem" in fields:
                size = fields["mem"] * _PAGE_SIZE
                yield self._single(f"node_sockstat_{protocol}_mem_bytes", size)

    def softnet(self, found: Mapping[int, Softnet]) -> Iterator[Metric]:
        """Packets by the CPU that received them."""
        for part, field in _SOFTNET.items():
            rows = [((str(n), *self._values), getattr(cpu, field)) for n, cpu in found.items()]
            name = f"node_softnet_{part}_total"
            yield _statistic(name, ("cpu", *self._names)).metric(rows)

    def conntrack(self, entries: int, limit: int) -> Iterator[Metric]:
        """Yield the entries and the limit of the table of tracked connections."""
        yield self._single("node_nf_conntrack_entries", entries)
        yield self._single("node_nf_conntrack_entries_limit", limit)

    def _by_device(self, name: str, rows: Iterable[tuple[str, float | None]]) -> Metric:
        known = [((device, *self._values), value) for device, value in rows if value is not None]
        return _statistic(name, ("device", *self._names)).metric(known)

    def _single(self, name: str, value: float, type: FamilyType | None = None) -> Metric:
        return _statistic(name, self._names, type).metric([(self._values, value)])

    def _info(self, links: Mapping[str, Link]) -> Metric:
        names = ("device", "address", "broadcast", "duplex", "operstate", "ifalias", *self._names)
        rows = [
            ((name, x.address, x.broadcast, "", x.operstate, x.alias, *self._values), 1.0)
            for name, x in links.items()
        ]
        return FamilySpec("node_network_info", "What the interface is; always 1.", names).metric(
            rows
        )


InterfacesByName = Mapping[str, InterfaceCounters]  # by name of the interface

_CADVISOR_COUNTERS = {  # part of the name -> field
    "receive_bytes": "rx_bytes",
    "receive_packets": "rx_packets",
    "receive_errors": "rx_errs",
    "receive_packets_dropped": "rx_drop",
    "transmit_bytes": "tx_bytes",
    "transmit_packets": "tx_packets",
    "transmit_errors": "tx_errs",
    "transmit_packets_dropped": "tx_drop",
}
_OMITTED = ("lo", "veth", "docker", "nerdctl")  # what the names of ignored interfaces start with


class CadvisorContainer(NamedTuple):
    """The owner of the interfaces; the fields are cAdvisor's labels.

    Those of a sandbox have no container, and what is not known is empty.
    """

    id: str  # path of the cgroup with leading slash; "/" is the node
    name: str = ""
    image: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""


CADVISOR_NODE = CadvisorContainer("/")


def cadvisor_network_families(
    found: Iterable[tuple[CadvisorContainer, InterfacesByName]],
) -> Iterator[Metric]:
    """The families container_network_*_total."""
    rows = [
        ((interface, *owner), counters)
        for owner, interfaces in found
        for interface, counters in interfaces.items()
        if not interface.lower().startswith(_OMITTED)
    ]
    for part, field in _CADVISOR_COUNTERS.items():
        name = f"container_network_{part}_total"
        values = ((labels, getattr(counters, field)) for labels, counters in rows)
        yield _statistic(name, ("interface", *CadvisorContainer._fields)).metric(values)
