"""Network traffic of pods, as their own network namespaces count it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from prometheus_client import Metric

from koordlet.collectors import network_compat
from koordlet.collectors.engine.collector import Tick
from koordlet.collectors.engine.usage import Rates
from koordlet.collectors.node_network import (
    BYTES_AND_DROPS,
    LabelValues,
    Traffic,
    TrafficRates,
    traffic_families,
)
from koordlet.collectors.pod_usage import POD_NAME_LABELS, pod_name_labels
from koordlet.host.errors import Unsupported
from koordlet.host.net.interfaces import LinkStats, process_interfaces, process_tcp_retransmits
from koordlet.host.net.netfiles import InterfaceCounters
from koordlet.host.processes import INIT_PROCESS, network_namespace, sees_host_pids
from koordlet.host.resources import CGROUP_PROCS
from koordlet.metriccache.kinds import (
    POD_NETWORK_RECEIVE,
    POD_NETWORK_TRANSMIT,
    POD_TCP_RETRANSMITS,
    Cadence,
    Sample,
)
from koordlet.statesinformer.podmeta import PodMeta

RESCAN_INTERVAL = 10  # rounds until a pod without a namespace of its own is looked at again


class NamespaceInterfaces(NamedTuple):
    """The network namespace of a process, as it sees it."""

    pid: int
    inode: int  # unique among namespaces while they live; a new one may get that of an ended one
    counters: Mapping[str, InterfaceCounters]
    at: float  # monotonic seconds of the reading


class PodNetworkNamespaces:
    """Remembers a process per pod, and looks for another one when it has ended.

    Any process in the pod's cgroups will do: all containers of a pod share its sandbox's network
    namespace. A pod in the node's own namespace has none: the traffic there is not the pod's.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._known: dict[str, tuple[int, int]] = {}  # process and namespace by pod UID
        self._look_again: dict[str, int] = {}  # round before which there is nothing to find
        self._round = 0

    def read(self, tick: Tick) -> Iterator[tuple[PodMeta, NamespaceInterfaces]]:
        """Yield the pods with interfaces of their own.

        None when the node's namespace cannot be distinguished from theirs.
        """
        self._round += 1
        node = tick.call(
            "node network namespace", lambda: network_namespace(self._proc, INIT_PROCESS)
        )
        if node is None:
            return
        uids = {pod.uid for pod in tick.pods}
        self._known = {uid: known for uid, known in self._known.items() if uid in uids}
        self._look_again = {uid: when for uid, when in self._look_again.items() if uid in uids}
        for pod in tick.pods:
            found = self._interfaces(tick, pod, node[0])
            if found is not None:
                yield pod, found

    def _interfaces(self, tick: Tick, pod: PodMeta, node: int) -> NamespaceInterfaces | None:
        uid = pod.uid
        known = self._known.get(uid)
        if known is not None:
            found = self._record_interfaces(tick, known[0])
            if found is not None and found.inode == known[1]:
                return found
            del self._known[uid]
        if pod.pod.host_network or self._look_again.get(uid, 0) > self._round:
            return None
        found = self._search(tick, pod)
        if found is None or found.inode == node:
            self._look_again[uid] = self._round + RESCAN_INTERVAL
            return None
        self._known[uid] = found.pid, found.inode
        return found

    def _search(self, tick: Tick, pod: PodMeta) -> NamespaceInterfaces | None:
        for group in (pod.cgroup, *(container.cgroup for container in pod.containers)):
            for pid in tick.get(CGROUP_PROCS, group) or ():
                found = self._record_interfaces(tick, pid)
                if found is not None:
                    return found
        return None

    def _record_interfaces(self, tick: Tick, pid: int) -> NamespaceInterfaces | None:
        result = tick.call(f"network of {pid}", lambda: process_interfaces(self._proc, pid))
        if result is None:
            return None
        (inode, counters), at = result
        return NamespaceInterfaces(pid, inode, counters, at)


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
        self._namespaces = PodNetworkNamespaces(proc)
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
            yield _PodInterfaces(pod, counters, traffic, self._count_retransmits(tick, found))

    def _traffic(
        self, found: NamespaceInterfaces, counters: Mapping[str, InterfaceCounters]
    ) -> Mapping[str, Traffic]:
        life = f"{found.pid} {found.inode}"
        rates = {
            name: self._rates.rate(f"{life} {name}", c, found.at) for name, c in counters.items()
        }
        return {name: rate for name, rate in rates.items() if rate is not None}

    def _count_retransmits(self, tick: Tick, found: NamespaceInterfaces) -> float | None:
        """One more file per pod; it costs the kernel about as much as that of the interfaces."""
        read = partial(process_tcp_retransmits, self._proc, found.pid)
        result = tick.call(f"tcp of {found.pid}", read)
        return result and self._retransmits.rate(f"{found.pid} {found.inode}", *result)

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
            pods = [(_cadvisor_container(found.pod), found.counters) for found in latest]
            yield from network_compat.cadvisor_network_families(
                [(network_compat.CADVISOR_NODE, root), *pods]
            )


def _cadvisor_container(pod: PodMeta) -> network_compat.CadvisorContainer:
    return network_compat.CadvisorContainer(
        f"/{pod.cgroup}", namespace=pod.pod.namespace, pod=pod.pod.name
    )
