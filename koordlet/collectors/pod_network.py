"""Network traffic of pods, as their own network namespaces count it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from prometheus_client import Metric

from koordlet.collectors import cadvisor
from koordlet.collectors.engine.base import Tick
from koordlet.collectors.pod_labels import POD_NAME_LABELS, pod_name_labels
from koordlet.collectors.pod_namespaces import Interfaces, PodNamespaces
from koordlet.collectors.rates import Rates
from koordlet.collectors.traffic import (
    BYTES_AND_DROPS,
    LabelValues,
    Traffic,
    TrafficRates,
    traffic_families,
)
from koordlet.host.errors import Unsupported
from koordlet.host.net.links import LinkStats
from koordlet.host.net.netfiles import InterfaceCounters
from koordlet.host.net.network import process_tcp_retransmits
from koordlet.host.proc.namespaces import sees_host_pids
from koordlet.metriccache.kinds import (
    POD_NETWORK_RECEIVE,
    POD_NETWORK_TRANSMIT,
    POD_TCP_RETRANSMITS,
    Cadence,
)
from koordlet.metriccache.sample import Sample
from koordlet.statesinformer.model import PodMeta

POD_NETWORK_GATE = "PodNetworkCollector"

NodeInterfaces = Callable[[], Mapping[str, LinkStats]]
_LOOPBACK = "lo"


class _PodInterfaces(NamedTuple):
    pod: PodMeta
    counters: Mapping[str, InterfaceCounters]  # by interface
    traffic: Mapping[str, Traffic]  # by interface; needs two readings
    retransmits: float | None  # TCP segments per second; needs two readings


class PodNetworkCollector:
    """Needs host PIDs. Pods on the host network have no traffic of their own."""

    name = "pod_network"
    gates: tuple[str, ...] = (POD_NETWORK_GATE,)
    cadence = Cadence.NETWORK

    def __init__(
        self, node: str, interval: float, proc: Path, node_interfaces: NodeInterfaces | None
    ) -> None:
        """node_interfaces: cAdvisor's labels for the root; None: do not use its names."""
        self._node = node
        self._proc = proc
        self._node_interfaces = node_interfaces
        self._namespaces = PodNamespaces(proc)
        self._rates = TrafficRates(interval)
        self._retransmits = Rates(interval)
        self._latest: tuple[_PodInterfaces, ...] = ()

    def collect(self, tick: Tick) -> Iterable[Sample]:
        self._latest = latest = tuple(self._read(tick))
        self._rates.purge(tick.monotonic)
        self._retransmits.purge(tick.monotonic)
        for pod, _, traffic, retransmits in latest:
            if traffic:
                received, sent = map(sum, zip(*traffic.values(), strict=True))
                yield Sample(POD_NETWORK_RECEIVE, received, (pod.uid,))
                yield Sample(POD_NETWORK_TRANSMIT, sent, (pod.uid,))
            if retransmits is not None:
                yield Sample(POD_TCP_RETRANSMITS, retransmits, (pod.uid,))

    def _read(self, tick: Tick) -> Iterator[_PodInterfaces]:
        if tick.call("host pids", self._require_host_pids) is None:
            return
        for pod, found in self._namespaces.read(tick):
            counters = {name: c for name, c in found.counters.items() if name != _LOOPBACK}
            traffic = self._traffic(found, counters)
            yield _PodInterfaces(pod, counters, traffic, self._sent_again(tick, found))

    def _traffic(
        self, found: Interfaces, counters: Mapping[str, InterfaceCounters]
    ) -> Mapping[str, Traffic]:
        life = f"{found.pid} {found.inode}"
        rates = {
            name: self._rates.rate(f"{life} {name}", c, found.at) for name, c in counters.items()
        }
        return {name: rate for name, rate in rates.items() if rate is not None}

    def _sent_again(self, tick: Tick, found: Interfaces) -> float | None:
        """One more file per pod; it costs the kernel about as much as that of the interfaces."""
        read = partial(process_tcp_retransmits, self._proc, found.pid)
        answer = tick.call(f"tcp of {found.pid}", read)
        return answer and self._retransmits.rate(f"{found.pid} {found.inode}", *answer)

    def _require_host_pids(self) -> None:
        if not sees_host_pids(self._proc):
            raise Unsupported.here(str(self._proc), "other processes only", "hostPID")

    def families(self) -> Iterator[Metric]:
        latest = self._latest
        counters: dict[LabelValues, InterfaceCounters] = {}
        traffic: dict[LabelValues, Traffic] = {}
        for pod, found, rates, _ in latest:
            labels = pod_name_labels(self._node, pod)
            counters.update({(*labels, device): c for device, c in found.items()})
            traffic.update({(*labels, device): rate for device, rate in rates.items()})
        names = (*POD_NAME_LABELS, "device")
        yield from traffic_families(
            "koordlet_pod_network", names, counters, traffic, BYTES_AND_DROPS
        )
        if self._node_interfaces is not None:
            root = {name: stats.counters for name, stats in self._node_interfaces().items()}
            pods = [(_owner(found.pod), found.counters) for found in latest]
            yield from cadvisor.network([(cadvisor.NODE, root), *pods])


def _owner(pod: PodMeta) -> cadvisor.Owner:
    return cadvisor.Owner(f"/{pod.cgroup}", namespace=pod.pod.namespace, pod=pod.pod.name)
