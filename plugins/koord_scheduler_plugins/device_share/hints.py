"""The NUMA nodes from which the devices of a pod could come. Pure.

Source: Koordinator, pkg/scheduler/plugins/deviceshare (topology_hint.go).
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

from koord.api.devices.allocation import (
    AllocateOptions,
    Allocation,
    DevicesUnavailable,
    allocate,
    instance_request,
)
from koord.api.devices.layout import ANY_NUMA, GPU, DeviceTable
from koord.api.devices.requests import PodDevices
from koord_scheduler.plugin.koordinator import NUMATopologyHint

BONUS = 500  # score of the NUMA nodes whose GPUs the node would choose by itself
MAX_MASKS = 256  # sets of NUMA nodes that are tried; beyond it the smallest, and all


def device_hints(
    table: DeviceTable, wanted: PodDevices, options: AllocateOptions
) -> dict[str, list[NUMATopologyHint]]:
    """Return by type the sets of NUMA nodes whose devices would do.

    The smallest are preferred. Without any NUMA nodes of devices there are no hints.

    Raises:
        DevicesUnavailable: no set would do; it is what all of the node lacks.
    """
    every = frozenset(table.layout.numa_nodes)
    if not every:
        return {}
    found: list[tuple[frozenset[int], Allocation]] = []
    failure: DevicesUnavailable | None = None
    for nodes in _sets(table.layout.numa_nodes):
        try:
            found.append((nodes, _allocate(table, wanted, options, nodes)))
        except DevicesUnavailable as err:
            failure = err  # the last set is all of them
    if not found:
        assert failure is not None  # noqa: S101 - there is a set
        raise failure
    smallest = min(len(nodes) for nodes, _ in found)
    best = _gpus(found[-1][1]) if found[-1][0] == every else None
    hints = [
        NUMATopologyHint(nodes, len(nodes) == smallest, BONUS if _gpus(given) == best else 0)
        for nodes, given in found
    ]
    return dict.fromkeys(wanted.requests, hints)


def _gpus(given: Allocation) -> frozenset[int]:
    return frozenset(one.minor for one in given.get(GPU, ()))


def _allocate(
    table: DeviceTable, wanted: PodDevices, options: AllocateOptions, nodes: frozenset[int]
) -> Allocation:
    for kind in wanted.requests:
        _, count = instance_request(table, wanted, kind)
        near = [
            one
            for one in table.devices(kind).values()
            if one.numa_node in nodes or one.numa_node == ANY_NUMA
        ]
        if near and len(near) < count:
            raise DevicesUnavailable("Insufficient NUMA Scoped Devices", final=True)
    return allocate(
        table,
        wanted,
        AllocateOptions(options.scorer, nodes, options.templates, options.needs_template),
    )


def _sets(nodes: Sequence[int]) -> Iterator[frozenset[int]]:
    """Sets of NUMA nodes, the smallest first, and in the end all of them."""
    count = 1
    for size in range(1, len(nodes)):
        for one in combinations(nodes, size):
            if count == MAX_MASKS:
                break
            count += 1
            yield frozenset(one)
    yield frozenset(nodes)
