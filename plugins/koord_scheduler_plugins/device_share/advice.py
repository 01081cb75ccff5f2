"""Why no node has the devices that a pod requests, in words: fragmentation is named."""

from collections.abc import Iterator, Sequence

from koord_scheduler_plugins.device_share.allocation import instance_request
from koord_scheduler_plugins.device_share.devices import (
    GPU,
    GPU_MEMORY_RATIO,
    LEVELS,
    WHOLE,
    Amounts,
    DeviceTable,
    Scope,
    fits,
    partitions_of,
)
from koord_scheduler_plugins.device_share.gpus import DevicesUnavailable
from koord_scheduler_plugins.device_share.requests import PodDevices

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
    """What is free in parts of cards."""
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
