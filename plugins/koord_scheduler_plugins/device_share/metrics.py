"""Metrics of devices, some with Koordinator's names."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from koord_scheduler_plugins.device_share.devices import NodeDevices


class DeviceMetrics:
    """Metrics of the devices of all profiles of a process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._planned = Gauge(
            "scheduler_secondary_device_not_well_planned",
            "1 for a node whose Device says that its secondary devices are not well planned.",
            ["node_name"],
            registry=registry,
        )
        self._allocations = Counter(
            "scheduler_deviceshare_allocations_total",
            "Devices chosen for pods by type, by the way that found the GPUs (partition, "
            "topology, template, default, none) and by the result: given or failed.",
            ["type", "way", "result"],
            registry=registry,
        )

    def allocated(self, kinds: Iterable[str], way: str, result: str) -> None:
        """Count a choice of devices in Reserve."""
        for kind in kinds:
            self._allocations.labels(kind, way, result).inc()

    def device_changed(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        """Take over the label of a Device."""
        if new is not None and new.well_planned == "false":
            self._planned.labels(new.name).set(1)
        elif old is not None and old.well_planned == "false":
            self._planned.remove(old.name)
