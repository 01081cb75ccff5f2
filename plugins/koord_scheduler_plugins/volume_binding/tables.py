"""Volumes of each class as columns, and volumes and claims as assumed until they are written."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from koord.plugin import OK, PartHealth, Stop
from koord_scheduler.plugin import (
    NODE,
    POD,
    Changes,
    ClusterNode,
    ClusterPod,
    ClusterState,
    NodeTerm,
    SharedPart,
    View,
    in_time,
    node_matches_terms,
)
from koord_scheduler.plugin.storage import (
    AVAILABLE,
    CLAIM,
    VOLUME,
    Claim,
    FrozenCapacities,
    FrozenVolumes,
    StorageCapacity,
    StorageObjects,
    Volume,
)
from koord_scheduler.plugin.vector import CodedColumn, Mask, matches_terms

Places = NDArray[np.intp]
"""For each node the place of a volume in a list; its length: none. Shape (nodes,)."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Volumes that claims could be bound to, the smallest first."""

    volumes: tuple[Volume, ...]
    claims: tuple[tuple[Claim, tuple[int, ...]], ...]  # with the places of theirs


def candidates_for(claims: Iterable[Claim], volumes: Mapping[str, Sequence[Volume]]) -> Candidates:
    """Return the volumes that could be bound to claims; the smallest claim is first.

    volumes are by storage class.
    """
    ordered = sorted(claims, key=lambda claim: claim.request or 0)
    every = sorted(
        (one for name in {claim.storage_class for claim in ordered} for one in volumes[name]),
        key=lambda volume: (volume.capacity, volume.name),
    )
    found = []
    for claim in in_time(ordered):
        places = tuple(at for at, volume in enumerate(every) if is_usable(volume, claim))
        kept = tuple(at for at in places if every[at].claim is not None)  # for this very claim
        found.append((claim, kept[:1] or places))
    return Candidates(tuple(every), tuple(found))


def match_on(found: Candidates, node: ClusterNode) -> list[int]:
    """The places of the volumes for each claim on one node; len(volumes): there is none."""
    taken: list[int] = []
    nothing = len(found.volumes)
    for _, places in in_time(found.claims):
        usable = (at for at in places if at not in taken and reaches(found.volumes[at], node))
        taken.append(next(usable, nothing))
    return taken


def reaches(volume: Volume, node: ClusterNode) -> bool:
    """Whether a node can reach a volume."""
    return volume.node_terms is None or node_matches_terms(volume.node_terms, node)


def is_usable(volume: Volume, claim: Claim) -> bool:
    """Whether a volume would do for a claim, wherever it can be reached."""
    kept = volume.claim is not None
    if kept and (volume.claim is None or not volume.claim.means(claim)):
        return False
    if volume.storage_class != claim.storage_class or volume.deleting:
        return False
    if volume.capacity < (claim.request or 0) or volume.is_block != claim.is_block:
        return False
    if volume.attributes_class != claim.attributes_class:
        return False
    if kept:
        return True
    if volume.phase != AVAILABLE or not set(claim.access_modes) <= set(volume.access_modes):
        return False
    return claim.selector is None or all(one.matches(volume.labels) for one in claim.selector)


Terms = tuple[NodeTerm, ...] | None
"""One must match a node; None: all nodes."""

Groups = NDArray[np.intp]


class NodeGroups:
    """Numbers for equal node terms. Most want one value of one label, and are found by that."""

    def __init__(self) -> None:
        self._groups: dict[Terms, int] = {}
        self._by_label: dict[str, dict[str, int]] = {}  # by label, by value
        self._others: dict[int, Terms] = {}
        self._codes: dict[str, tuple[CodedColumn[str], Groups, Groups]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def of(self, terms: Terms) -> int:
        """The number of these terms; it stays."""
        group = self._groups.get(terms)
        if group is None:
            group = self._groups[terms] = len(self._groups)
            label = _only_label(terms)
            if label is None:
                self._others[group] = terms
            else:
                self._by_label.setdefault(label[0], {})[label[1]] = group
        return group

    @property
    def others(self) -> Mapping[int, Terms]:
        """The groups that more than one value of one label decides, with their terms."""
        return self._others

    def by_label(self, nodes: View) -> Iterator[tuple[CodedColumn[str], Groups, Groups]]:
        """For each label that decides: its column, groups, and the code of the value of each.

        Only values that some node has.
        """
        for key, by_value in self._by_label.items():
            column, known = nodes.traits.label(key), self._codes.get(key)
            if known is None or known[0] is not column:
                known = column, np.zeros(0, np.intp), np.zeros(0, np.intp)
            if len(known[1]) != len(by_value):
                groups = np.fromiter(by_value.values(), np.intp, len(by_value))
                found = (column.index.get(value, -1) for value in by_value)
                known = column, groups, np.fromiter(found, np.intp, len(by_value))
            self._codes[key] = known
            there = known[2] >= 0
            yield column, known[1][there], known[2][there]


def _only_label(terms: Terms) -> tuple[str, str] | None:
    """The label and value that a node must have, if that is all that there is to it."""
    if terms is None or len(terms) != 1:
        return None
    term = terms[0]
    if term.names or len(term.labels) != 1:
        return None
    one = term.labels[0]
    return (one.key, one.values[0]) if one.operator == "In" and len(one.values) == 1 else None


_ROOM = 64  # slots that a table begins with


class CapacityTables:
    """Capacities by class, followed at the cost of what changes. Belongs to one thread."""

    def __init__(self) -> None:
        self._seen: FrozenCapacities | None = None
        self._tables: dict[str, CapacityTable] = {}

    def has_space(self, storage: StorageObjects, name: str, size: int, nodes: View) -> Mask:
        """Nodes from which so many bytes of a class can be reached in one piece."""
        self._follow(storage.capacities.freeze())
        table = self._tables.get(name)
        return np.zeros(len(nodes), np.bool_) if table is None else table.has_space(size, nodes)

    def _follow(self, now: FrozenCapacities) -> None:
        seen = self._seen
        if now is seen:
            return
        for key in now.other_keys(seen):
            old, new = (None if seen is None else seen.get(key)), now.get(key)
            if old is not None and (new is None or new.storage_class != old.storage_class):
                self._tables[old.storage_class].drop(key)
            if new is not None:
                self._tables.setdefault(new.storage_class, CapacityTable()).put(new)
        self._seen = now


class CapacityTable:
    """The capacities of one class."""

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}  # by key
        self._unused: list[int] = []
        self._count = 0
        self._limits = np.full(_ROOM, -1, np.int64)  # bytes; -1: nothing
        self._group = np.zeros(_ROOM, np.intp)
        self._groups = NodeGroups()

    def put(self, capacity: StorageCapacity) -> None:
        """Take over a capacity."""
        slot = self._slots.get(capacity.key)
        if slot is None:
            slot = self._slots[capacity.key] = self._new_slot()
        limit = capacity.limit
        self._limits[slot] = -1 if limit is None or capacity.nodes is None else limit
        self._group[slot] = self._groups.of((NodeTerm(capacity.nodes or ()),))

    def drop(self, key: str) -> None:
        """Forget a capacity."""
        slot = self._slots.pop(key)
        self._limits[slot] = -1
        self._unused.append(slot)

    def has_space(self, size: int, nodes: View) -> Mask:
        """Nodes from which so many bytes can be reached in one piece."""
        enough = np.zeros(len(self._groups), np.bool_)
        enough[self._group[: self._count][self._limits[: self._count] >= max(size, 0)]] = True
        reached = np.zeros(len(nodes), np.bool_)
        for column, groups, codes in self._groups.by_label(nodes):
            table = np.zeros(len(column.index) + 1, np.bool_)
            table[codes] = enough[groups]
            reached |= table[column.codes]
        for group, terms in self._groups.others.items():
            if enough[group] and terms is not None:
                reached |= matches_terms(terms, nodes)
        return reached

    def _new_slot(self) -> int:
        if self._unused:
            return self._unused.pop()
        if self._count == len(self._limits):
            self._limits = np.concatenate((self._limits, np.full(self._count, -1, np.int64)))
            self._group = np.concatenate((self._group, np.zeros(self._count, np.intp)))
        self._count += 1
        return self._count - 1


H = TypeVar("H")
Slots = NDArray[np.bool_]
"""Which volumes of a table; shape (slots,)."""


class VolumeTables:
    """The volumes of a view by class, followed from view to view. Belongs to one thread."""

    def __init__(self) -> None:
        self._seen: FrozenVolumes | None = None
        self._tables: dict[str, VolumeTable] = {}

    def follow(self, view: View) -> None:
        """Take over the volumes of a view, at the cost of what differs."""
        for _ in self.steps(view):
            pass

    def steps(self, view: View) -> Iterator[None]:
        """The same, in many small steps."""
        if view.volumes is self._seen:
            return
        seen = self._seen
        for name in view.volumes.other_keys(seen):
            old = None if seen is None else seen.get(name)
            new = view.volumes.get(name)
            if old is not None and (new is None or new.storage_class != old.storage_class):
                self._tables[old.storage_class].drop(old)
                old = None
            if new is not None:
                self.of(new.storage_class).put(old, new)
            yield
        self._seen = view.volumes

    def of(self, storage_class: str) -> "VolumeTable":
        """The table of a class."""
        found = self._tables.get(storage_class)
        if found is None:
            found = self._tables[storage_class] = VolumeTable()
        return found


class VolumeTable:
    """Volumes of one class: those that are free as columns, the others by their claims."""

    def __init__(self) -> None:
        self._volumes: list[Volume | None] = []  # by slot
        self._slots: dict[str, int] = {}  # by name
        self._unused: list[int] = []
        self._kept: dict[str, dict[str, Volume]] = {}  # those that have a claim, by its key
        self._capacity = np.zeros(_ROOM, np.int64)
        self._open = np.zeros(_ROOM, np.bool_)
        self._block = np.zeros(_ROOM, np.bool_)
        self._modes = np.zeros(_ROOM, np.intp)
        self._attributes = np.zeros(_ROOM, np.intp)
        self._group = np.zeros(_ROOM, np.intp)
        self._mode_sets: dict[tuple[str, ...], int] = {}
        self._attribute_names: dict[str, int] = {}
        self._groups = NodeGroups()
        self._order: NDArray[np.intp] | None = None

    @property
    def order(self) -> NDArray[np.intp]:
        """Slots by capacity and name; a place is a place in this."""
        if self._order is None:
            slots = [at for at, volume in enumerate(self._volumes) if volume is not None]
            slots.sort(key=lambda at: (self._capacity[at], getattr(self._volumes[at], "name", "")))
            self._order = np.array(slots, np.intp)
        return self._order

    @property
    def capacities(self) -> NDArray[np.int64]:
        """Bytes, by place."""
        sizes: NDArray[np.int64] = self._capacity[self.order]
        return sizes

    def volume(self, place: int) -> Volume:
        """The volume at a place."""
        found = self._volumes[int(self.order[place])]
        assert found is not None  # noqa: S101 - slots of the order are taken
        return found

    def put(self, old: Volume | None, volume: Volume) -> None:
        """Take over a volume; old is what it was before."""
        if old is not None and old.claim is not None:
            self._drop_kept(old)
        if volume.claim is not None:
            key = f"{volume.claim.namespace}/{volume.claim.name}"
            self._kept.setdefault(key, {})[volume.name] = volume
            self._drop_slot(volume.name)
            return
        slot = self._slots.get(volume.name)
        if slot is None:
            slot = self._slots[volume.name] = self._new_slot()
            self._order = None
        elif self._capacity[slot] != volume.capacity:
            self._order = None
        self._volumes[slot] = volume
        self._capacity[slot] = volume.capacity
        self._open[slot] = volume.phase == AVAILABLE and not volume.deleting
        self._block[slot] = volume.is_block
        self._modes[slot] = _number(self._mode_sets, volume.access_modes)
        self._attributes[slot] = _number(self._attribute_names, volume.attributes_class)
        self._group[slot] = self._groups.of(volume.node_terms)

    def drop(self, volume: Volume) -> None:
        """Forget a volume."""
        if volume.claim is not None:
            self._drop_kept(volume)
        self._drop_slot(volume.name)

    def usable(self, claim: Claim, assumed: Mapping[str, Volume]) -> tuple[Slots, Volume | None]:
        """The volumes that would do for a claim; or the one that is kept for it, alone.

        assumed: volumes, of any class, as they will be, by name.
        """
        count = len(self._volumes)
        found: Slots = self._open[:count] & (self._capacity[:count] >= (claim.request or 0))
        found &= self._block[:count] == claim.is_block
        wanted = set(claim.access_modes)
        modes = np.array([wanted <= set(each) for each in self._mode_sets] or [False])
        found &= modes[self._modes[:count]]
        found &= self._attributes[:count] == self._attribute_names.get(claim.attributes_class, -1)
        kept = dict(self._kept.get(claim.key, {}))
        for name, volume in assumed.items():
            kept.pop(name, None)
            slot = self._slots.get(name)
            if slot is not None:
                found[slot] = False
            kept[name] = volume
        mine = [one for one in kept.values() if one.claim is not None and is_usable(one, claim)]
        if mine:
            return np.zeros(count, np.bool_), min(mine, key=lambda one: (one.capacity, one.name))
        if claim.selector is not None:
            for slot in np.flatnonzero(found).tolist():
                volume_there = self._volumes[slot]
                labels = {} if volume_there is None else volume_there.labels
                found[slot] = all(one.matches(labels) for one in claim.selector)
        return found, None

    def smallest(
        self, usable: Slots, nodes: View, taken: Sequence[Places], reach: dict[Any, Mask]
    ) -> Places:
        """For each node the first of these that it reaches and that is not taken there.

        taken: places, in the same table, for the claims before; reach: masks of node terms.
        """
        order, nothing = self.order, len(self.order)
        best = np.full(len(nodes), nothing, np.intp)
        ranked = np.flatnonzero(usable[order])
        for _ in range(len(taken) + 1):  # of each group so many may be taken on a node
            if not len(ranked):
                break
            groups = self._group[order[ranked]]
            first = np.full(len(self._groups), nothing, np.intp)
            first[groups[::-1]] = ranked[::-1]
            self._spread(first, nodes, taken, reach, best)
            ranked = ranked[first[groups] != ranked]
        return best

    def _spread(
        self,
        first: NDArray[np.intp],
        nodes: View,
        taken: Sequence[Places],
        reach: dict[Any, Mask],
        best: Places,
    ) -> None:
        """Lower best to the place that each group offers, where nodes reach it."""
        nothing = len(self.order)
        for column, groups, codes in self._groups.by_label(nodes):
            table = np.full(len(column.index) + 1, nothing, np.intp)
            table[codes] = first[groups]
            offered = table[column.codes]
            for each in taken:
                offered[offered == each] = nothing
            np.minimum(best, offered, out=best)
        for group, terms in self._groups.others.items():
            at = first[group]
            if at == nothing:
                continue
            free = best > at
            if terms is not None:
                if terms not in reach:
                    reach[terms] = matches_terms(terms, nodes)
                free &= reach[terms]
            for each in taken:
                free &= each != at
            best[free] = at

    def _new_slot(self) -> int:
        if self._unused:
            return self._unused.pop()
        self._volumes.append(None)
        if len(self._volumes) > len(self._capacity):
            for name in ("_capacity", "_open", "_block", "_modes", "_attributes", "_group"):
                column: NDArray[Any] = getattr(self, name)
                setattr(self, name, np.concatenate((column, np.zeros_like(column))))
        return len(self._volumes) - 1

    def _drop_slot(self, name: str) -> None:
        slot = self._slots.pop(name, None)
        if slot is not None:
            self._volumes[slot] = None
            self._open[slot] = False
            self._unused.append(slot)
            self._order = None

    def _drop_kept(self, volume: Volume) -> None:
        assert volume.claim is not None  # noqa: S101 - asked before
        key = f"{volume.claim.namespace}/{volume.claim.name}"
        found = self._kept.get(key, {})
        found.pop(volume.name, None)
        if not found:
            self._kept.pop(key, None)


def _number(numbers: dict[H, int], value: H) -> int:
    return numbers.setdefault(value, len(numbers))


_VOLUMES_PER_TURN = 100  # of the event loop

T = TypeVar("T", Claim, Volume)


@dataclass(slots=True)
class _Assumed(Generic[T]):
    item: T
    pod: str  # uid of the pod that it is assumed for
    seen: str  # the version of the API server's object that it was made from
    stored: str = ""  # the version that the API server has made of it; "": it has not got it yet

    def holds(self, live: T) -> bool:
        """Whether what is known of the API server is not newer than this."""
        if live.uid != self.item.uid:
            return False
        version = live.resource_version
        return version == self.seen or (bool(self.stored) and is_older(version, self.stored))


class AssumedVolumes(SharedPart):
    """Assumed volumes and claims, and futures that wait for changes. Belongs to the event loop.

    An assumption ends when its pod's binding is given up, or when the API server's object is newer.
    """

    def __init__(self, cluster: ClusterState, changes: Changes) -> None:
        self.tables = VolumeTables()
        self.capacities = CapacityTables()
        self._cluster = cluster
        self._volumes: dict[str, _Assumed[Volume]] = {}
        self._claims: dict[str, _Assumed[Claim]] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}  # by what has to change
        changes.subscribe(VOLUME, self._volume_changed)
        changes.subscribe(CLAIM, self._claim_changed)
        changes.subscribe(POD, self._pod_changed)
        changes.subscribe(NODE, self._node_changed)

    async def run(self, stop: Stop) -> None:
        """There is nothing to do but to know."""
        await stop.wait()

    async def wait_ready(self) -> None:
        """It is ready when the tables have all volumes of the cluster, which takes a while."""
        for number, _ in enumerate(self.tables.steps(self._cluster.view()), 1):
            if number % _VOLUMES_PER_TURN == 0:
                await asyncio.sleep(0)

    def health(self) -> PartHealth:
        return OK

    def volume(self, live: Volume) -> Volume:
        """A volume of the API server as it is assumed to be."""
        found = self._volumes.get(live.name)
        return live if found is None else _current(self._volumes, live.name, found, live)

    def volumes_of(self, nodes: View) -> dict[str, Volume]:
        """The volumes of a view that are assumed to be others, by name."""
        lives = [nodes.volume(name) for name in self._volumes]
        found = [self.volume(live) for live in lives if live is not None]
        return {one.name: one for one in found if one.name in self._volumes}

    def claim(self, live: Claim) -> Claim:
        """A claim of the API server as it is assumed to be."""
        found = self._claims.get(live.key)
        return live if found is None else _current(self._claims, live.key, found, live)

    def assume_volume(self, pod: str, volume: Volume) -> None:
        """A volume was given to a claim, for the pod with this uid."""
        self._volumes[volume.name] = _Assumed(volume, pod, volume.resource_version)

    def assume_claim(self, pod: str, claim: Claim) -> None:
        """A node was chosen for a claim, for the pod with this uid."""
        self._claims[claim.key] = _Assumed(claim, pod, claim.resource_version)

    def stored_volume(self, name: str, version: str) -> None:
        """The API server has taken over what was assumed."""
        if name in self._volumes:
            self._volumes[name].stored = version

    def stored_claim(self, key: str, version: str) -> None:
        """The API server has taken over what was assumed."""
        if key in self._claims:
            self._claims[key].stored = version

    def revert(self, pod: str, volumes: Iterable[str], claims: Iterable[str]) -> None:
        """Forget what was assumed for a pod; others that wait for it learn of that."""
        for name in volumes:
            if name in self._volumes and self._volumes[name].pod == pod:
                del self._volumes[name]
                self._wake(f"volume {name}")
        for key in claims:
            if key in self._claims and self._claims[key].pod == pod:
                del self._claims[key]
                self._wake(f"claim {key}")

    def watch(self, timer: "asyncio.Future[None]", names: Iterable[str]) -> None:
        """Complete a future with the next change of one of these."""
        for name in names:
            self._waiting.setdefault(name, set()).add(timer)

    def unwatch(self, timer: "asyncio.Future[None]", names: Iterable[str]) -> None:
        """The end of watch."""
        for name in names:
            waiting = self._waiting.get(name, set())
            waiting.discard(timer)
            if not waiting:
                self._waiting.pop(name, None)

    def _wake(self, name: str) -> None:
        for timer in self._waiting.get(name, ()):
            if not timer.done():
                timer.set_result(None)

    def _volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        changed = new or old
        if changed is not None:
            if new is None:
                self._volumes.pop(changed.name, None)
            self._wake(f"volume {changed.name}")

    def _claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        changed = new or old
        if changed is not None:
            if new is None:
                self._claims.pop(changed.key, None)
            self._wake(f"claim {changed.key}")

    def _pod_changed(self, old: ClusterPod | None, new: ClusterPod | None) -> None:
        if old is not None and new is None and self._waiting:
            self._wake(f"pod {old.key}")

    def _node_changed(self, old: ClusterNode | None, new: ClusterNode | None) -> None:
        if old is not None and self._waiting:
            self._wake(f"node {old.name}")


def is_older(version: str, than: str) -> bool:
    """Whether a resourceVersion is of an earlier change; those that are no numbers are none.

    Source: Kubernetes 1.35, resource versions of one resource can be compared.
    """
    if not all(one.isascii() and one.isdecimal() for one in (version, than)):
        return False
    return (len(version), version) < (len(than), than)


def _current(table: dict[str, _Assumed[T]], key: str, found: _Assumed[T], live: T) -> T:
    if found.holds(live):
        return found.item
    del table[key]
    return live
