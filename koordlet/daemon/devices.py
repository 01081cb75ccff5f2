"""Build what needs devices: GPU helper, device report, injectors, pod-resources proxy.

Imported only while a gate of these is on.
"""

import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry

from koord.api.annotations import DEVICE_ALLOCATED
from koord.api.node import Node
from koord.component.supervisor import Component, UnavailableComponent
from koord.kube.client import ApiClient
from koord.util.clock import Clock
from koord.util.errors import InvalidObject
from koord.util.logs import LogState, get_logger
from koordlet.collectors.devices import (
    ACCELERATORS,
    GPU_READING,
    GPUS,
    INTERFACES,
    RDMA_DEVICES,
    XPUS,
)
from koordlet.daemon.settings import Settings
from koordlet.features import HAMI_MONITOR
from koordlet.host.devices import pci_topology
from koordlet.metriccache.cache import MetricCache
from koordlet.nvml.gpus import GpuMonitor, GpuObservers
from koordlet.nvml.process import HelperProcess
from koordlet.podresources import GivenDevices
from koordlet.reporter.devices import DeviceReporter
from koordlet.reporter.status import HEALTHY_GPUS
from koordlet.rules.allocated_devices import kubelet_devices
from koordlet.rules.devices import DeviceTopology, GpuSet, NodeDevices, XpuSet, node_devices
from koordlet.runtimehooks.adjustments import Injector
from koordlet.runtimehooks.device_injectors import GpuInjector, RdmaInjector
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.podmeta import PodMeta

DRIVER = "bus/pci/drivers/nvidia"  # below /sys


def build_gpus(
    settings: Settings, cache: MetricCache, clock: Clock, registry: CollectorRegistry
) -> GpuMonitor:
    """Make it; the helper is started when it runs, on a node with the driver."""
    options, sys = settings.options, settings.paths.sys

    def present() -> bool:
        files = cache.get(XPUS)
        in_files = isinstance(files, XpuSet) and bool(files.xpus)
        files_alone = options.xpu_enforce_collect.value or in_files
        return not files_alone and (sys / DRIVER).is_dir()

    def publish(gpus: GpuSet) -> None:
        cache.put(HEALTHY_GPUS, frozenset(gpu.uuid for gpu in gpus.gpus if not gpu.error))
        cache.put(GPUS, gpus)

    return GpuMonitor(
        lambda: HelperProcess.start(settings.environ, clock),
        GpuObservers(gpus=publish, reading=lambda reading: cache.put(GPU_READING, reading)),
        clock,
        registry,
        present=present,
        locate=lambda bus: _place(sys, bus),
        interval=options.collect_res_used_interval.value,
    )


def _place(sys: Path, bus: str) -> DeviceTopology | None:
    try:
        return pci_topology(sys, bus)
    except ValueError:
        return None


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


def build_injectors(settings: Settings, cache: MetricCache) -> tuple[Injector, ...]:
    """Make the injectors of GPUs and RDMA interfaces. They know the devices that were found."""
    gates, paths = settings.gates, settings.paths

    def devices(gate: str) -> NodeDevices:
        if not gates.enabled(gate):
            wanted = f"the gate {gate} on, by which the devices of this node are known"
            raise InvalidObject(DEVICE_ALLOCATED, wanted=wanted, found="off")
        return known_devices(cache, rdma=gates.enabled(RDMA_DEVICES))

    return (
        GpuInjector(
            lambda: devices(ACCELERATORS),
            settings.options.hooks.hami_library.value,
            paths.root,
            is_monitored=lambda: gates.enabled(HAMI_MONITOR),
        ),
        RdmaInjector(lambda: devices(RDMA_DEVICES), paths.sys),
    )


_SOCKET = "pod-resources/kubelet.sock"  # in the kubelet's directory
_MISSING = (
    "wanted the Python package grpclib, found none; install koordlet[podresources], or switch the "
    "gate PodResourcesProxy off"
)

log = get_logger("koordlet.podresources")


def build_pod_resources(
    settings: Settings, states: StatesInformer, cache: MetricCache, clock: Clock
) -> Component:
    """Make the proxy; without the package that it needs, something that says so."""
    if importlib.util.find_spec("grpclib") is None:
        log.warning("pod_resources.missing", error=_MISSING)
        return UnavailableComponent(_MISSING)
    from koordlet.podresources import PodResourcesProxy

    return PodResourcesProxy(
        Path(settings.options.pod_resources_proxy_path.value),
        settings.paths.kubelet / _SOCKET,
        _PodDevices(settings, states, cache),
        clock,
    )


class _PodDevices:
    """Finds what a pod was given; an annotation that does not hold adds nothing."""

    def __init__(self, settings: Settings, states: StatesInformer, cache: MetricCache) -> None:
        self._settings = settings
        self._states = states
        self._cache = cache
        self._pods: tuple[PodMeta, ...] = ()
        self._by_name: dict[tuple[str, str], PodMeta] = {}
        self._trouble = LogState(log)

    def __call__(self, namespace: str, name: str) -> Iterable[GivenDevices]:
        pods = self._states.pods()
        if pods is not self._pods:
            self._by_name = {(meta.pod.namespace, meta.pod.name): meta for meta in pods}
            self._pods = pods
        meta = self._by_name.get((namespace, name))
        if meta is None:
            return []
        devices = known_devices(self._cache, rdma=self._settings.gates.enabled("RDMADevices"))
        try:
            return [GivenDevices(*each) for each in kubelet_devices(meta.pod, devices)]
        except InvalidObject as err:
            self._trouble.failed(
                "pod_resources.devices_rejected", pod=f"{namespace}/{name}", error=str(err)
            )
            return []
