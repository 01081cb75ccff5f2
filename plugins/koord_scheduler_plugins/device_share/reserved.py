"""Devices of reservations, which their owners get, and devices that a pod comes with.

Source: Koordinator, pkg/scheduler/plugins/deviceshare (reservation.go).
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from koord.api.annotations import AllocatedDevice
from koord.api.devices.allocation import (
    HIGHEST,
    AllocateOptions,
    Allocation,
    DeviceScorer,
    DevicesUnavailable,
    allocate_with_way,
    instance_request,
)
from koord.api.devices.layout import (
    FUNCTION,
    GPU,
    DeviceTable,
    Scope,
    partitions_of,
    used_key,
)
from koord.api.devices.requests import PodDevices
from koord.api.quantity import Quantity
from koord.plugin import InvalidObject
from koord_scheduler.plugin import ClusterPod, CycleState, Status
from koord_scheduler.plugin.koordinator import (
    NamedReservation,
    ReservationRoom,
    ReservationScore,
    ReservationScoreExtensions,
    ReservationScorePlugin,
)
from koord_scheduler_plugins.device_share.allocated import held_amounts
from koord_scheduler_plugins.device_share.args import node_score
from koord_scheduler_plugins.device_share.tables import DeviceTables


@dataclass(frozen=True, kw_only=True, slots=True)
class ReservedShare:
    """The devices of a reservation. Amounts are by used_key."""

    left: Mapping[str, int]  # by its consumers
    types: frozenset[str]  # of devices that it reserves, also where nothing is left
    restricted: bool = False  # nothing of these types comes from the rest of the node
    taken_over: bool = False  # the devices are of running pods, and all of them must be taken


def reserved_devices(room: ReservationRoom) -> ReservedShare:
    """Return the devices of a reservation with what is left of them."""
    left: dict[str, int] = {}
    types: set[str] = set()
    for pod in room.pods:
        left.update(_amounts(pod))
    for pod in room.reserved:
        types.update(key.partition("/")[0] for key in _amounts(pod))
    return ReservedShare(
        left=left,
        types=frozenset(types),
        restricted=room.restricted,
        taken_over=room.taken_over,
    )


def allocate_reserved(
    table: DeviceTable, wanted: PodDevices, options: AllocateOptions, found: ReservedShare
) -> tuple[Allocation, str]:
    """Return the devices of a pod that has a reservation, and the way by which they were found.

    First all of them are looked for in the reservation alone. If that is not enough, those of the
    node count, too, unless the reservation is restricted; its own ones come first. Devices of pods
    that are taken over must all be among them.

    table: without what is left of the reservation.

    Raises:
        DevicesUnavailable: there are none.
    """
    preferred = frozenset((kind, minor) for kind, minor, _ in map(_split, found.left))
    if found.taken_over:
        options = replace(options, preferred=preferred, required=preferred)
        return allocate_with_way(table, wanted, options)
    if not found.types & wanted.requests.keys():
        return allocate_with_way(table, wanted, options)
    try:
        return allocate_with_way(_inside(table, wanted, found), wanted, options)
    except DevicesUnavailable:
        if found.restricted:
            raise
    return allocate_with_way(table, wanted, replace(options, preferred=preferred))


def reserved_score(
    scorer: DeviceScorer, table: DeviceTable, wanted: PodDevices, found: ReservedShare
) -> int:
    """Return the score of a node for a pod that has a reservation there, 0 to HIGHEST.

    Of one that is restricted only its own devices count, with what is left of them. 0: it has no
    devices of these types, or they are not enough.

    table: without what is left of the reservation.
    """
    if not found.types & wanted.requests.keys():
        return 0
    only: dict[str, set[int]] = {}
    if found.restricted:
        only = {kind: set() for kind in found.types}
        for kind, minor, _ in map(_split, found.left):
            only[kind].add(minor)
        table = _inside(table, wanted, found)
    try:
        each = {kind: instance_request(table, wanted, kind) for kind in wanted.requests}
    except DevicesUnavailable:
        return 0
    return node_score(scorer, table, each, only)


class ReservedDeviceScores(ReservationScorePlugin, ReservationScoreExtensions):
    """Ranks the reservations of a node by their devices; the best one has HIGHEST."""

    tables: DeviceTables
    _scorer: DeviceScorer

    @abstractmethod
    def wanted_devices(self, state: CycleState) -> PodDevices | None:
        """Return the devices that the pod of a cycle requests; None: none."""

    def scores_reservations(self, state: CycleState, pod: ClusterPod) -> bool:
        return self.wanted_devices(state) is not None

    def score_reservation(
        self, state: CycleState, pod: ClusterPod, reservation: NamedReservation, node_name: str
    ) -> int:
        wanted = self.wanted_devices(state)
        if wanted is None or not isinstance(reservation, ReservationRoom):
            return 0
        node = reservation.node
        table = self.tables.table_in(node.view, node.row, reservation.without())
        if table is None:
            return 0
        return reserved_score(self._scorer, table, wanted, reserved_devices(reservation))

    def normalize_reservation_score(
        self, state: CycleState, pod: ClusterPod, scores: list[ReservationScore]
    ) -> Status | None:
        highest = max((one.score for one in scores), default=0)
        for one in scores:
            one.score = one.score * HIGHEST // highest if highest else 0
        return None


def designated_table(
    table: DeviceTable, wanted: PodDevices, given: Mapping[str, Sequence[AllocatedDevice]]
) -> DeviceTable:
    """Return a node of whose devices only those are free that a pod comes with."""
    left: dict[str, int] = {}
    functions: list[tuple[str, int]] = []
    for kind, devices in given.items():
        for one in devices:
            for name, free in table.free(kind).get(one.minor, {}).items():
                text = one.resources.get(name)
                amount = free if text is None else Quantity.parse(text).integer
                left[used_key(kind, one.minor, name)] = amount
            known = table.devices(kind).get(one.minor)
            for group in () if known is None or not one.functions else known.groups:
                functions += [
                    (used_key(kind, one.minor, f"{FUNCTION}{address}"), 1)
                    for address in group.functions
                    if address not in one.functions
                ]
    share = ReservedShare(left=left, types=frozenset(given), restricted=True)
    return _inside(table, wanted, share, functions)


def _inside(
    table: DeviceTable,
    wanted: PodDevices,
    found: ReservedShare,
    functions: Sequence[tuple[str, int]] = (),
) -> DeviceTable:
    """A node of whose devices no more is free than is left of a reservation.

    functions: that are not free either, by used_key.
    """
    used = [
        (used_key(kind, minor, name), amount)
        for kind, devices in table.used.items()
        for minor, amounts in devices.items()
        for name, amount in amounts.items()
        if kind not in found.types
    ]
    for kind in found.types & wanted.requests.keys():
        for minor, total in table.total(kind).items():
            free = table.free(kind)[minor]
            for name, amount in total.items():
                key = used_key(kind, minor, name)
                there = min(free.get(name, 0), found.left.get(key, 0))
                if there < amount:
                    used.append((key, amount - there))
    used += [
        (used_key(kind, minor, f"{FUNCTION}{address}"), 1)
        for (kind, minor), addresses in table.functions.items()
        for address in addresses
    ]
    return DeviceTable(table.layout, table.node, [*used, *functions])


def pods_by_devices(
    table: DeviceTable, wanted: PodDevices, pods: Iterable[ClusterPod]
) -> Iterator[frozenset[str]]:
    """Yield the keys of the pods that have something of devices that lie together.

    Those are partitions and scopes of as many GPUs as are wanted, the smallest first; of other
    types, and of one GPU, each device.
    """
    holders: dict[tuple[str, int], set[str]] = {}
    for pod in pods:
        for kind, minor, _ in map(_split, _amounts(pod)):
            holders.setdefault((kind, minor), set()).add(pod.key)
    parts: list[tuple[str, Iterable[int]]] = []
    gpu = wanted.gpu
    if gpu is not None and gpu.count > 1:
        partitions, honor = partitions_of(table.layout, table.node)
        if honor or wanted.partition is not None:
            rows = (partitions or {}).get(gpu.count, ())
            parts += [(GPU, one.minors) for group in rows for one in group]
        else:
            parts += [(GPU, one) for one in _scopes(table.layout.scopes, gpu.count)]
    parts += [(kind, (minor,)) for kind, minor in sorted(holders) if kind in wanted.requests]
    for kind, minors in parts:
        found: set[str] = set()
        for minor in minors:
            found |= holders.get((kind, minor), set())
        if found:
            yield frozenset(found)


def _scopes(scope: Scope | None, count: int) -> list[tuple[int, ...]]:
    """The GPUs of each scope with so many, the smallest first."""
    if scope is None or len(scope.minors) < count:
        return []
    inside = [one for child in scope.children for one in _scopes(child, count)]
    return sorted([*inside, scope.minors], key=len)


def _split(key: str) -> tuple[str, int, str]:
    kind, minor, name = key.split("/", 2)
    return kind, int(minor), name


def _amounts(pod: ClusterPod) -> Mapping[str, int]:
    try:
        return held_amounts(pod)
    except InvalidObject:
        return {}  # the account says so, too
