"""Network traffic of interfaces, the node's and the pods': rates, and families under own names."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import Metric

from koordlet.collectors.engine.exposition import counter, gauge
from koordlet.collectors.rates import Rates
from koordlet.host.net.netfiles import InterfaceCounters

LabelValues = tuple[str, ...]

_COUNTERS = {  # part of the name, in the words of node_exporter -> field, help
    "receive_bytes": ("rx_bytes", "Bytes received."),
    "receive_packets": ("rx_packets", "Packets received."),
    "receive_errs": ("rx_errs", "Packets that arrived broken."),
    "receive_drop": ("rx_drop", "Packets that arrived and were dropped."),
    "transmit_bytes": ("tx_bytes", "Bytes sent."),
    "transmit_packets": ("tx_packets", "Packets sent."),
    "transmit_errs": ("tx_errs", "Packets that could not be sent because of an error."),
    "transmit_drop": ("tx_drop", "Packets that were dropped instead of sent."),
}
ALL_COUNTERS = tuple(_COUNTERS)
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
    parts: Sequence[str] = ALL_COUNTERS,
) -> Iterator[Metric]:
    """Counters and bytes per second under one prefix; both mappings are by label values."""
    for part in parts:
        field, text = _COUNTERS[part]
        rows = ((labels, getattr(found, field)) for labels, found in counters.items())
        yield counter(f"{prefix}_{part}_total", text, names, rows)
    for direction, field in (("receive", "received"), ("transmit", "sent")):
        rows = ((labels, getattr(rate, field)) for labels, rate in traffic.items())
        name = f"{prefix}_{direction}_bytes_per_second"
        yield gauge(name, f"Bytes {field} per second, over the latest interval.", names, rows)
