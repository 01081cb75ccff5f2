"""GPUs for a pod: by the partition table, by the topology, or one by one.

Source: Koordinator, pkg/scheduler/plugins/deviceshare (allocator_gpu, allocator_gpu_helper).
"""

from collections.abc import Callable, Collection, Set
from dataclasses import dataclass

from koord_scheduler_plugins.device_share.devices import LEVELS, Partition, Partitions, Scope
from koord_scheduler_plugins.device_share.requests import PartitionSpec

_WEIGHTS = ((8, 10_000), (4, 100), (2, 1))  # of partitions that stay whole, by their size
_CARD = LEVELS["Device"]


class DevicesUnavailable(Exception):
    """A node cannot give the devices. final: removing pods from it would not help."""

    def __init__(self, *reasons: str, final: bool = False) -> None:
        super().__init__(", ".join(reasons))
        self.reasons = reasons
        self.final = final


@dataclass(frozen=True, slots=True)
class Choice:
    """The GPUs to choose from. minors of cards with as much free as each is to have."""

    count: int
    usable: Collection[int]
    used: Set[int]  # of which pods have something
    score: Callable[[int], int]  # of a device, for a share of it


def by_partition(
    choice: Choice, partitions: Partitions | None, spec: PartitionSpec | None
) -> tuple[int, ...]:
    """Return the GPUs of the partition that leaves the most others whole.

    Raises:
        DevicesUnavailable: there is no table, none of such a size, or none is free.
    """
    if partitions is None:
        raise DevicesUnavailable("node(s) missing GPU Partition Table", final=True)
    groups = partitions.get(choice.count)
    if not groups:
        raise DevicesUnavailable("node(s) Unsupported number of GPU requests", final=True)
    bandwidth = 0 if spec is None else spec.bandwidth
    feasible: list[Partition] = []
    for group in groups:
        feasible = [one for one in group if _is_free(one, choice, bandwidth)]
        if feasible or (spec is not None and spec.restricted):
            break
    if not feasible:
        raise DevicesUnavailable("Insufficient Partitioned GPU Devices")
    if len(feasible) > 1:
        feasible.sort(key=lambda one: -_pack_score(one, choice, partitions))
    return tuple(sorted(feasible[0].minors))


def _is_free(one: Partition, choice: Choice, bandwidth: int) -> bool:
    if bandwidth and (one.bandwidth is None or one.bandwidth < bandwidth):
        return False
    return not one.minors & choice.used and all(minor in choice.usable for minor in one.minors)


def _pack_score(candidate: Partition, choice: Choice, partitions: Partitions) -> int:
    """Return how much stays whole beside a partition."""
    taken = choice.used | candidate.minors
    return sum(
        weight * one.score
        for size, weight in _WEIGHTS
        if size >= choice.count
        for group in partitions.get(size, ())
        for one in group
        if not one.minors & taken
    )


def by_topology(
    choice: Choice, scopes: Scope | None, *, shared: bool, required: int
) -> tuple[int, ...]:
    """Return GPUs that are as near to each other as can be, where others are in use already.

    required: the level of LEVELS that they must have in common; 0: none.

    Raises:
        DevicesUnavailable: the topology is not known, or there are not as many.
    """
    if scopes is None:
        raise DevicesUnavailable("node(s) missing GPU Device Topology Tree", final=True)
    if shared and choice.count > 1:
        raise DevicesUnavailable("node(s) Unsupported Multi-Shared GPU", final=True)
    if required == _CARD and choice.count == 1:
        required = 0  # one card is as near as can be
    found = _nearest(choice, scopes, 0, 0, shared=shared, required=required)
    if found is None:
        scoped = "Topology Scoped " if required else ""
        raise DevicesUnavailable(f"Insufficient {scoped}GPU Devices")
    return found.minors


@dataclass(frozen=True, slots=True)
class _Found:
    depth: int
    in_use: int  # scopes around it with GPUs in use
    score: int  # of the one card of a share
    minors: tuple[int, ...]

    @property
    def order(self) -> tuple[int, int, int]:
        return self.depth, self.in_use, self.score


def _nearest(
    choice: Choice, scope: Scope, depth: int, in_use: int, *, shared: bool, required: int
) -> _Found | None:
    if len(scope.minors) < choice.count:
        return None
    depth += 1
    if any(minor in choice.used for minor in scope.minors):
        in_use += 1
    best: _Found | None = None
    for child in scope.children:
        found = _nearest(choice, child, depth, in_use, shared=shared, required=required)
        if found is not None and (best is None or found.order > best.order):
            best = found
    if best is not None:
        return best
    if required > scope.level:
        return None
    usable = [minor for minor in scope.minors if minor in choice.usable]
    if len(usable) < choice.count:
        return None
    if shared:
        highest = max(usable, key=choice.score)  # the first of several
        return _Found(depth, in_use, choice.score(highest), (highest,))
    return _Found(depth, in_use, 0, tuple(usable[: choice.count]))


def one_by_one(choice: Choice) -> tuple[int, ...]:
    """Return the GPUs with the highest scores. Raises DevicesUnavailable: there are not as many."""
    ordered = sorted(choice.usable, key=lambda minor: (-choice.score(minor), minor))
    if len(ordered) < choice.count:
        raise DevicesUnavailable("Insufficient gpu devices")
    return tuple(ordered[: choice.count])


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuRules:
    """What a node, and a pod, say of the GPUs that may be given together."""

    scopes: Scope | None  # the topology; None: it is not known
    partitions: Partitions | None  # None: there is no table
    honor: bool  # only partitions are given
    spec: PartitionSpec | None  # of the pod
    required: int = 0  # the level of LEVELS that they must have in common; 0: none
    shared: bool = False


def choose(choice: Choice, rules: GpuRules) -> tuple[tuple[int, ...], str]:
    """Return the minors of GPUs for a pod, and the way that has found them, for metrics.

    Raises:
        DevicesUnavailable: there are none.
    """
    scopes, shared, required = rules.scopes, rules.shared, rules.required
    if not shared:
        try:
            return by_partition(choice, rules.partitions, rules.spec), "partition"
        except DevicesUnavailable:
            if rules.honor or rules.spec is not None:
                raise
    if required or (scopes is not None and not (shared and choice.count > 1)):
        return by_topology(choice, scopes, shared=shared, required=required), "topology"
    return one_by_one(choice), "default"
