"""The devices of a node as the REST endpoint of Koordinator's plugin shows them."""

from collections.abc import Iterable, Mapping
from typing import Any

from koord.plugin import InvalidObject
from koord_scheduler.plugin import ClusterPod
from koord_scheduler_plugins.device_share.allocated import allocated_devices, amounts_text
from koord_scheduler_plugins.device_share.devices import TYPES, Amounts, DeviceTable

Details = Mapping[str, Mapping[int, Amounts]]


def node_summary(table: DeviceTable, pods: Iterable[ClusterPod]) -> dict[str, Any]:
    """Return totals, free and used amounts of a node, and which pods have them."""
    total: Details = {kind: table.total(kind) for kind in table.layout.by_type}
    free: Details = {kind: table.free(kind) for kind in table.layout.by_type}
    allocated: dict[str, dict[str, object]] = {}
    for pod in pods:
        try:
            given = {} if pod.finished else allocated_devices(pod)
        except InvalidObject:
            continue  # it has nothing in the account either
        for kind, devices in given.items():
            if kind in TYPES:
                each = {str(one.minor): dict(one.resources) for one in devices}
                allocated.setdefault(kind, {})[pod.key] = each
    return {
        "deviceTotal": _sums(total),
        "deviceFree": _sums(free),
        "deviceUsed": _sums(table.used),
        "deviceTotalDetail": _details(total),
        "deviceFreeDetail": _details(free),
        "deviceUsedDetail": _details(table.used),
        "allocateSet": allocated,
    }


def _sums(found: Details) -> Mapping[str, str]:
    sums: dict[str, int] = {}
    for devices in found.values():
        for amounts in devices.values():
            for name, amount in amounts.items():
                sums[name] = sums.get(name, 0) + amount
    return amounts_text(sums)


def _details(found: Details) -> Mapping[str, object]:
    return {
        kind: {str(minor): amounts_text(amounts) for minor, amounts in devices.items()}
        for kind, devices in found.items()
    }
