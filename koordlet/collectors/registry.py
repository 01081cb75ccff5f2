"""The list of collectors, in the order in which a pass runs them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from koordlet.collectors.container_cpi import ContainerCpiCollector, CpiOptions
from koordlet.collectors.engine.collector import Collector, LazyCollector
from koordlet.collectors.network_compat import ConstantLabel, NodeExporter
from koordlet.collectors.node_info import NodeInfoCollector, NodeStorageCollector
from koordlet.collectors.node_network import NetProtocolsCollector, NodeNetworkCollector
from koordlet.collectors.node_usage import (
    NodeNumaCollector,
    NodeResourceCollector,
    PageCacheCollector,
    SystemResourceCollector,
)
from koordlet.collectors.pod_network import PodNetworkCollector
from koordlet.collectors.pod_usage import (
    PodGroups,
    PodNumaCollector,
    PodResourceCollector,
    PodThrottledCollector,
)
from koordlet.collectors.pressure import NodePressureCollector, PodPressureCollector
from koordlet.collectors.qos_usage import (
    BEResourceCollector,
    HostApplicationCollector,
    QosResourceCollector,
)
from koordlet.host.net.interfaces import LinkSpeeds, NodeNetwork
from koordlet.host.paths import HostPaths
from koordlet.metriccache.kinds import Cadence


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectorOptions:
    """The settings of collectors, from flags. Times in seconds."""

    node: str  # value of the label `node`
    periods: Mapping[Cadence, float]
    outdated: float = 10.0  # how old a part of the system's usage may be
    exporter_compat: bool = False  # export network figures under other exporters' names too
    cpi_window: float = 10.0  # that cycles are counted in each of their periods
    cold_page_cpu: float = 0.025  # of CPU time for each round of idle page tracking
    resctrl: bool = False  # collect what the control groups of classes use
    constant_label: ConstantLabel | None = None  # added to node_exporter's names
    xpu_files: Path = Path("/var/run/koordlet/xpu-device-infos")  # that describe devices


def build_collectors(
    options: CollectorOptions,
    paths: HostPaths,
    publish: Callable[[str, object], None],
    page_cache_wanted: Callable[[], bool],
    enabled: Callable[[str], bool],
    known: Callable[[str], object | None] = lambda _: None,
) -> list[Collector]:
    """Return all collectors; gates decide later which of them run.

    publish(name, object) makes an object known to the rest of the daemon, and known(name) returns
    one; enabled says whether a gate is on. A collector may use what those before it handed on, so
    the order matters.
    """
    node = options.node
    usage, network = options.periods[Cadence.USAGE], options.periods[Cadence.NETWORK]
    exporter = NodeExporter(options.constant_label) if options.exporter_compat else None
    groups = PodGroups()
    info = NodeInfoCollector(node, paths, publish)
    node_network = NodeNetwork(paths.proc)
    interfaces = NodeNetworkCollector(node, network, node_network, LinkSpeeds(paths.sys), exporter)
    return [
        info,
        NodeStorageCollector(node, paths, publish),
        NodeResourceCollector(node, usage),
        NodeNumaCollector(node, usage, lambda: info.numa_nodes, lambda: info.numa_of_cpu),
        QosResourceCollector(node, usage),
        PodResourceCollector(node, usage, groups),
        PodNumaCollector(lambda: info.numa_nodes),
        PodThrottledCollector(node, usage, groups),
        BEResourceCollector(node, usage),
        HostApplicationCollector(node, usage),
        SystemResourceCollector(node, options.outdated),
        PageCacheCollector(page_cache_wanted),
        _cold_page(options, paths),
        ContainerCpiCollector(
            node,
            paths,
            CpiOptions(
                interval=options.periods[Cadence.CPI],
                window=options.cpi_window,
                enabled=enabled,
            ),
        ),
        _resctrl(options, paths),
        NodePressureCollector(node),
        PodPressureCollector(node),
        interfaces,
        PodNetworkCollector(
            node,
            network,
            paths.proc,
            (lambda: interfaces.interfaces) if options.exporter_compat else None,
        ),
        NetProtocolsCollector(node, network, lambda: node_network.process, exporter),
        *_devices(options, paths, publish, known),
    ]


def _cold_page(options: CollectorOptions, paths: HostPaths) -> Collector:
    def make() -> Collector:
        from koordlet.collectors.cold_page import ColdPageCollector

        return ColdPageCollector(options.node, paths, options.cold_page_cpu)

    return LazyCollector("cold_page", "ColdPageCollector", Cadence.COLD_PAGE, make)


def _resctrl(options: CollectorOptions, paths: HostPaths) -> Collector:
    def make() -> Collector:
        from koordlet.collectors.resctrl import ResctrlCollector

        return ResctrlCollector(options.node, paths, wanted=options.resctrl)

    return LazyCollector("resctrl", "ResctrlCollector", Cadence.RESCTRL, make)


def _devices(
    options: CollectorOptions,
    paths: HostPaths,
    publish: Callable[[str, object], None],
    known: Callable[[str], object | None],
) -> Iterator[Collector]:
    """Return the collectors of rare hardware; their code is loaded when they are switched on."""

    def rdma() -> Collector:
        from koordlet.collectors.devices import RdmaCollector

        return RdmaCollector(options.node, paths.sys, publish)

    def xpu() -> Collector:
        from koordlet.collectors.devices import XpuCollector

        return XpuCollector(options.node, options.xpu_files, publish)

    def gpu() -> Collector:
        from koordlet.collectors.devices import GpuCollector

        return GpuCollector(options.node, options.periods[Cadence.USAGE], known)

    yield LazyCollector("rdma", "RDMADevices", Cadence.DEVICES, rdma)
    yield LazyCollector("xpu", "Accelerators", Cadence.DEVICES, xpu)
    yield LazyCollector("gpu", "Accelerators", Cadence.USAGE, gpu)
