"""The reservations that pods of one kind can have, kept from cycle to cycle."""

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koord.api.reservation import AFFINITY, EXACT_MATCH
from koord_scheduler.plugin import POD_COUNT, ClusterPod, View
from koord_scheduler.plugin.koordinator import FrozenAccount, HypotheticalCluster
from koord_scheduler.plugin.vector import Mask, Scores
from koord_scheduler_plugins.reservation.consumers import CONSUMERS, ReservationInfo
from koord_scheduler_plugins.reservation.fit import FitOptions
from koord_scheduler_plugins.reservation.matching import (
    Demands,
    Match,
    MatchOptions,
    NodeDiagnosis,
    Verdict,
    match,
)
from koord_scheduler_plugins.reservation.objects import AllocatePolicy, Reservation
from koord_scheduler_plugins.reservation.tracker import ReservationTracker

MAX_KINDS = 64  # of pods, whose matches are kept

Infos = tuple[ReservationInfo, ...]
_MANY = 64  # changes, from which on a mapping is copied


class ByNode(Mapping[str, Infos]):
    """Reservations by node, the oldest first. It never changes.

    Of a thousand reservations one changes with each pod that consumes it. Copying a dict of them
    takes a tenth of a millisecond, so what has changed lies above a dict that several share.
    """

    __slots__ = ("_below", "_changed", "_length")

    def __init__(
        self,
        below: Mapping[str, Infos] = MappingProxyType({}),
        changed: Mapping[str, Infos] = MappingProxyType({}),
    ) -> None:
        """changed: in the place of what is below; (): there is none any more."""
        self._below = below
        self._changed = changed
        added = sum([bool(infos) - (name in below) for name, infos in changed.items()])
        self._length = len(below) + added

    def with_changes(self, changed: Mapping[str, Infos]) -> "ByNode":
        """Return the mapping with other reservations on some nodes; (): without a node."""
        every = {**self._changed, **changed}
        if len(every) <= _MANY:
            return ByNode(self._below, every)
        return ByNode({name: infos for name, infos in {**self._below, **every}.items() if infos})

    def get(self, name: str, default: Any = None) -> Any:
        found = self._changed.get(name)
        if found is None:
            return self._below.get(name, default)
        return found or default

    def __getitem__(self, name: str) -> Infos:
        found = self._changed.get(name)
        if found is None:
            return self._below[name]
        if not found:
            raise KeyError(name)
        return found

    def __contains__(self, name: object) -> bool:
        found = self._changed.get(name)  # type: ignore[call-overload]
        return name in self._below if found is None else bool(found)

    def __iter__(self) -> Iterator[str]:
        changed = self._changed
        yield from (name for name in self._below if changed.get(name) != ())
        yield from (name for name, infos in changed.items() if infos and name not in self._below)

    def __len__(self) -> int:
        return self._length


_NO_NODES = ByNode()
_MATCHED = Match(Verdict.MATCHED)
_ROWS = 64  # slots for so many at first
_NO_LIMIT = 2**62  # of the number of consumers
FEW_NODES = 16  # that are sooner looked at one by one
_MAX_JUDGED = 2  # judgements of pods that ask for something else, for each kind
_MAX_NAMES = 15  # of requested resources that are judged as columns


@dataclass(frozen=True, slots=True)
class Judgement:
    """Nodes with one reservation that a pod can have, judged together. All have shape (nodes,).

    It is right until pods that ask for the same are judged again.
    """

    rows: NDArray[np.intp]
    fits: Mask  # through the reservation
    passes: Mask  # so, or beside it
    reasons: NDArray[np.int64]  # nodes that do not pass have equal numbers for equal reasons
    scores: Scores  # of the reservation; 0 where the pod does not fit through it
    others: Collection[str]  # nodes that have more than one

    def renew(self, places: NDArray[np.intp], some: "Judgement") -> None:
        """Take over another judgement of some of the nodes, which are at these places."""
        self.fits[places], self.passes[places] = some.fits, some.passes
        self.reasons[places], self.scores[places] = some.reasons, some.scores

    def refused(self) -> Iterator[NDArray[np.intp]]:
        """Yield the rows that the pod does not fit, together those with the same reasons."""
        rows, reasons = self.rows[~self.passes], self.reasons[~self.passes]
        for reason in np.unique(reasons):
            yield rows[reasons == reason]


@dataclass(slots=True)
class _Judged:
    """A judgement, and of what it is."""

    judgement: Judgement
    slots: NDArray[np.intp]  # in the order of the judgement
    resources: Mapping[str, int]
    generations: Any  # of the rows
    layout: int
    changes: int


class MatchColumns:
    """The reservations of one kind of pods as columns, for nodes with one of them.

    What a pod requests does not count, so all pods of a kind share it. A node costs something when
    its reservations have changed, and columns are asked for again. Pods with the same requests
    share a judgement: of nodes that have changed since, it is made anew.
    """

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}  # by node; slots of nodes without any are kept
        self._names: list[str] = []  # of the nodes, by slot
        self._stale: set[str] = set()
        self._others: set[str] = set()  # nodes that are not judged here
        self._columns: dict[str, int] = {}  # of resources
        self._traits: object = None
        self._rows = np.full(_ROWS, -1, np.intp)
        self._single = np.zeros(_ROWS, np.bool_)
        self._restricted = np.zeros(_ROWS, np.bool_)
        self._has_room_for_pod = np.zeros(_ROWS, np.bool_)
        # (kinds, resources, slots): whether it is reserved, allocatable, what is kept back inside,
        # used, left, held by the pod that stands for it
        self._amounts = np.zeros((6, 1, _ROWS), np.int64)
        self._judged: OrderedDict[Hashable, _Judged] = OrderedDict()  # by what pods ask for
        self._layout = 0  # grows when other nodes are judged here, or they are on other rows
        self._changes = 0  # grows with each change of a slot
        self._changed_at = np.zeros(_ROWS, np.int64)  # the number of the last change, by slot

    def changed(self, nodes: Iterable[str]) -> None:
        """The reservations of some nodes are others now."""
        self._stale.update(nodes)

    def _follow(self, by_node: ByNode, tracker: ReservationTracker, nodes: View) -> None:
        for name in self._stale:
            slot = self._slots.get(name)
            if slot is None:
                slot = self._slots[name] = len(self._names)
                self._names.append(name)
                if slot == len(self._rows):
                    self._widen()
                self._rows[slot] = self._row(nodes, name)
            infos = by_node.get(name, ())
            self._put(slot, infos, tracker)
            if infos and not self._single[slot]:
                self._others.add(name)
            else:
                self._others.discard(name)
        self._stale.clear()
        if self._traits is not nodes.traits:
            self._traits = nodes.traits
            self._layout += 1
            for slot, name in enumerate(self._names):
                self._rows[slot] = self._row(nodes, name)

    @staticmethod
    def _row(nodes: View, name: str) -> int:
        row = nodes.row(name)
        return -1 if row is None else row

    def _widen(self) -> None:
        def longer(column: NDArray[Any]) -> NDArray[Any]:
            return np.concatenate((column, np.zeros_like(column)), axis=-1)

        self._rows, self._single = longer(self._rows), longer(self._single)
        self._restricted, self._amounts = longer(self._restricted), longer(self._amounts)
        self._has_room_for_pod = longer(self._has_room_for_pod)
        self._changed_at = longer(self._changed_at)

    def _put(self, slot: int, infos: Infos, tracker: ReservationTracker) -> None:
        is_single = len(infos) == 1 and not infos[0].taken
        if is_single != self._single[slot]:
            self._single[slot] = is_single
            self._layout += 1
        self._changes += 1
        self._changed_at[slot] = self._changes
        self._amounts[:, :, slot] = 0
        if not is_single:
            return
        info = infos[0]
        limit = info.allocatable.get(POD_COUNT, _NO_LIMIT)
        self._restricted[slot] = info.policy is AllocatePolicy.RESTRICTED
        self._has_room_for_pod[slot] = info.consumers + 1 <= limit
        held = tracker.held(info.uid, info.used)
        for name in {*info.names, *held}:
            column = self._column(name)
            mine = name in info.names
            self._amounts[:, column, slot] = (
                mine,
                info.allocatable.get(name, 0) if mine else 0,
                info.inner.get(name, 0),
                info.used.get(name, 0),
                info.remaining.get(name, 0),
                held.get(name, 0),
            )

    def _column(self, name: str) -> int:
        found = self._columns.setdefault(name, len(self._columns))
        if found == self._amounts.shape[1]:
            self._amounts = np.concatenate((self._amounts, np.zeros_like(self._amounts)), axis=1)
        return found

    def judge(
        self,
        by_node: ByNode,
        tracker: ReservationTracker,
        demands: Demands,
        nodes: View,
        options: FitOptions,
    ) -> Judgement | None:
        """Judge all nodes that have one reservation; None: the pod requests too many resources.

        nodes: without the pods of these reservations, and no further what-if. The rules are those
        of fit.filter_node, for a pod that names no reservation and does not ignore them.
        """
        wanted = {name: value for name, value in demands.requests.items() if value > 0}
        if len(wanted) > _MAX_NAMES:
            return None
        self._follow(by_node, tracker, nodes)
        asked = tuple(wanted.items()), demands.required
        known = self._judged.pop(asked, None)
        slots = None if known is None else self._changed_since(known, nodes)
        if known is None or slots is None:
            (slots,) = (self._single & (self._rows >= 0)).nonzero()
            found = self._judge(slots, wanted, demands, nodes, options)
        else:
            found = known.judgement
            if len(slots):
                some = self._judge(slots, wanted, demands, nodes, options)
                found.renew(known.slots.searchsorted(slots), some)
            slots = known.slots
        self._judged[asked] = _Judged(
            found, slots, nodes.resources, nodes.generations, self._layout, self._changes
        )
        if len(self._judged) > _MAX_JUDGED:
            self._judged.popitem(last=False)
        return found

    def _changed_since(self, known: _Judged, nodes: View) -> NDArray[np.intp] | None:
        """Slots that are to be judged again; None: all are."""
        if known.layout != self._layout or known.resources is not nodes.resources:
            return None
        rows = nodes.generations.other_rows(known.generations)
        if len(rows) > FEW_NODES:
            return None
        changed = self._changed_at > known.changes
        for row in rows:
            slot = self._slots.get(nodes.node(row).name)
            if slot is not None and self._single[slot]:
                changed[slot] = True
        (slots,) = changed.nonzero()
        return slots[self._single[slots] & (self._rows[slots] >= 0)]

    def _judge(
        self,
        slots: NDArray[np.intp],
        wanted: Mapping[str, int],
        demands: Demands,
        nodes: View,
        options: FitOptions,
    ) -> Judgement:
        """Judge nodes by their slots."""
        rows = self._rows[slots]
        pods = nodes.resources[POD_COUNT]
        requested, allocatable = nodes.requested, nodes.allocatable
        full = requested[rows, pods] + 1 > allocatable[rows, pods]
        short, unreserved, shares = full.astype(np.int64), full.astype(np.int64), full & False
        lacking = (self._restricted[slots] & ~self._has_room_for_pod[slots]).astype(np.int64)
        bit = 0
        for name, value in wanted.items():
            if name in self._columns:
                has, whole, inner, used, left, held = self._amounts[:, self._columns[name], slots]
                shares |= has > 0
            else:
                has = whole = inner = used = left = held = np.zeros(len(slots), np.int64)
            if name == POD_COUNT or options.ignores(name):
                continue
            bit += 1
            free = -held
            if (column := nodes.resources.get(name)) is not None:
                free += allocatable[rows, column] - requested[rows, column]
            short |= (value > free + left).astype(np.int64) << bit
            unreserved |= (value > free).astype(np.int64) << bit
            over = self._restricted[slots] & (has > 0) & (value > whole - inner - used)
            lacking |= over.astype(np.int64) << bit
        if options.skip_node:
            short[:] = 0
        considered = shares | demands.required
        fits = considered & (short == 0) & (lacking == 0)
        passes = fits.copy()
        if not demands.required:
            passes |= (~considered | (short == 0)) & (unreserved == 0)
        reasons = (considered.astype(np.int64) << 48) | (lacking << 32) | (short << 16) | unreserved
        scores = self._scores(slots, demands, fits)
        return Judgement(rows, fits, passes, reasons, scores, self._others)

    def _scores(self, slots: NDArray[np.intp], demands: Demands, fits: Mask) -> Scores:
        """As score_reservation, of all."""
        total, count = np.zeros((2, len(slots)), np.int64)
        for name, column in self._columns.items():
            has, whole, _, used, *_ = self._amounts[:, column, slots]
            counts = (has > 0) & (whole > 0)
            wanted = demands.requests.get(name, 0) + used
            scores = 100 * wanted // np.maximum(whole, 1)  # amounts are at most 2**50 each
            total += np.where(counts & (wanted <= whole), scores, 0)
            count += counts
        return np.where(fits, total // np.maximum(count, 1), 0)


_numbers = count()


@dataclass(slots=True)
class Matches:
    """The reservations that match pods of one kind, at a moment that update brings forward."""

    demands: Demands
    number: int = field(default_factory=lambda: next(_numbers))
    by_node: ByNode = field(default_factory=ByNode)
    objects: int = 0  # grows when another object of a reservation counts
    ordered: int = 0  # how many of them have an order
    nodes: View | None = None  # without the pods that stand for them; None: none matches
    columns: MatchColumns = field(default_factory=MatchColumns)
    _version: int = -1
    _account: FrozenAccount | None = None  # by which infos are as they are
    _is_actual: bool = False  # whether the tracker notes what is another in a later account
    _infos: dict[str, ReservationInfo] = field(default_factory=dict)  # by uid
    _missing: set[str] = field(default_factory=set)  # uids whose node is not there
    _absent: set[str] = field(default_factory=set)  # uids that match, whose pod is not there
    _keys: dict[str, tuple[str, str]] = field(default_factory=dict)  # of removed pods, with node
    _traits: object = None  # of the nodes of the last time; None: it has not begun
    _cluster: HypotheticalCluster | None = None  # None: no pod is removed

    @property
    def key(self) -> Hashable:
        """The key of results for rows: their inputs beyond the pods of the row."""
        return self.number, self.objects

    def update(
        self, tracker: ReservationTracker, pod: ClusterPod, nodes: View, options: MatchOptions
    ) -> None:
        """Take over what has changed since the last time. Costs the changes."""
        changed = tracker.changed_since(self._version)
        before, self._account = self._account, nodes.account
        is_actual = nodes.account is tracker.account
        if changed is not None and before is not None and not (is_actual and self._is_actual):
            pools = nodes.account.other_pools(CONSUMERS, before)
            changed = list(dict.fromkeys((*changed, *(name.partition("@")[0] for name in pools))))
        self._is_actual = is_actual
        depends = self.demands.affinity is not None and not options.omit_node_labels
        moved = self._traits is not nodes.traits
        if self._traits is None or changed is None or (depends and moved):
            self._begin()
            changed = self._candidates(tracker, pod)
        else:
            if self._cluster is not None:
                self._cluster.rebase(nodes)
            if self._absent:
                changed = list(dict.fromkeys((*changed, *self._absent)))
            if moved:
                rows = nodes.traits.rows
                gone = (uid for uid, one in self._infos.items() if one.reservation.node not in rows)
                changed = list(dict.fromkeys((*changed, *self._missing, *gone)))
            if changed and not self.demands.ignored:
                others = [uid for uid in changed if uid not in self._infos]
                if others:
                    known = [uid for uid in changed if uid in self._infos]
                    changed = [*known, *tracker.index.among(others, pod)]
        self._version, self._traits = tracker.version, nodes.traits
        if changed:
            by_node: dict[str, Infos] = {}
            for uid in changed:
                self._look(tracker, uid, pod, nodes, options, by_node, moved=moved)
            self.by_node = self.by_node.with_changes(by_node)
            self.columns.changed(by_node)
        if self._cluster is not None and not self._keys:
            self._cluster = None
        self.nodes = None
        if self.by_node:
            self.nodes = nodes if self._cluster is None else self._cluster.view()

    def _begin(self) -> None:
        self._infos, self._keys, self.by_node, self.ordered = {}, {}, ByNode(), 0
        self.columns = MatchColumns()
        self._missing.clear()
        self._absent.clear()
        self._cluster = None
        self.objects += 1

    def _candidates(self, tracker: ReservationTracker, pod: ClusterPod) -> list[str]:
        if self.demands.ignored:
            return [one.uid for one in tracker.available()]
        return tracker.index.candidates(pod)

    def _look(
        self,
        tracker: ReservationTracker,
        uid: str,
        pod: ClusterPod,
        nodes: View,
        options: MatchOptions,
        by_node: dict[str, Infos],
        *,
        moved: bool,
    ) -> None:
        """Match one reservation again. by_node: takes what has changed; moved: nodes have, too."""
        before, found = self._infos.pop(uid, None), tracker.get(uid)
        after = None
        self._missing.discard(uid)
        if found is not None and found.available:
            info, row = tracker.info(found, nodes.account), nodes.row(found.node)
            if row is None:
                self._missing.add(uid)
            elif info.matchable:
                # What consumers hold of it changes with each of them, and is not what matches.
                matches = before is not None and before.reservation is found and not moved
                if not matches:
                    labels = nodes.node(row).labels
                    matches = match(pod, self.demands, info, labels, options).verdict.matches
                if matches:
                    after = self._infos[uid] = info
        if before is not None:
            name = before.reservation.node
            there = by_node.get(name) if name in by_node else self.by_node.get(name)
            by_node[name] = tuple(one for one in there or () if one.uid != uid)
            self.ordered -= before.reservation.order is not None
        if after is not None:
            name = after.reservation.node
            there = by_node.get(name) if name in by_node else self.by_node.get(name)
            both = (*(there or ()), after)
            by_node[name] = tuple(sorted(both, key=_age))
            self.ordered += after.reservation.order is not None
        if _is_other(before, after):
            self.objects += 1
        self._remove(tracker, uid, after, nodes)

    def _remove(
        self, tracker: ReservationTracker, uid: str, after: ReservationInfo | None, nodes: View
    ) -> None:
        """Take the pod of a matching reservation out of the view, and put others in."""
        key = None if after is None else tracker.pod_key(uid)
        wanted = None if key is None or after is None else (key, after.reservation.node)
        known = self._keys.get(uid)
        self._absent.discard(uid)
        if wanted == known:
            return
        if known is not None and self._cluster is not None:
            self._cluster.restore(*self._keys.pop(uid))
        if wanted is not None:
            self._cluster = self._cluster or HypotheticalCluster(nodes)
            try:
                self._cluster.remove(*wanted)
            except KeyError:
                self._absent.add(uid)  # as in a view that is without it already
                return
            self._keys[uid] = wanted


def _age(info: ReservationInfo) -> tuple[float, str]:
    return info.reservation.created or 0.0, info.uid


def _is_other(before: ReservationInfo | None, after: ReservationInfo | None) -> bool:
    """Whether a result may change though the pods of the node are the same."""
    if before is None or after is None:
        return False  # the pod that stands for it leaves the row, or comes back
    one, other = before.reservation, after.reservation
    if one is other:
        return False
    return (one.spec, one.labels, one.allocatable) != (other.spec, other.labels, other.allocatable)


class MatchCache:
    """Matches of the latest kinds of pods."""

    def __init__(self, tracker: ReservationTracker, options: MatchOptions) -> None:
        self._tracker = tracker
        self._options = options
        self._kinds: OrderedDict[Hashable, Matches] = OrderedDict()

    def of(self, pod: ClusterPod, demands: Demands, nodes: View) -> Matches:
        """Return the reservations that a pod can have, as of a view."""
        kind = _kind_of(pod, demands, self._tracker.index.owner_key(pod))
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = Matches(demands)
            if len(self._kinds) > MAX_KINDS:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(kind)
        found.update(self._tracker, pod, nodes, self._options)
        return found

    def diagnoses(
        self,
        pod: ClusterPod,
        demands: Demands,
        nodes: View,
        most: int | None = None,
        matched: ByNode = _NO_NODES,
    ) -> list[tuple[Reservation, NodeDiagnosis]]:
        """Return why each reservation of the pod's owners matches or not; of so many at most.

        matched: those that are known to match already; of them it is not asked again.
        """
        found = []
        for uid in self._tracker.index.candidates(pod)[:most]:
            reservation = self._tracker.get(uid)
            row = None if reservation is None else nodes.row(reservation.node)
            if reservation is None or row is None:
                continue
            info = self._tracker.info(reservation, nodes.account)
            if not info.matchable:
                continue
            one = NodeDiagnosis()
            if any(each.reservation is reservation for each in matched.get(reservation.node, ())):
                verdict = _MATCHED
            else:
                verdict = match(pod, demands, info, nodes.node(row).labels, self._options)
            one.add(verdict, named=bool(demands.name))
            found.append((reservation, one))
        return found

    def free(self, pod: ClusterPod, demands: Demands, nodes: View) -> list[ReservationInfo]:
        """Return reservations of the pod's owners that may be given away.

        Of a pod that must have one, those of all owners.
        """
        found: Iterable[Reservation] = self._tracker.available()
        if not demands.required:
            found = [one for one, _ in self.diagnoses(pod, demands, nodes)]
        infos = [self._tracker.info(one, nodes.account) for one in found]
        return [info for info in infos if info.matchable]


def _kind_of(pod: ClusterPod, demands: Demands, owner_key: Hashable) -> Hashable:
    """Pods of one kind match the same reservations, whatever else they request."""
    said = tuple([one for one in pod.annotations if one[0] in (AFFINITY, EXACT_MATCH)])
    return owner_key, said, demands.ignored, pod.spec.requests if demands.exact else ()


def merged(found: Iterable[NodeDiagnosis]) -> NodeDiagnosis:
    """Return the sum of several diagnoses of one node."""
    total = NodeDiagnosis()
    for one in found:
        total.owner_matched += one.owner_matched
        total.ignored += one.ignored
        total.name_matched += one.name_matched
        total.name_unmatched += one.name_unmatched
        total.unschedulable += one.unschedulable
        total.affinity_unmatched += one.affinity_unmatched
        total.not_exact += one.not_exact
        total.tainted.update(one.tainted)
    return total
