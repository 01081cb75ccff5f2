"""Devices as others see them: metrics, REST, reasons."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from koord.api.annotations import AllocatedDevice
from koord.api.devices.allocation import DevicesUnavailable, instance_request
from koord.api.devices.layout import (
    ANY_NUMA,
    GPU,
    GPU_MEMORY_RATIO,
    ISOLATION_PROVIDER,
    LEVELS,
    TYPES,
    WHOLE,
    Amounts,
    DeviceTable,
    NodeDevices,
    Scope,
    fits,
    partitions_of,
)
from koord.api.devices.requests import PodDevices
from koord.plugin import InvalidObject
from koord.plugin.kube import Event, EventType, ObjectRef
from koord_scheduler.plugin import ClusterPod, View
from koord_scheduler.plugin.koordinator import Endpoint, NodePart, PluginRequest
from koord_scheduler_plugins.device_share.allocated import allocated_devices, amounts_text
from koord_scheduler_plugins.device_share.tables import DeviceTables

_SUMS = {
    "total": (
        "What the healthy devices of all nodes have, by type and resource: percent of devices, or "
        "bytes of memory.",
        ("type", "resource"),
    ),
    "free": ("What of that no pod has.", ("type", "resource")),
    "fragmented": ("Devices of which pods have a part.", ("type",)),
    "unhealthy": ("Devices that are not healthy, or not usable.", ("type",)),
}


class DeviceMetrics(Collector):
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

        self._shown: Callable[[], Iterable[tuple[DeviceTable, int]]] = tuple
        registry.register(self)

    def show(self, counted: Callable[[], Iterable[tuple[DeviceTable, int]]]) -> None:
        """Compute sums over nodes when they are asked for, in any thread."""
        self._shown = counted

    def describe(self) -> Iterator[Metric]:
        return self._families([])

    def collect(self) -> Iterator[Metric]:
        return self._families(list(self._shown()))

    def _families(self, counted: Sequence[tuple[DeviceTable, int]]) -> Iterator[Metric]:
        """Sums by type: of nodes one by one they would be too many."""
        sums = {
            name: GaugeMetricFamily(f"scheduler_deviceshare_{name}", text, labels=labels)
            for name, (text, labels) in _SUMS.items()
        }
        amounts: dict[tuple[str, str], list[int]] = {}
        for kind in TYPES:
            partly = unhealthy = 0
            for table, nodes in counted:
                for minor, device in table.devices(kind).items():
                    total, free = dict(device.total), table.free(kind).get(minor, {})
                    unhealthy += nodes * (not total)
                    partly += nodes * any(0 < free.get(name, 0) < total[name] for name in total)
                for at, each in enumerate(table.sums(kind)):
                    for name, amount in each.items():
                        amounts.setdefault((kind, name), [0, 0])[at] += nodes * amount
            if any(table.devices(kind) for table, _ in counted):
                sums["unhealthy"].add_metric([kind], unhealthy)
                sums["fragmented"].add_metric([kind], partly)
        for labels, (total_amount, free_amount) in sorted(amounts.items()):
            sums["total"].add_metric(labels, total_amount)
            sums["free"].add_metric(labels, free_amount)
        return iter(sums.values())

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


Details = Mapping[str, Mapping[int, Amounts]]


class NodeSummaries:
    """REST endpoints that show which devices nodes have, and which pods have them."""

    def __init__(self, view: Callable[[], View], tables: DeviceTables) -> None:
        """view: returns the cluster as it is now."""
        self._view = view
        self._tables = tables

    def endpoints(self) -> Iterable[Endpoint]:
        """Yield the endpoint of one node, and that of all nodes with devices."""
        yield Endpoint("GET", "/nodeDeviceSummaries/{name}", self._one)
        yield Endpoint("GET", "/nodeDeviceSummaries", self._all)

    async def _one(self, request: PluginRequest) -> object:
        name = request.parameters["name"]
        nodes = self._view()
        row = nodes.row(name)
        found = None if row is None else self._summary(nodes, row)
        if found is None:
            raise LookupError(f"cannot find node {name}")
        return found

    async def _all(self, request: PluginRequest) -> object:
        nodes, found = self._view(), {}
        for name, row in sorted(nodes.traits.rows.items()):
            one = self._summary(nodes, row)
            if one is not None:
                found[name] = one
        return found

    def _summary(self, nodes: View, row: int) -> Mapping[str, Any] | None:
        table = self._tables.table(nodes, row)
        return None if table is None else node_summary(table, nodes.pods(row))


def node_summary(table: DeviceTable, pods: Iterable[ClusterPod]) -> dict[str, Any]:
    """Return totals, free and used amounts of a node, and which pods have them."""
    total: Details = {kind: table.total(kind) for kind in table.layout.by_type}
    free: Details = {kind: table.free(kind) for kind in table.layout.by_type}
    allocated: dict[str, dict[str, object]] = {}
    for key, kind, devices in _held_devices(pods):
        if kind in TYPES:
            each = {str(one.minor): dict(one.resources) for one in devices}
            allocated.setdefault(kind, {})[key] = each
    return {
        "deviceTotal": _sums(total),
        "deviceFree": _sums(free),
        "deviceUsed": _sums(table.used),
        "deviceTotalDetail": _details(total),
        "deviceFreeDetail": _details(free),
        "deviceUsedDetail": _details(table.used),
        "allocateSet": allocated,
    }


def _held_devices(
    pods: Iterable[ClusterPod],
) -> Iterator[tuple[str, str, Sequence[AllocatedDevice]]]:
    """Yield the devices of one type that a pod holds, with the pod's key and the type."""
    for pod in pods:
        try:
            given = {} if pod.finished else allocated_devices(pod)
        except InvalidObject:
            continue  # it has nothing in the account either
        for kind, devices in given.items():
            yield pod.key, kind, devices


def without_isolation(pod: ClusterPod, node: str, pods: Iterable[ClusterPod]) -> Iterator[Event]:
    """Yield an event of a pod that has shares of GPUs of which others of the node's pods have some.

    Of a pod without anything that keeps it to its share.
    """
    holders: dict[int, set[str]] = {}
    for key, kind, devices in _held_devices(pods):
        if kind == GPU:
            for one in devices:
                holders.setdefault(one.minor, set()).add(key)
    shared = [minor for minor, keys in sorted(holders.items()) if pod.key in keys and len(keys) > 1]
    if shared:
        others = len(set[str]().union(*(holders[minor] for minor in shared))) - 1
        text = (
            f"GPU {', '.join(map(str, shared))} of node {node} is shared with {others} other pods, "
            f"and nothing keeps this pod to its share: it has no label {ISOLATION_PROVIDER}"
        )
        about = ObjectRef("v1", "Pod", pod.name, pod.namespace, pod.uid)
        yield Event(about, EventType.WARNING, "GPUNotIsolated", text, "koord-scheduler")


def device_parts(table: DeviceTable, pods: Iterable[ClusterPod]) -> Iterator[NodePart]:
    """Yield the devices of a node by type, NUMA node and PCIe switch."""
    holders: dict[tuple[str, int], list[str]] = {}
    for key, kind, devices in _held_devices(pods):
        for one in devices:
            holders.setdefault((kind, one.minor), []).append(key)
    for kind, known in sorted(table.layout.by_type.items()):
        for minor, device in sorted(known.items()):
            total, free = dict(device.total), table.free(kind).get(minor, {})
            taken = [1 - free.get(name, 0) / amount for name, amount in total.items() if amount]
            where = [kind]
            if device.numa_node is not None and device.numa_node != ANY_NUMA:
                where.append(f"NUMA node {device.numa_node}")
            if device.pcie:
                where.append(f"PCIe {device.pcie}")
            pods_of = tuple(sorted(holders.get((kind, minor), ())))
            note = "" if total else "not healthy"
            used = max(taken, default=float(bool(pods_of)))
            yield NodePart(tuple(where), f"{kind} {minor}", pods_of, used, note)


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


Counted = Sequence[tuple[DeviceTable, int]]
"""Tables, and how many nodes have each."""


def fragmentation(wanted: PodDevices, tables: Counted) -> Iterator[str]:
    """Yield sentences on what is free of each type of devices, where no node has enough of it."""
    for kind in wanted.requests:
        found = [
            (len(_fitting(table, request, kind)), asked, nodes, table)
            for table, nodes in tables
            for request, asked in _requests(table, wanted, kind)
        ]
        if not found:
            yield f"no node has a device of type {kind}"
            continue
        free = sum(count * nodes for count, _, nodes, _ in found)
        most = max(count for count, _, _, _ in found)
        asked = min(asked for _, asked, _, _ in found)
        if most < asked:
            places = sum(nodes for count, _, nodes, _ in found if count)
            yield (
                f"{asked} devices of type {kind} are requested: {free} would do on {places} "
                f"nodes, at most {most} on one"
            )
            if kind == GPU:
                yield from _shares(wanted, tables)
        elif kind == GPU:
            yield from _scattered(wanted, [table for count, _, _, table in found if count >= asked])


def _requests(table: DeviceTable, wanted: PodDevices, kind: str) -> Iterator[tuple[Amounts, int]]:
    """The request of each device and their number; nothing where the node has none."""
    try:
        yield instance_request(table, wanted, kind)
    except DevicesUnavailable:
        return


def _fitting(table: DeviceTable, request: Amounts, kind: str) -> list[int]:
    return [minor for minor, free in table.free(kind).items() if fits(request, free)]


def _shares(wanted: PodDevices, tables: Counted) -> Iterator[str]:
    """Return the free parts of shared cards."""
    parts = [
        free.get(GPU_MEMORY_RATIO, 0)
        for table, _ in tables
        for free in table.free(GPU).values()
        if 0 < free.get(GPU_MEMORY_RATIO, 0) < WHOLE
    ]
    if parts and wanted.gpu is not None:
        yield (
            f"GPU memory is fragmented: cards in use have up to {max(parts)} percent free; "
            "MostAllocated as scoringStrategy of DeviceShare packs shares more densely"
        )


def _scattered(wanted: PodDevices, tables: Sequence[DeviceTable]) -> Iterator[str]:
    """Enough cards of a node are free, but not together."""
    gpu, required = wanted.gpu, wanted.hint(GPU).scope
    if gpu is None or gpu.count < 2:
        return
    name = next((name for name, level in LEVELS.items() if level == required), "")
    if name:
        best = max((_most_in_scope(table, gpu.each, required) for table in tables), default=0)
        if best < gpu.count:
            yield (
                f"{gpu.count} GPUs in one {name} are requested: nodes have as many free, but "
                f"at most {best} in one {name}"
            )
    honored = [table for table in tables if partitions_of(table.layout, table.node)[1]]
    if len(honored) == len(tables) or wanted.partition is not None:
        yield (
            f"{gpu.count} GPUs are free on nodes that give only whole partitions: none of such a "
            "size is free, or in the table"
        )


def _most_in_scope(table: DeviceTable, request: Amounts, level: int) -> int:
    usable = set(_fitting(table, request, GPU))
    return max(
        (len(usable.intersection(one.minors)) for one in _scopes(table.layout.scopes, level)),
        default=0,
    )


def _scopes(scope: Scope | None, level: int) -> Iterator[Scope]:
    if scope is not None:
        if scope.level == level:
            yield scope
        for child in scope.children:
            yield from _scopes(child, level)
