"""Builds what reports this node's devices. Imported only while the gate Accelerators is on."""

from collections.abc import Callable

from koord.api.nodes.node import Node
from koord.kube.client import ApiClient
from koord.util.clock import Clock
from koordlet.collectors.devices import GPUS, INTERFACES, RDMA_DEVICES, XPUS
from koordlet.daemon.settings.settings import Settings
from koordlet.metriccache.cache import MetricCache
from koordlet.reporter.devices import DeviceReporter
from koordlet.rules.devices import GpuSet, NodeDevices, XpuSet, node_devices


def build_device_report(
    settings: Settings,
    cache: MetricCache,
    clock: Clock,
    *,
    client: ApiClient,
    owner: Callable[[], Node | None],
    observe_only: Callable[[], str],
) -> DeviceReporter:
    """Make the reporter of what the collectors and the helper of NVML have found."""

    def devices() -> NodeDevices:
        return known_devices(cache, rdma=settings.gates.enabled(RDMA_DEVICES))

    return DeviceReporter(
        client,
        settings.node_name,
        devices,
        clock,
        interval=settings.options.node_topology_sync_interval.value,
        owner=owner,
        observe_only=observe_only,
    )


def known_devices(cache: MetricCache, *, rdma: bool) -> NodeDevices:
    """The devices that were found last; without rdma as if there were no RDMA interfaces."""
    gpus, xpus = cache.get(GPUS), cache.get(XPUS)
    interfaces = cache.get(INTERFACES) if rdma else ()
    return node_devices(
        gpus if isinstance(gpus, GpuSet) else None,
        xpus if isinstance(xpus, XpuSet) else None,
        interfaces if isinstance(interfaces, tuple) else None,
    )
