"""Reservations as they are now, by owner, and the pods that stand for them in the scheduler."""

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace as replace_fields
from typing import Any

from msgspec.structs import replace

from koord.api.reservation import API_VERSION, KIND, RESERVE_POD_NAME
from koord.plugin import OK, InvalidObject, PartHealth, Stop, get_logger
from koord.plugin.kube import Event, EventType, KubeError, ObjectRef
from koord_scheduler.plugin import POD, POD_COUNT, ClusterPod, Services
from koord_scheduler.plugin.koordinator import AccountKind, FrozenAccount, Pool, SchedulerControl
from koord_scheduler_plugins.reservation import status
from koord_scheduler_plugins.reservation.amounts import Amounts
from koord_scheduler_plugins.reservation.consumers import (
    CONSUMERS,
    ReservationInfo,
    is_consumer,
    pool_name,
    reservation_info,
)
from koord_scheduler_plugins.reservation.objects import (
    RESERVATION_LABELS,
    Reservation,
    is_operating,
    last_good,
    operating_reservation,
    read_reservation,
)
from koord_scheduler_plugins.reservation.owners import Owner
from koord_scheduler_plugins.reservation.reserve_pod import HIGHEST_PRIORITY, reserve_pod
from koord_scheduler_plugins.reservation.status import RESERVATIONS

_Place = tuple[str, str, str]
_EVERYWHERE: _Place = ("", "", "")  # of owners that say nothing that is indexed
_MAX_VALUES = 8  # of a label; owners with more are found by its key


class ReservationIndex:
    """Reservations by owner. Belongs to one thread."""

    def __init__(self) -> None:
        self._uids: dict[_Place, dict[str, None]] = {}
        self._places: dict[str, tuple[_Place, ...]] = {}
        self._owners: dict[str, tuple[Owner, ...]] = {}
        self._label_keys: Counter[str] = Counter()  # that owners are told apart by
        self._controllers = 0  # owners that are told apart by controller

    def put(self, reservation: Reservation) -> None:
        """Add a reservation, in the place of the one with its uid."""
        self.remove(reservation.uid)
        owners = () if reservation.spec is None else reservation.spec.owners
        places = tuple(dict.fromkeys(place for one in owners for place in self._places_of(one)))
        for place in places:
            self._uids.setdefault(place, {})[reservation.uid] = None
        self._places[reservation.uid] = places
        self._owners[reservation.uid] = owners
        self._count(owners, 1)

    def _count(self, owners: tuple[Owner, ...], times: int) -> None:
        """Count by what owners are told apart, times 1 or -1."""
        for one in owners:
            self._controllers += times * (one.controller is not None)
            for requirement in one.requirements:
                self._label_keys[requirement.key] += times
                if not self._label_keys[requirement.key]:
                    del self._label_keys[requirement.key]

    def remove(self, uid: str) -> None:
        self._count(self._owners.pop(uid, ()), -1)
        for place in self._places.pop(uid, ()):
            uids = self._uids[place]
            del uids[uid]
            if not uids:
                del self._uids[place]

    def candidates(self, pod: ClusterPod) -> list[str]:
        """uids of reservations whose owners may match a pod, each once; others do not match."""
        found: dict[str, None] = {}
        if self._uids:
            for place in _places_of_pod(pod):
                found.update(self._uids.get(place, ()))
        return list(found)

    def owner_key(self, pod: ClusterPod) -> Hashable:
        """Return a key that pods have in common which the same owners match.

        Of a StatefulSet's pods, each of which has a label of its own, that label is not in it.
        """
        by_name = ("pod", pod.uid, "") in self._uids or ("name", pod.name, "") in self._uids
        keys = self._label_keys
        return (
            pod.namespace,
            tuple([one for one in pod.labels.items() if one[0] in keys]),
            pod.owners if self._controllers else (),
            (pod.name, pod.uid) if by_name else (),
        )

    def among(self, uids: Iterable[str], pod: ClusterPod) -> list[str]:
        """Those of some uids that are candidates of a pod; it costs their number."""
        mine = set(_places_of_pod(pod))
        return [uid for uid in uids if any(place in mine for place in self._places.get(uid, ()))]

    def _places_of(self, owner: Owner) -> tuple[_Place, ...]:
        """Where an owner is found: its pods are in at least one of these places."""
        pod, controller = owner.pod, owner.controller
        if pod is not None and pod.uid:
            return (("pod", pod.uid, ""),)
        if pod is not None and pod.name:
            return (("name", pod.name, ""),)
        if controller is not None and controller.uid:
            return (("controller", controller.uid, ""),)
        if controller is not None and controller.name:
            return (("controller name", controller.name, ""),)
        choices = [
            tuple(("label", one.key, value) for value in dict.fromkeys(one.values))
            if len(one.values) <= _MAX_VALUES
            else (("key", one.key, ""),)
            for one in owner.requirements
            if one.operator == "In"
        ]
        choices += [
            (("key", one.key, ""),) for one in owner.requirements if one.operator == "Exists"
        ]
        return min(choices, key=self._load, default=(_EVERYWHERE,))

    def _load(self, places: tuple[_Place, ...]) -> int:
        """How many reservations a pod there is a candidate for already."""
        return sum(len(self._uids.get(place, ())) for place in places)


def _places_of_pod(pod: ClusterPod) -> Iterator[_Place]:
    yield "pod", pod.uid, ""
    yield "name", pod.name, ""
    for one in pod.owners:
        yield "controller", one.uid, ""
        yield "controller name", one.name, ""
    for key, value in pod.labels.items():
        yield "label", key, value
        yield "key", key, ""
    yield _EVERYWHERE


WITHOUT = "no room is reserved"
_SAID_FOR = 60.0  # seconds in which the same failure is not written again
MAX_REMEMBERED = 4096  # changes; whoever has missed more looks at all reservations

log = get_logger("koord_scheduler.reservation")


class ReservationTracker:
    """Follows Reservations for all profiles of a process. Belongs to the event loop.

    What is used of a reservation is in the account of a view, and nowhere else; see
    docs/decisions/account.md.
    """

    def __init__(self, services: Services) -> None:
        self.index = ReservationIndex()
        """Available reservations, by owner."""
        self._services = services
        self._control: SchedulerControl | None = None  # None: there is no scheduler yet
        self._by_name: dict[str, Reservation] = {}
        self._by_uid: dict[str, Reservation] = {}
        self._on_node: dict[str, dict[str, None]] = {}  # uids of available ones by node
        self._ordered: set[str] = set()  # uids of available ones with an order
        self._pods: dict[str, ClusterPod] = {}  # reserve pods by uid, as if nobody consumed them
        self._operating: dict[str, ClusterPod] = {}  # pods that act as reservations, by uid
        self._said: dict[str, str] = {}  # problems that were reported, by uid
        self._infos: dict[str, tuple[Pool, ReservationInfo]] = {}  # the last ones, by uid
        self._changes: list[str] = []  # uids of reservations that have changed
        self._changes_before = 0
        self._put_since: dict[str, None] = {}  # uids whose pods were put since the last refresh
        self._reserved: dict[str, str] = {}  # nodes by uid, of those that are being bound
        self._followers: list[Callable[[str], None]] = []
        self._was_in_use = False  # when those below were called last
        self._use_followers: list[Callable[[], None]] = []
        self._failures: dict[str, tuple[str, str | None]] = {}  # by uid, to be written
        self._failed = asyncio.Event()
        self.account = services.cluster.account
        """The account by which reserve pods are as they are: any other one is of a what-if."""
        services.cluster.keep_account(CONSUMERS)
        services.changes.subscribe(POD, self._pod_changed, labels=RESERVATION_LABELS)
        self._followed = services.custom_resources.follow(
            RESERVATIONS, read_reservation, self._changed, without=WITHOUT
        )

    @property
    def reservations(self) -> Mapping[str, Reservation]:
        """All Reservations by name; live, and only to be read."""
        return self._by_name

    def get(self, uid: str) -> Reservation | None:
        """A reservation, or a pod that acts as one; None: not known."""
        return self._by_uid.get(uid)

    def of_reserve_pod(self, pod: ClusterPod) -> Reservation | None:
        """The Reservation that a pod stands for; None: it stands for none."""
        return self._by_uid.get(pod.uid) if pod.uid in self._pods else None

    def on_node(self, node: str) -> list[Reservation]:
        """Available reservations on a node."""
        return [self._by_uid[uid] for uid in self._on_node.get(node, ())]

    def available(self) -> Iterator[Reservation]:
        """All available reservations, on whichever nodes."""
        for uids in self._on_node.values():
            for uid in uids:
                yield self._by_uid[uid]

    @property
    def nodes(self) -> Iterable[str]:
        """Nodes that have available reservations."""
        return self._on_node.keys()

    @property
    def has_order(self) -> bool:
        """Whether any available reservation has an order."""
        return bool(self._ordered)

    def info(self, reservation: Reservation, account: FrozenAccount) -> ReservationInfo:
        """A reservation with what consumers hold of it, as an account says."""
        pool = account.pool(CONSUMERS, pool_name(reservation.uid, reservation.node))
        before, known = self._infos.get(reservation.uid, (None, None))
        if known is not None and known.reservation is reservation:
            if before is pool:
                return known
            info = known.with_used(pool.allocated)
        else:
            info = reservation_info(reservation, pool.allocated)
        if reservation.uid in self._by_uid:
            self._infos[reservation.uid] = pool, info
        return info

    def sharing(self, node: str) -> Iterator[Reservation]:
        """Reservations that are available on a node, or are being bound to it."""
        yield from self.on_node(node)
        for uid, name in self._reserved.items():
            if name == node and not self._by_uid[uid].available:
                yield self._by_uid[uid]

    @property
    def shared_nodes(self) -> Iterable[str]:
        """Nodes on which some reservation is available or is being bound."""
        return dict.fromkeys((*self._on_node, *self._reserved.values()))

    def reserve(self, uid: str, node: str) -> None:
        """Note that a reservation is being bound to a node."""
        self._reserved[uid] = node

    def unreserve(self, uid: str) -> None:
        self._reserved.pop(uid, None)

    def held(self, uid: str, used: Amounts) -> Amounts:
        """Return the amounts of a reservation's pod, where consumers hold so much of it."""
        pod = self._pods.get(uid) or self._operating.get(uid)
        if pod is None:
            return {}
        return {
            name: max(0, amount - used.get(name, 0))
            for name, amount in pod.spec.requests
            if name != POD_COUNT
        }

    def pod_in(self, found: Reservation, account: FrozenAccount) -> ClusterPod | None:
        """The pod that takes what consumers have left, as an account says; None: there is none."""
        pod = self._pods.get(found.uid)
        if pod is not None:
            return self._left(pod, found, account)
        operating = self._operating.get(found.uid)
        return None if operating is None else self._operating_left(operating, found, account)

    def whole_pod(self, uid: str) -> ClusterPod | None:
        """The pod of a Reservation as if nobody consumed it; None: there is none."""
        return self._pods.get(uid)

    def _left(self, pod: ClusterPod, found: Reservation, account: FrozenAccount) -> ClusterPod:
        """The pod of a reservation with what consumers have left, as an account says."""
        taken = account.pool(CONSUMERS, pool_name(found.uid, found.node)).allocated
        if not taken:
            return pod
        return reduced(pod, self.info(found, account).used, taken, account.kinds)

    def _operating_left(
        self, pod: ClusterPod, found: Reservation, account: FrozenAccount
    ) -> ClusterPod:
        """A pod in operating mode with what consumers have left. Its devices and CPUs are its own.

        They are no owner's, so that nobody can take them out of its annotations. One that consumes
        a reservation itself takes all: two that name each other would else have their room for
        nothing, and each would grow whenever the other one shrinks.
        """
        if is_consumer(pod):
            return pod
        used = self.info(found, account).used
        return reduced(pod, used, {}, ()) if used else pod

    def pod_key(self, uid: str) -> str | None:
        """namespace/name of the pod that takes a reservation's room; None: there is none."""
        pod = self._pods.get(uid) or self._operating.get(uid)
        return None if pod is None else pod.key

    # Changes, for those who keep what they have found about reservations.

    @property
    def version(self) -> int:
        """The number of changes up to now."""
        return self._changes_before + len(self._changes)

    def changed_since(self, version: int) -> list[str] | None:
        """uids of reservations that have changed since, each once; None: too many to be known."""
        if version < self._changes_before:
            return None
        return list(dict.fromkeys(self._changes[version - self._changes_before :]))

    def follow(self, on_change: Callable[[str], None]) -> None:
        """Call a function with the uid of each reservation that has changed."""
        self._followers.append(on_change)

    @property
    def in_use(self) -> bool:
        """Whether any reservation is available, or waits for a node."""
        return bool(self._pods or self._on_node)

    def follow_use(self, on_change: Callable[[], None]) -> None:
        """Call a function when in_use has changed."""
        self._use_followers.append(on_change)

    def _note(self, uid: str) -> None:
        if self.in_use is not self._was_in_use:
            self._was_in_use = not self._was_in_use
            for follower in self._use_followers:
                follower()
        for each in self._followers:
            each(uid)
        self._changes.append(uid)
        if len(self._changes) > 2 * MAX_REMEMBERED:
            del self._changes[:MAX_REMEMBERED]
            self._changes_before += MAX_REMEMBERED

    def _changed(self, old: Reservation | None, new: Reservation | None) -> None:
        gone = old or new
        known = None if gone is None else self._by_name.get(gone.name)
        if known is not None and (new is None or new.uid != known.uid):
            self._by_name.pop(known.name)
            self._forget(known.uid)
            self._said.pop(known.uid, None)
        if new is not None:
            found = last_good(known, new)
            self._by_name[new.name] = found
            self._take(found)

    def _pod_changed(self, old: ClusterPod | None, new: ClusterPod | None) -> None:
        """Follow pods that act as reservations."""
        if new is not None and is_operating(new) and not new.finished:
            if new.uid not in self._pods:  # a reserve pod stands for its own Reservation
                found = operating_reservation(new)
                self._operating[new.uid] = new
                self._place(found)
                control = self._scheduler()
                if control is not None and new.node:  # what consumers have of it is theirs already
                    self._put_since[new.uid] = None
                    account = self._services.cluster.account
                    control.put_smaller_pod(self._operating_left(new, found, account))
        elif old is not None and old.uid in self._operating:
            del self._operating[old.uid]
            self._forget(old.uid)

    def _take(self, found: Reservation) -> None:
        """Bring the pod of a Reservation in line with the object."""
        problem = "; ".join(found.problems)
        if found.spec is None or problem:
            self._report(found, problem)
        waits = found.unassigned and found.spec is not None and not found.deleting
        known = self._pods.get(found.uid)
        if not (waits or found.available):
            self._forget(found.uid)
            self._by_uid[found.uid] = found
            return
        try:
            pod = self._read(found)
        except InvalidObject as err:
            self._report(found, str(err))
            if not found.available:
                return
            pod = self._read(replace_fields(found, raw={**found.raw, "spec": {}}))  # it has room
        if known is not None and known.key != pod.key:
            self._forget(found.uid)
        self._pods[found.uid] = pod
        self._place(found)
        self._put(found, pod)

    def _place(self, found: Reservation) -> None:
        """Take over an object; whoever looks for available ones finds it, or not."""
        known = self._by_uid.get(found.uid)
        if known is not None:
            self._displace(known)
        self._by_uid[found.uid] = found
        if found.available:
            self._reserved.pop(found.uid, None)
            self._on_node.setdefault(found.node, {})[found.uid] = None
            if found.order is not None:
                self._ordered.add(found.uid)
            self.index.put(found)
        self._note(found.uid)

    def _displace(self, known: Reservation) -> None:
        self.index.remove(known.uid)
        self._ordered.discard(known.uid)
        uids = self._on_node.get(known.node, {})
        uids.pop(known.uid, None)
        if not uids:
            self._on_node.pop(known.node, None)

    def _forget(self, uid: str) -> None:
        known, pod = self._by_uid.pop(uid, None), self._pods.pop(uid, None)
        self._reserved.pop(uid, None)
        self._failures.pop(uid, None)
        self._infos.pop(uid, None)
        if known is not None:
            self._displace(known)
            self._note(uid)
        if pod is not None and self._control is not None:
            self._control.remove_own_pod(pod.key)

    def _read(self, found: Reservation) -> ClusterPod:
        """The reserve pod, as if nobody consumed it. Raises InvalidObject."""
        pod = self._services.pod_decoder.read(reserve_pod(found))
        pod = self._checked(pod, found)
        pod = replace(pod, name=f"{RESERVE_POD_NAME}{found.name}")  # no tenant can name a pod so
        if found.available:
            pod = replace(pod, priority=HIGHEST_PRIORITY)  # no preemption can make it leave
        return pod

    def _checked(self, pod: ClusterPod, found: Reservation) -> ClusterPod:
        """A reserve pod without annotations by which it would hold more than it requests.

        It may hold what its template requests, too: of a Reservation that was resized, allocatable
        names all amounts of its devices, together, as no pod can request them.
        """
        for kind in self._services.cluster.account.kinds:
            if not kind.annotation or all(key != kind.annotation for key, _ in pod.annotations):
                continue
            error = _error(kind, pod)
            if error and found.allocatable is not None:
                made_of_template = reserve_pod(replace_fields(found, allocatable=None))
                if not _error(kind, self._services.pod_decoder.read(made_of_template)):
                    continue
            if error:
                self._report(found, f"annotation {kind.annotation}: {error}")
                left = tuple(one for one in pod.annotations if one[0] != kind.annotation)
                pod = replace(pod, annotations=left)
        return pod

    def _put(self, found: Reservation, pod: ClusterPod) -> None:
        control = self._scheduler()
        if control is None:
            return
        if found.available:
            self._put_since[found.uid] = None
            pod = self._left(pod, found, self._services.cluster.account)
        try:
            control.put_own_pod(pod)
        except ValueError as err:
            self._report(found, str(err))

    def _scheduler(self) -> SchedulerControl | None:
        """The scheduler's cache; None: there is none, as in a plan from files."""
        if self._control is None:
            try:
                self._control = self._services.control.get()
            except LookupError:
                return None
            self._control.refresh_own_pods(self._refresh)
        return self._control

    def _refresh(self, before: FrozenAccount, now: FrozenAccount) -> Iterable[ClusterPod]:
        """Reserve pods of reservations whose consumers have changed.

        Pods that were put since then are as an account wanted them that no view has had: what has
        changed until now shows in no difference to the one before.
        """
        self.account = now
        names = dict.fromkeys(now.other_pools(CONSUMERS, before))
        for uid in self._put_since:
            if (one := self._by_uid.get(uid)) is not None:
                names[pool_name(uid, one.node)] = None
        self._put_since = {}
        for name in names:
            found = self._by_uid.get(name.partition("@")[0])
            if found is None or pool_name(found.uid, found.node) != name:
                continue
            if not found.available and found.uid not in self._operating:
                continue
            self._note(found.uid)
            pod = self.pod_in(found, now)
            if pod is not None:
                yield pod

    # A part that runs while this process leads.

    async def restore(self) -> None:
        """Put the pods of all reservations, when the scheduler is there."""
        for found in tuple(self._by_name.values()):
            self._take(found)

    def attempt_failed(self, found: Reservation, message: str, nominated: str | None) -> None:
        """Write on a Reservation why no node was found for it; never waits.

        nominated: as status.unschedulable has it.
        """
        self.emit(found, EventType.WARNING, "FailedScheduling", message)
        if nominated is None:
            nominated = self._failures.get(found.uid, ("", None))[1]
        self._failures[found.uid] = message, nominated
        self._failed.set()

    async def run(self, stop: Stop) -> None:
        """Write why attempts have failed, one after the other, until stop."""
        while not stop.is_set():
            if not self._failures:
                self._failed.clear()
                await stop.bound(self._failed.wait())
                continue
            uid = next(iter(self._failures))
            await self._write_failure(uid, *self._failures.pop(uid))

    async def wait_ready(self) -> None:
        """A cycle needs nothing of this."""

    def health(self) -> PartHealth:
        return OK

    async def _write_failure(self, uid: str, message: str, nominated: str | None) -> None:
        """A failure that cannot be written is logged: the next attempt has another one."""
        client, clock, found = self._services.client, self._services.clock, self._by_uid.get(uid)

        def wanted(latest: Reservation) -> Mapping[str, Any] | None:
            is_nominated = nominated in (None, latest.nominated)
            if not latest.unassigned or (is_nominated and self._is_said(latest, message)):
                return None
            return status.unschedulable(latest, message, clock.wall(), nominated)

        if found is None:
            return
        try:
            await status.write_status_anew(client, clock, found, wanted)
        except KubeError as err:
            log.warning("reservation.write_failed", reservation=found.name, error=str(err))

    def _is_said(self, found: Reservation, message: str) -> bool:
        """Whether a Reservation has said so a short time ago."""
        raw = found.raw.get("status")
        conditions = raw.get("conditions") if isinstance(raw, Mapping) else None
        said = any(
            isinstance(one, Mapping)
            and (one.get("type"), one.get("status"), one.get("message"))
            == ("Scheduled", "False", message)
            for one in (conditions if isinstance(conditions, list) else ())
        )
        probed = [one.probed or 0.0 for one in found.conditions if one.type == "Scheduled"]
        return said and self._services.clock.wall() - max(probed, default=0.0) < _SAID_FOR

    def _report(self, found: Reservation, problem: str) -> None:
        """Say once what is wrong with an object."""
        if not problem or self._said.get(found.uid) == problem:
            return
        self._said[found.uid] = problem
        log.warning("reservation.invalid", reservation=found.name, error=problem)
        self.emit(found, EventType.WARNING, "InvalidReservation", problem)

    def emit(self, found: Reservation, type_: EventType, reason: str, message: str) -> None:
        """Report an event on a Reservation; never waits."""
        about = ObjectRef(API_VERSION, KIND, found.name, "", found.uid)
        self._services.events.emit(Event(about, type_, reason, message[:1024], "koord-scheduler"))


def _error(kind: AccountKind, pod: ClusterPod) -> str:
    """Why a pod cannot hold what its annotation says; "": it can."""
    try:
        kind.holdings(pod)
    except Exception as err:  # the function is another plugin's
        return str(err) or type(err).__name__
    return ""


def reduced(
    pod: ClusterPod, used: Amounts, taken: Amounts, kinds: Iterable[AccountKind]
) -> ClusterPod:
    """Return a reserve pod that takes what consumers have left: each is a pod there itself.

    used: of what it reserves. taken: the sums of its pool, with its consumers' devices and CPUs by
    the names that kinds have in it.
    """
    for kind in kinds:
        prefix = kind.nested_name("")
        gone = {
            name.removeprefix(prefix): amount
            for name, amount in taken.items()
            if name.startswith(prefix)
        }
        if gone:
            pod = _without(pod, kind, gone)
    if not used:
        return pod
    spec = pod.spec
    requests = tuple(
        (name, left) for name, amount in spec.requests if (left := amount - used.get(name, 0)) > 0
    )
    smaller = replace(
        spec,
        requests=requests,
        limits=requests,
        nonzero_cpu=max(0, spec.nonzero_cpu - used.get("cpu", 0)),
        nonzero_memory=max(0, spec.nonzero_memory - used.get("memory", 0)),
    )
    return replace(pod, spec=smaller)


def _without(pod: ClusterPod, kind: AccountKind, gone: Amounts) -> ClusterPod:
    """A reserve pod whose annotation is without what consumers hold of a kind."""
    text = dict(pod.annotations).get(kind.annotation)
    if not text or kind.without is None:
        return pod
    try:
        left = kind.without(text, gone)
    except InvalidObject:
        return pod  # it holds nothing: the account says so
    rest = tuple(one for one in pod.annotations if one[0] != kind.annotation)
    return replace(pod, annotations=(*rest, (kind.annotation, left)) if left else rest)
