"""The devices of a pod by container, where its hint gives each container its own. Pure.

Source: docs/device-share.md; Koordinator has none of it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from koord.api.devices.allocation import Allocation, GivenDevice, with_both
from koord.api.devices.layout import (
    GPU,
    WHOLE,
    Amounts,
    DeviceTable,
    NodeDevice,
    fits,
)
from koord.api.devices.requests import (
    ALLOCATE_HINT,
    ContainerDevices,
    DeviceHint,
    InvalidRequest,
    PodDevices,
    gpu_request,
)

Order = Callable[[Sequence[int], int], Sequence[int]]
"""Returns so many of some minors for one container."""


def check_containers(wanted: PodDevices) -> None:
    """Check that the GPUs of a pod can be dealt out to its containers, on whichever node.

    Raises:
        InvalidRequest: a container would get a part of one card and a part of another.
    """
    gpu = wanted.gpu
    if gpu is None or not wanted.hint(GPU).per_container:
        return
    cards = dict.fromkeys(range(gpu.count), gpu.each)
    if _dealt(cards, _shares(wanted, GPU), _first) is None:
        text = f"perContainer: requests of the containers do not divide {gpu.count} GPUs"
        raise InvalidRequest(f"invalid {ALLOCATE_HINT} annotation, err: {text}")


def by_container(found: Allocation, wanted: PodDevices, table: DeviceTable) -> Allocation:
    """Return an allocation that says which container has what of the devices.

    So it is for types whose hint asks for it. GPUs of one container are of one PCIe switch, or
    NUMA node, where they can be. Of other types, a device that is not needed for the requests is
    seen by all containers that request any.
    """
    return {
        kind: tuple(_by_container(kind, devices, wanted, table))
        if wanted.containers and wanted.hint(kind).per_container
        else devices
        for kind, devices in found.items()
    }


def _by_container(
    kind: str, devices: Sequence[GivenDevice], wanted: PodDevices, table: DeviceTable
) -> Iterable[GivenDevice]:
    given = {one.minor: one.amounts for one in devices}
    shares = _shares(wanted, kind)
    known = table.devices(kind)
    dealt = None
    if not wanted.hint(kind).for_all:
        dealt = _dealt(given, shares, lambda minors, count: _adjacent(minors, count, known))
    everyone = [name for name, _, _, _ in shares]
    parts: dict[int, dict[str, Amounts]] = {one.minor: {} for one in devices}
    for name, minors, each in dealt or ():
        for minor in minors:
            parts[minor][name] = _part(given[minor], each, table.total(kind).get(minor, {}))
    for one in devices:
        found = parts[one.minor] or dict.fromkeys(everyone, one.amounts)
        yield replace(one, containers=tuple(sorted(found.items())))


_Share = tuple[str, int, Amounts, bool]
"""A container, of how many devices it requests how much each, and whether it lasts."""


def _shares(wanted: PodDevices, kind: str) -> Sequence[_Share]:
    """The requests of containers, in the order in which they are met.

    First those of init containers as they start, then the largest.
    """
    found = []
    for one in wanted.containers:
        if kind in one.requests:
            count, each = _request(one, kind, wanted.hint(kind))
            found.append((one.name, count, each, one.lasting))
    last = max((at for at, share in enumerate(found) if not share[3]), default=-1) + 1
    return found[:last] + sorted(found[last:], key=_size, reverse=True)


def _size(share: _Share) -> tuple[int, int]:
    return share[1], max(share[2].values(), default=0)


def _request(one: ContainerDevices, kind: str, hint: DeviceHint) -> tuple[int, Amounts]:
    amounts = one.requests[kind]
    if kind == GPU:
        gpu = gpu_request(amounts)
        return gpu.count, gpu.each
    [(name, amount)] = amounts.items()
    if hint.counts:
        return amount, {name: 1}
    return (amount // WHOLE, {name: WHOLE}) if amount > WHOLE else (1, amounts)


def _dealt(
    given: Mapping[int, Amounts], shares: Sequence[_Share], order: Order
) -> list[tuple[str, Sequence[int], Amounts]] | None:
    """Deal devices out to containers; None: there are not enough for all."""
    free = dict(given)
    found = []
    for name, count, each, lasting in shares:
        minors = order([minor for minor, left in free.items() if fits(each, left)], count)
        if len(minors) < count:
            return None
        for minor in minors if lasting else ():
            left = free[minor]
            free[minor] = {key: left[key] - each.get(key, 0) for key in left}
        found.append((name, minors, each))
    return found


def _first(minors: Sequence[int], count: int) -> Sequence[int]:
    return minors[:count]


def _adjacent(
    minors: Sequence[int], count: int, devices: Mapping[int, NodeDevice]
) -> Sequence[int]:
    """So many minors of the smallest PCIe switch, else NUMA node, that has enough of them."""
    for depth in (2, 1):
        groups: dict[tuple[object, ...], list[int]] = {}
        for minor in minors:
            one = devices[minor]
            groups.setdefault((one.numa_node, one.pcie)[:depth], []).append(minor)
        enough = [group for group in groups.values() if len(group) >= count]
        if enough:
            return min(enough, key=len)[:count]
    return minors[:count]


def _part(amounts: Amounts, each: Amounts, total: Amounts) -> Amounts:
    """The amounts of a container, of a device of which the pod has some."""
    asked = with_both(each, total)
    return {name: min(asked.get(name, 0), amount) for name, amount in amounts.items()}
