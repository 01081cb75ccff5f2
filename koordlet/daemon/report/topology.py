"""Builds what reports this node's topology to the cluster. Imported only where there is one."""

from collections.abc import Callable
from dataclasses import dataclass

from koord.api.nodes.machine import NODE_CPU_INFO, Machine, NodeCpuInfo, NumaMemory
from koord.api.nodes.node import Node
from koord.component.gated import Gated
from koord.kube.client import ApiClient
from koord.util.clock import Clock
from koordlet.collectors.node_info import NODE_NUMA_INFO
from koordlet.daemon.settings.settings import Settings
from koordlet.host.topology.numa import NumaNode
from koordlet.kubelet.client import KubeletClient
from koordlet.metriccache.cache import MetricCache
from koordlet.reporter.topology import TopologyReporter
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.kubeletfacts import KubeletSource
from koordlet.statesinformer.objects.kubesources import OwnObject
from koordlet.statesinformer.objects.published import KubeTopology
from koordlet.statesinformer.topologysource import TopologySource

GATE = "NodeTopologyReport"
HUGE_PAGES_GATE = "HugePageReport"
_KIB = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """The topology is always known to this daemon; its gate decides whether it is reported."""

    source: TopologySource
    report: Gated


def build_topology(
    settings: Settings,
    states: StatesInformer,
    cache: MetricCache,
    clock: Clock,
    *,
    client: ApiClient,
    kubelet: KubeletClient,
    node: OwnObject[Node],
    observe_only: Callable[[], str],
) -> Topology:
    """Make both parts. observe_only is the reason for no report, "" when it may be made."""
    options, gates, name = settings.options, settings.gates, settings.node_name
    interval = options.node_topology_sync_interval.value
    ask = None if options.disable_query_kubelet_config.value else kubelet.configz
    source = TopologySource(
        states,
        clock,
        machine=lambda: _machine(cache),
        kubelet=KubeletSource(ask, settings.paths.kubelet, clock),
        huge_pages=lambda: gates.enabled(HUGE_PAGES_GATE),
        interval=interval,
    )
    own = KubeTopology(client, name, clock)
    reporter = TopologyReporter(
        client,
        name,
        states,
        own,
        clock,
        interval=interval,
        owner=states.node if options.node_file.value else node.current,
        observe_only=observe_only,
    )
    return Topology(source=source, report=Gated(gates, GATE, clock, reporter.run, reporter.health))


def _machine(cache: MetricCache) -> Machine | None:
    """The machine as the collector has read it last; None until it has."""
    cpus, nodes = cache.get(NODE_CPU_INFO), cache.get(NODE_NUMA_INFO)
    if not isinstance(cpus, NodeCpuInfo) or not isinstance(nodes, tuple):
        return None
    return Machine(cpus.basics, cpus.topology, {node.id: _memory(node) for node in nodes})


def _memory(node: NumaNode) -> NumaMemory:
    pages = {kib * _KIB: count * kib * _KIB for kib, count in node.huge_pages.items()}
    return NumaMemory(node.memory.total, pages)
