"""Builds what adds devices to containers. Imported only while a gate of it is on, and asked."""

from koord.api.pods.deviceallocation import DEVICE_ALLOCATED
from koord.util.errors import InvalidObject
from koordlet.collectors.devices import ACCELERATORS, RDMA_DEVICES
from koordlet.daemon.report.devices import known_devices
from koordlet.daemon.settings.settings import Settings
from koordlet.features import HAMI_MONITOR
from koordlet.metriccache.cache import MetricCache
from koordlet.rules.devices import NodeDevices
from koordlet.runtimehooks.deviceinjectors import GpuInjector, RdmaInjector
from koordlet.runtimehooks.injections import Injector


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
