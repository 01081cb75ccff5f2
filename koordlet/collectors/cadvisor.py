"""Network figures under the names of the cAdvisor in the kubelet."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import Metric

from koordlet.collectors.engine.exposition import counter
from koordlet.host.net.netfiles import InterfaceCounters

InterfacesByName = Mapping[str, InterfaceCounters]  # by name of the interface

_COUNTERS = {  # part of the name -> field
    "receive_bytes": "rx_bytes",
    "receive_packets": "rx_packets",
    "receive_errors": "rx_errs",
    "receive_packets_dropped": "rx_drop",
    "transmit_bytes": "tx_bytes",
    "transmit_packets": "tx_packets",
    "transmit_errors": "tx_errs",
    "transmit_packets_dropped": "tx_drop",
}
_LEFT_OUT = ("lo", "veth", "docker", "nerdctl")  # what the names of ignored interfaces start with


class Owner(NamedTuple):
    """The owner of the interfaces; the fields are cAdvisor's labels.

    Those of a sandbox have no container, and what is not known is empty.
    """

    id: str  # path of the cgroup with leading slash; "/" is the node
    name: str = ""
    image: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""


NODE = Owner("/")


def network(found: Iterable[tuple[Owner, InterfacesByName]]) -> Iterator[Metric]:
    """The families container_network_*_total."""
    rows = [
        ((interface, *owner), counters)
        for owner, interfaces in found
        for interface, counters in interfaces.items()
        if not interface.lower().startswith(_LEFT_OUT)
    ]
    for part, field in _COUNTERS.items():
        name = f"container_network_{part}_total"
        values = ((labels, getattr(counters, field)) for labels, counters in rows)
        yield counter(name, f"Statistic {name}.", ("interface", *Owner._fields), values)
