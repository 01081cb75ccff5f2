"""Builds what asks NVML about the GPUs. Imported only while the gate Accelerators is on."""

from pathlib import Path

from prometheus_client import CollectorRegistry

from koord.util.clock import Clock
from koordlet.collectors.devices import GPU_READING, GPUS, XPUS
from koordlet.daemon.settings.settings import Settings
from koordlet.host.devices.pci import pci_topology
from koordlet.metriccache.cache import MetricCache
from koordlet.nvml.gpus import Gpus, GpuSinks
from koordlet.nvml.process import HelperProcess
from koordlet.reporter.gpus import HEALTHY_GPUS
from koordlet.rules.devices import DeviceTopology, GpuSet, XpuSet

DRIVER = "bus/pci/drivers/nvidia"  # below /sys


def build_gpus(
    settings: Settings, cache: MetricCache, clock: Clock, registry: CollectorRegistry
) -> Gpus:
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

    return Gpus(
        lambda: HelperProcess.start(settings.environ, clock),
        GpuSinks(gpus=publish, reading=lambda reading: cache.put(GPU_READING, reading)),
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
