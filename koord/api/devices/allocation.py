"""Allocation of the devices of one node, and the NUMA nodes from which they could come. Pure.

GPUs are chosen by the partition table, by the topology, or one by one; other devices near them.

Source: Koordinator, pkg/scheduler/plugins/deviceshare (allocator_gpu.go, device_allocator.go,
topology_hint.go).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from koord.api.devices.layout import (
    ANY_NUMA,
    GPU,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    LEVELS,
    WHOLE,
    Amounts,
    DeviceTable,
    NodeDevice,
    Partition,
    Partitions,
    Scope,
    address_order,
    fits,
    partitions_of,
)
from koord.api.devices.requests import (
    DEVICE_LEVEL,
    PCIE_LEVEL,
    PartitionSpec,
    PodDevices,
)
from koord.api.labelselector import LabelSelector

HIGHEST = 100


@dataclass(frozen=True, slots=True)
class DeviceScorer:
    """A formula: the weighted mean over resources, of devices that have them."""

    most: bool  # the more is requested, the better
    weights: tuple[tuple[str, int], ...]  # 1 to 100 each

    def score(self, total: Amounts, free: Amounts, request: Amounts) -> int:
        """Return the score of a device, or of a sum of devices, 0 to HIGHEST."""
        sum_of_scores = weights = 0
        for name, weight in self.weights:
            has = total.get(name, 0)
            if not has:
                continue
            taken = has - min(free.get(name, 0), has) + request.get(name, 0)
            if self.most:
                score = min(taken, has) * HIGHEST // has
            else:
                score = max(has - taken, 0) * HIGHEST // has
            sum_of_scores += score * weight
            weights += weight
        return sum_of_scores // weights if weights else 0


def with_both(request: Amounts, total: Amounts) -> Amounts:
    """Return a request of GPU memory both in bytes and in percent of a card, rounded up."""
    memory, ratio, has = (
        request.get(GPU_MEMORY),
        request.get(GPU_MEMORY_RATIO),
        total.get(GPU_MEMORY),
    )
    if not has or (memory is None) == (ratio is None):
        return request
    if memory is None:
        assert ratio is not None  # noqa: S101 - one of the two is there
        return {**request, GPU_MEMORY: ratio * has // WHOLE}
    return {**request, GPU_MEMORY_RATIO: -(-memory * WHOLE // has)}


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
    preferred: frozenset[int] = frozenset()  # come first
    required: frozenset[int] = frozenset()  # must be among them

    def first(self, minors: Iterable[int]) -> tuple[int, ...]:
        """Return as many as are wanted, ascending: the required ones, then the preferred ones."""
        if not self.preferred and not self.required:
            return tuple(minors)[: self.count]
        ordered = sorted(
            minors, key=lambda one: (one not in self.required, one not in self.preferred, one)
        )
        return tuple(sorted(ordered[: self.count]))

    def preferred_in(self, minors: Iterable[int]) -> int:
        """How many of the minors are preferred."""
        return len(self.preferred.intersection(minors)) if self.preferred else 0


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
        feasible.sort(
            key=lambda one: (
                -choice.preferred_in(one.minors),
                -_pack_score(one, choice, partitions),
            )
        )
    return tuple(sorted(feasible[0].minors))


def _is_free(one: Partition, choice: Choice, bandwidth: int) -> bool:
    if bandwidth and (one.bandwidth is None or one.bandwidth < bandwidth):
        return False
    if not choice.required <= one.minors:
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
    preferred: int  # how many of them are preferred
    depth: int
    in_use: int  # scopes around it with GPUs in use
    score: int  # of the one card of a share
    minors: tuple[int, ...]

    @property
    def order(self) -> tuple[int, int, int, int]:
        return self.preferred, self.depth, self.in_use, self.score


def _nearest(
    choice: Choice, scope: Scope, depth: int, in_use: int, *, shared: bool, required: int
) -> _Found | None:
    if len(scope.minors) < choice.count or not choice.required.issubset(scope.minors):
        return None
    depth += 1
    if any(minor in choice.used for minor in scope.minors):
        in_use += 1
    best: _Found | None = None
    for child in scope.children:
        found = _nearest(choice, child, depth, in_use, shared=shared, required=required)
        if found is not None and (best is None or found.order > best.order):
            best = found
    if best is not None and not choice.preferred:
        return best
    if required > scope.level:
        return best
    usable = [minor for minor in scope.minors if minor in choice.usable]
    if len(usable) < choice.count or not choice.required.issubset(usable):
        return best
    if shared:
        highest = max(usable, key=choice.score)  # the first of several
        card = (highest,)
        here = _Found(choice.preferred_in(card), depth, in_use, choice.score(highest), card)
    else:
        minors = choice.first(usable)
        here = _Found(choice.preferred_in(minors), depth, in_use, 0, minors)
    return here if best is None or here.preferred > best.preferred else best


def one_by_one(choice: Choice) -> tuple[int, ...]:
    """Return the GPUs with the highest scores. Raises DevicesUnavailable: there are not as many."""
    ordered = sorted(choice.usable, key=lambda minor: (-choice.score(minor), minor))
    if len(ordered) < choice.count:
        raise DevicesUnavailable("Insufficient gpu devices")
    return tuple(ordered[: choice.count])


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuRules:
    """Rules of a node and a pod about the GPUs that may be given together."""

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


@dataclass(frozen=True, slots=True)
class GivenDevice:
    """A device, or a share of it, for a pod."""

    minor: int
    amounts: Amounts
    functions: tuple[str, ...] = ()  # addresses of virtual functions
    template: str = ""  # of a share of an NPU; "": none
    containers: tuple[tuple[str, Amounts], ...] = ()
    """Amounts of it by container; empty: all containers see it."""


Allocation = Mapping[str, tuple[GivenDevice, ...]]
"""The devices of a pod by type; never empty."""


@dataclass(frozen=True, slots=True)
class AllocateOptions:
    """Inputs of an allocation besides the node and the pod."""

    scorer: DeviceScorer | None = None  # None: all devices score the same
    numa_nodes: frozenset[int] | None = None  # devices must be near to one of them; None: any
    templates: Mapping[str, str] = field(default_factory=dict)
    """Name of the template by vendor and model of GPUs, of pods that need one."""
    needs_template: bool = False
    preferred: Set[tuple[str, int]] = frozenset()
    """Type and minor of devices that come first."""
    required: Set[tuple[str, int]] = frozenset()
    """Type and minor of devices that must be among those that are given; preferred, too."""


FILTERING = AllocateOptions()
_PREFERRED = 1 << 20  # more than any score


def allocate(
    table: DeviceTable, wanted: PodDevices, options: AllocateOptions = FILTERING
) -> Allocation:
    """Return devices of a node for a pod.

    Raises:
        DevicesUnavailable: there are none.
    """
    return _Work(table, wanted, options).run()[0]


def has_room(table: DeviceTable, wanted: PodDevices) -> bool:
    """Whether a node can certainly give a pod its devices; False: it has to be tried.

    So it is of pods that request any GPUs, where no partition must be given: as many as are
    requested are enough, wherever they are. It takes a tenth of the time of allocate.
    """
    gpu = wanted.gpu
    if gpu is None or len(wanted.requests) > 1 or GPU in wanted.hints:
        return False
    if wanted.partition is not None or partitions_of(table.layout, table.node)[1]:
        return False
    left = gpu.count
    for free in table.free(GPU).values():
        if fits(gpu.each, free):
            left -= 1
            if not left:
                return True
    return False


def allocate_with_way(
    table: DeviceTable, wanted: PodDevices, options: AllocateOptions
) -> tuple[Allocation, str]:
    """As allocate, with the way by which the devices were found, for metrics."""
    return _Work(table, wanted, options).run()


def _of_gpus(devices: Set[tuple[str, int]]) -> frozenset[int]:
    return frozenset(minor for kind, minor in devices if kind == GPU)


class _Work:
    """One allocation on one node."""

    def __init__(self, table: DeviceTable, wanted: PodDevices, options: AllocateOptions) -> None:
        self._table = table
        self._wanted = wanted
        self._options = options
        self._way = "default"

    def run(self) -> tuple[Allocation, str]:
        wanted = self._wanted
        each = {kind: instance_request(self._table, wanted, kind) for kind in wanted.requests}
        found: dict[str, tuple[GivenDevice, ...]] = {}
        if len(each) > 1 and wanted.joint:
            self._joint(each, found)
        for kind, (request, count) in each.items():
            if kind not in found:
                found[kind] = self._alone(kind, request, count, ())
        if required := self._options.required:
            given = {(kind, one.minor) for kind, devices in found.items() for one in devices}
            for kind, _ in sorted(required - given):
                raise DevicesUnavailable(f"Insufficient {kind} devices")
        return {kind: found[kind] for kind in sorted(found)}, self._way

    def _joint(
        self, each: Mapping[str, tuple[Amounts, int]], found: dict[str, tuple[GivenDevice, ...]]
    ) -> None:
        """Give devices of further types on the PCIe switches of the first."""
        first, *others = self._wanted.joint
        found[first] = self._alone(first, *each[first], ())
        devices = self._table.devices(first)
        switches = tuple(dict.fromkeys(devices[one.minor].pcie for one in found[first]))
        for kind in others:
            request, count = each[kind]
            if self._wanted.same_pcie:
                count = max(count, len(switches))
            found[kind] = self._alone(kind, request, count, switches)
            there = self._table.devices(kind)
            if self._wanted.same_pcie and {there[one.minor].pcie for one in found[kind]} != set(
                switches
            ):
                raise DevicesUnavailable("node(s) Device Joint-Allocate rules violation")

    def _alone(
        self, kind: str, request: Amounts, count: int, switches: Sequence[str]
    ) -> tuple[GivenDevice, ...]:
        """Give devices of one type. switches: PCIe switches that are preferred."""
        if kind == GPU:
            return self._gpus(request, count)
        return self._default(kind, request, count, switches)

    def _default(
        self, kind: str, request: Amounts, count: int, switches: Sequence[str]
    ) -> tuple[GivenDevice, ...]:
        free, devices = self._table.free(kind), self._table.devices(kind)
        candidates = self._candidates(kind)
        scores = {minor: self._score(kind, minor, request) for minor in candidates}
        for minor in candidates:
            if (kind, minor) in self._options.preferred:
                scores[minor] += _PREFERRED
        most = max(count, len(switches)) if self._wanted.expand else count
        selector = self._wanted.hint(kind).functions
        given: list[GivenDevice] = []
        for minor in in_order(candidates, scores, devices, switches):
            if not fits(request, free[minor]):
                continue
            functions: tuple[str, ...] = ()
            if selector is not None:
                function = self._function(devices[minor], selector)
                if function is None:
                    continue
                functions = (function,)
            given.append(GivenDevice(minor, request, functions))
            if len(given) == max(most, 1):
                break
        if len(given) < count:
            raise DevicesUnavailable(f"Insufficient {kind} devices")
        return tuple(given)

    def _gpus(self, request: Amounts, count: int) -> tuple[GivenDevice, ...]:
        table, wanted = self._table, self._wanted
        if wanted.gpu is None:
            raise DevicesUnavailable("No GPU Requirements")
        template = ""
        if self._options.needs_template:
            template = self._options.templates.get(table.node.vendor_model, "")
            if not template:
                raise DevicesUnavailable("no matched GPU shared resource template", final=True)
        free, hint = table.free(GPU), wanted.hint(GPU)
        candidates = self._candidates(GPU)
        shared = wanted.gpu.shared
        if shared and GPU_MEMORY_RATIO not in request and not template:
            shared = is_share(request, table)
        partitions, honor = partitions_of(table.layout, table.node)
        choice = Choice(
            count,
            {minor for minor in candidates if fits(request, free[minor])},
            table.used_gpus,
            lambda minor: (
                self._score(GPU, minor, request)
                + _PREFERRED * ((GPU, minor) in self._options.preferred)
            ),
            preferred=_of_gpus(self._options.preferred),
            required=_of_gpus(self._options.required),
        )
        rules = GpuRules(
            scopes=table.layout.scopes,
            partitions=partitions,
            honor=honor or wanted.partition is not None,
            spec=wanted.partition,
            required=hint.scope,
            shared=shared,
        )
        minors, self._way = choose(choice, rules)
        if template:
            self._way = "template"
        return tuple(GivenDevice(minor, request, template=template) for minor in minors)

    def _candidates(self, kind: str) -> Collection[int]:
        """Minors of the healthy devices that the pod's hints and NUMA nodes leave, ascending."""
        hint, numa_nodes = self._wanted.hint(kind), self._options.numa_nodes
        devices = self._table.devices(kind)
        found = [minor for minor, one in devices.items() if any(n for _, n in one.total)]
        if numa_nodes is not None:
            near = numa_nodes | {ANY_NUMA}
            found = [minor for minor in found if devices[minor].numa_node in near]
        if hint.selector is not None:
            found = [m for m in found if hint.selector.matches(dict(devices[m].labels))]
        if hint.exclusive == DEVICE_LEVEL:
            found = [minor for minor in found if not self._table.is_used(kind, minor)]
        elif hint.exclusive == PCIE_LEVEL:
            taken = {one.pcie for minor, one in devices.items() if self._table.is_used(kind, minor)}
            found = [minor for minor in found if devices[minor].pcie not in taken]
        return found

    def _score(self, kind: str, minor: int, request: Amounts) -> int:
        scorer = self._options.scorer
        if scorer is None:
            return 0
        total = self._table.total(kind)[minor]
        return scorer.score(total, self._table.free(kind)[minor], with_both(request, total))

    def _function(self, device: NodeDevice, selector: LabelSelector) -> str | None:
        taken = self._table.functions.get((device.type, device.minor), ())
        free = [
            address
            for group in device.groups
            if selector.matches(dict(group.labels))
            for address in group.functions
            if address not in taken
        ]
        return min(free, key=address_order, default=None)


def is_share(request: Amounts, table: DeviceTable) -> bool:
    """Whether a request by memory alone is for less than a whole card of the node."""
    most = max((one.get(GPU_MEMORY, 0) for one in table.total(GPU).values()), default=0)
    return request.get(GPU_MEMORY, 0) < most


def instance_request(table: DeviceTable, wanted: PodDevices, kind: str) -> tuple[Amounts, int]:
    """Return what a pod requests of each device of a type, and of how many of a node.

    Raises:
        DevicesUnavailable: the node has no such device.
    """
    devices, hint = table.devices(kind), wanted.hint(kind)
    missing = DevicesUnavailable(f"Insufficient {kind} devices", final=True)
    if not devices:
        raise missing
    if hint.functions is not None and not any(one.groups for one in devices.values()):
        raise DevicesUnavailable(f"Insufficient {kind} VirtualFunctions", final=True)
    if kind == GPU:
        assert wanted.gpu is not None  # noqa: S101 - it is requested
        return wanted.gpu.each, wanted.gpu.count
    request = wanted.requests[kind]
    [(name, amount)] = request.items()
    if amount > WHOLE:
        return {name: WHOLE}, amount // WHOLE
    if hint.for_all:
        matching = [
            one
            for one in devices.values()
            if hint.selector is None or hint.selector.matches(dict(one.labels))
        ]
        if not matching:
            raise missing
        return request, len(matching)
    if hint.counts:
        return {name: WHOLE if hint.exclusive == DEVICE_LEVEL else 1}, amount
    return request, 1


def in_order(
    minors: Iterable[int],
    scores: Mapping[int, int],
    devices: Mapping[int, NodeDevice],
    switches: Collection[str],
) -> list[int]:
    """Return minors in the order in which they are given.

    The highest score is first, then the lowest minor. Those on preferred PCIe switches come before
    all others: first one of each switch, then a second one of each, and so on.
    """

    def place(minor: int) -> tuple[int, int]:
        return -scores.get(minor, 0), minor

    ordered = sorted(minors, key=place)
    if not switches:
        return ordered
    by_switch: dict[str, list[int]] = {}
    for minor in ordered:
        if devices[minor].pcie in switches:
            by_switch.setdefault(devices[minor].pcie, []).append(minor)
    first: list[int] = []
    for round_of_switches in zip_longest(*by_switch.values()):
        first += sorted((one for one in round_of_switches if one is not None), key=place)
    return first + [minor for minor in ordered if devices[minor].pcie not in by_switch]


def with_memory(allocation: Allocation, table: DeviceTable, node: str) -> Allocation:
    """Return an allocation in which GPUs have their memory both in bytes and in percent.

    A percentage is rounded up, but not beyond what is free of the card.

    Raises:
        DevicesUnavailable: a card has gone, or is not healthy.
    """
    if GPU not in allocation:
        return allocation
    totals, free = table.total(GPU), table.free(GPU)
    filled = []
    for one in allocation[GPU]:
        total = totals.get(one.minor)
        if not total:
            raise DevicesUnavailable(
                f"fillGPUTotalMem failed: no healthy gpu device with minor {one.minor} of "
                f"allocation, node: {node}"
            )
        amounts = dict(with_both(one.amounts, total))
        if GPU_MEMORY_RATIO in amounts and GPU_MEMORY_RATIO not in one.amounts:
            left = free[one.minor].get(GPU_MEMORY_RATIO, 0)
            amounts[GPU_MEMORY_RATIO] = min(amounts[GPU_MEMORY_RATIO], left)
        filled.append(replace(one, amounts=amounts))
    return {**allocation, GPU: tuple(filled)}
