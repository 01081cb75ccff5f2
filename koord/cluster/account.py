"""The account: what pods hold beyond amounts of nodes, such as of quotas, devices, reservations.

It is derived from pods alone; see docs/decisions/account.md.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from types import MappingProxyType
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from koord.cluster.facts import ClusterPod
from koord.cluster.pools import EMPTY_POOL, FrozenPools, Holding, Pool, Pools, PoolSums
from koord.util.logs import LogState, get_logger

MAX_AMOUNTS = 4096  # of one pod in one account; a pod with more holds nothing
MAX_HELD = 2**63 - 1  # of one resource; sums are exact, whatever their size
MAX_POOL_NAME_BYTES = 4096  # a quota has namespace and name, a gang group a list of them

log = get_logger("koord.cluster.account")


class AccountKind(Struct, frozen=True, eq=False):
    """A kind of pools, and how what a pod holds of them is read from the pod alone.

    holdings is asked once for each change of a pod, also for pods on no node. It has no state. It
    names each pool once.
    """

    name: str  # in logs and reports
    holdings: Callable[[ClusterPod], Sequence[Holding]]
    members: bool = False  # keep which pods a pool has; a pool then costs its pods when it changes
    annotation: str = ""  # of pods, in which it is written what they hold; "": it is not
    without: Callable[[str, Mapping[str, int]], str] | None = None
    """Returns such an annotation without amounts that other pods hold in its place, by name.

    It is what lets a pod stand for room that others take piece by piece, such as a reservation."""
    labels: frozenset[str] | None = None
    """Labels that a pod without annotations and workload group needs to hold something.

    One of them will do. Other pods, which are most, are not asked about. None: all are."""
    of_spec: bool = False
    """Holdings of a pod without annotations and workload group depend on labels, spec and end.

    The end is its phase, whether it is being deleted, and since when it is overdue. So holdings is
    not asked again when such a pod comes to a node."""
    nests: bool = False
    """Its pools also have what their pods hold of kinds with an annotation, as nested_name."""

    def nested_name(self, name: str) -> str:
        """The name in pools that nest of an amount of this kind."""
        return f"{self.name}:{name}"


_ONLY_HOLDINGS = frozenset({tuple})  # types of what is found of a pod; others are exceptions


class FrozenAccount:
    """The account at one moment. It never changes."""

    def __init__(
        self,
        pools: Mapping[AccountKind, FrozenPools],
        altered: Mapping[AccountKind, Mapping[str, Pool]] = MappingProxyType({}),
    ) -> None:
        """altered: pools that a what-if has changed, in the place of those of the same name."""
        self._pools = pools
        self._altered = altered

    @property
    def kinds(self) -> Iterable[AccountKind]:
        """The accounts that are kept."""
        return self._pools.keys()

    def pool(self, kind: AccountKind, name: str) -> Pool:
        """Return the sums of a pool; one of which nobody has anything is empty."""
        altered = self._altered.get(kind)
        if altered is not None and (found := altered.get(name)) is not None:
            return found
        pools = self._pools.get(kind)
        return (pools.get(name) if pools is not None else None) or EMPTY_POOL

    def has_pools_of(self, other: "FrozenAccount", kind: AccountKind) -> bool:
        """Whether all pools of a kind are those of another account, as far as that shows at once.

        Each pod with a quota makes a new account, and most kinds are the same in it.
        """
        if self is other:
            return True
        mine, others = self._altered.get(kind), other._altered.get(kind)
        return not mine and not others and self._pools.get(kind) is other._pools.get(kind)

    def other_pools(self, kind: AccountKind, before: "FrozenAccount | None") -> Iterator[str]:
        """Names of pools whose sums or pods are others than before; None: before there were none.

        It costs little where few have changed.
        """
        if before is not None and self.has_pools_of(before, kind):
            return
        names = dict.fromkeys(self._altered.get(kind, ()))
        old = None
        if before is not None:
            names.update(dict.fromkeys(before._altered.get(kind, ())))
            old = before._pools.get(kind)
        pools = self._pools.get(kind)
        if pools is not None:
            names.update(dict.fromkeys(pools.other_keys(old)))
        for name in names:
            if self.pool(kind, name) is not (
                EMPTY_POOL if before is None else before.pool(kind, name)
            ):
                yield name

    def with_pods(
        self,
        removed: Iterable[tuple[ClusterPod, str]],
        added: Iterable[tuple[ClusterPod, str]],
    ) -> "FrozenAccount":
        """Return the account of a what-if in which pods have left nodes, and come to others.

        It is this account where they hold nothing. Both are pods with the node. What pods request
        stays as it is: they are only moved.
        """
        if not self._pools:
            return self
        changed: dict[AccountKind, dict[str, PoolSums]] = {}
        moves = [(pod, node, -1) for pod, node in removed]
        moves += [(pod, node, 1) for pod, node in added]
        for pod, node, times in moves:
            if pod.finished:
                continue
            there = pod if pod.node == node else replace(pod, node=node)
            every = _holdings_of_all(tuple(self._pools), there)
            for kind, holdings in zip(self._pools, every, strict=True):
                sums = changed.setdefault(kind, {})
                if isinstance(holdings, Exception):
                    continue  # nothing of it is counted here either
                for holding in holdings:
                    if holding.pool not in sums:
                        known = self.pool(kind, holding.pool)
                        sums[holding.pool] = PoolSums(known, members=kind.members)
                    sums[holding.pool].allocate(holding, times)
                    sums[holding.pool].move(pod.key, node if times > 0 else "")
        if not any(changed.values()):
            return self
        altered = {kind: dict(pools) for kind, pools in self._altered.items()}
        for kind, each in changed.items():
            pools = altered.setdefault(kind, {})
            pools.update((name, sums.freeze()) for name, sums in each.items())
        return FrozenAccount(self._pools, altered)


NO_ACCOUNT = FrozenAccount(MappingProxyType({}))


class Account:
    """The account while it changes. Belongs to one thread.

    What was added for a pod is kept, so exactly that is taken off again.
    """

    def __init__(self, kinds: Iterable[AccountKind] = ()) -> None:
        self._kinds: tuple[AccountKind, ...] = ()
        self._labels: frozenset[str] | None = frozenset()  # of all kinds
        self._placed_labels: frozenset[str] | None = frozenset()  # of those that are not of_spec
        self._held: dict[str, tuple[ClusterPod, tuple[Sequence[Holding], ...]]] = {}
        self._pools: dict[AccountKind, Pools] = {}
        self._unread: dict[AccountKind, set[str]] = {}
        self._has_unread = False  # whether any of those is not empty
        self._logs: dict[AccountKind, LogState] = {}
        self._frozen: FrozenAccount | None = NO_ACCOUNT
        for kind in kinds:
            self.keep(kind, ())

    def keep(self, kind: AccountKind, pods: Iterable[ClusterPod]) -> None:
        """Keep a further account from now on; one that is kept already stays as it is.

        pods: all that were put and not removed.
        """
        if kind in self._kinds:
            return
        self._kinds = (*self._kinds, kind)
        self._labels = _united(self._labels, kind.labels)
        if not kind.of_spec:
            self._placed_labels = _united(self._placed_labels, kind.labels)
        self._pools[kind], self._unread[kind] = Pools(members=kind.members), set()
        self._logs[kind], self._frozen = LogState(log), None
        for pod in pods:
            self.put(pod)

    def put(self, pod: ClusterPod, key: str = "") -> bool:
        """Count a pod, in the place of the one that had its name; return whether it matters.

        A finished pod holds nothing. key: the pod's, where the caller has it already.
        """
        if not self._kinds:
            return False
        key = key or pod.key
        old = self._held.get(key)
        if (
            old is None
            and self._labels is not None
            and not (pod.annotations or pod.workload_group or self._has_unread)
            and self._labels.isdisjoint(pod.label_set.labels)
        ):
            return False  # no kind is asked, which twice a pod costs as much as a Filter
        if old is not None and self._holds_alike(old[0], pod):
            self._held[key] = pod, old[1]
            return self._move(old[0].node, pod, old[1])
        found = [] if pod.finished else _holdings_of_all(self._kinds, pod)
        if old is None and not self._has_unread and not any(found):
            return False  # as most pods
        if self._has_unread or not _ONLY_HOLDINGS.issuperset(map(type, found)):
            found = [
                self._read(kind, key, one) for kind, one in zip(self._kinds, found, strict=False)
            ]
        new: tuple[Sequence[Holding], ...] = tuple(found)  # type: ignore[arg-type]  # or read above
        holds = any(new)
        if old is not None:
            if old[1] == new:
                self._held[key] = pod, new
                return self._move(old[0].node, pod, new)
            del self._held[key]
            self._count(*old, -1)
        if holds:
            self._held[key] = pod, new
            self._count(pod, new, 1)
        return holds or old is not None

    def remove(self, key: str) -> bool:
        """Forget a pod, namespace/name; return whether it held something."""
        for kind in self._kinds:
            self._set_unread(kind, key, error="")
        held = self._held.pop(key, None)
        if held is not None:
            self._count(*held, -1)
        return held is not None

    def unread(self, kind: AccountKind) -> Set[str]:
        """namespace/name of the pods of which could not be said what they hold: nothing counts."""
        return self._unread[kind]

    def freeze(self) -> FrozenAccount:
        """The account as it is now. Costs the pools that have changed, if they are asked for."""
        if self._frozen is None:
            pools = {kind: one.frozen or one.freeze() for kind, one in self._pools.items()}
            self._frozen = FrozenAccount(pools)
        return self._frozen

    def _holds_alike(self, old: ClusterPod, pod: ClusterPod) -> bool:
        """Whether a pod holds what it held before, as one that only comes to a node.

        Twice or more for each pod that is scheduled, so what is shared is compared as it is.
        """
        return (
            pod.spec is old.spec
            and pod.label_set is old.label_set
            and pod.phase == old.phase
            and pod.deleting is old.deleting
            and pod.overdue_at == old.overdue_at
            and not (pod.annotations or old.annotations)
            and not (pod.workload_group or old.workload_group)
            and not self._has_unread
            and self._placed_labels is not None
            and self._placed_labels.isdisjoint(pod.label_set.labels)
        )

    def _read(
        self, kind: AccountKind, key: str, found: Sequence[Holding] | Exception
    ) -> Sequence[Holding]:
        """Return the holdings of a pod; none where its account could not read them."""
        if isinstance(found, Exception):
            self._set_unread(kind, key, error=str(found)[:200])
            return ()
        self._set_unread(kind, key, error="")
        return found

    def _set_unread(self, kind: AccountKind, key: str, *, error: str) -> None:
        """error: why it cannot be read; "": it can."""
        unread = self._unread[kind]
        if error:
            unread.add(key)
            self._has_unread = True
            self._logs[kind].failed("holdings.failed", account=kind.name, pod=key, error=error)
        elif key in unread:
            unread.discard(key)
            if not unread:
                self._has_unread = any(self._unread.values())
                self._logs[kind].ended("holdings.ok", account=kind.name)

    def _move(self, before: str, pod: ClusterPod, holdings: tuple[Sequence[Holding], ...]) -> bool:
        """Count a pod on its node that was on another one before, or none; return whether it was.

        Of most pods it is all that ever changes: that they come to a node.
        """
        if pod.node == before:
            return False  # its status has changed
        times = bool(pod.node) - bool(before)
        self._frozen, key = None, pod.key
        for pools, each in zip(self._pools.values(), holdings, strict=False):
            for holding in each:
                pools.change(holding, 0, times, key, pod.node)
        return True

    def _count(self, pod: ClusterPod, holdings: tuple[Sequence[Holding], ...], times: int) -> None:
        self._frozen, key = None, pod.key
        allocated = times if pod.node else 0
        for pools, each in zip(self._pools.values(), holdings, strict=False):
            for holding in each:
                pools.change(holding, times, allocated, key, pod.node)


def _united(some: frozenset[str] | None, more: frozenset[str] | None) -> frozenset[str] | None:
    """Labels of both; None: all."""
    return None if some is None or more is None else some | more


def _holdings_of_all(
    kinds: Sequence[AccountKind], pod: ClusterPod
) -> list[Sequence[Holding] | Exception]:
    """Return what a pod holds of each kind, or why that cannot be said."""
    found: list[Sequence[Holding] | Exception] = []
    nesting = []
    is_bare = not (pod.annotations or pod.workload_group)
    for number, kind in enumerate(kinds):
        if is_bare and kind.labels is not None and kind.labels.isdisjoint(pod.label_set.labels):
            found.append(())
            continue
        try:
            each = tuple(kind.holdings(pod) or ())
            if each:
                _check(each)
                if kind.nests:
                    nesting.append(number)
            found.append(each)
        except Exception as err:  # the function is a plugin's
            found.append(err)
    for number in nesting:
        holdings = cast("Sequence[Holding]", found[number])
        more = [
            (other.nested_name(name), amount)
            for other, each in zip(kinds, found, strict=True)
            if other.annotation and not isinstance(each, Exception)
            for one in each
            for name, amount in one.amounts
        ]
        found[number] = [replace(one, amounts=(*one.amounts, *more)) for one in holdings]
    return found


@lru_cache(maxsize=1024)  # equal pods have the same, one after the other
def _check(holdings: tuple[Holding, ...]) -> None:
    """Raises ValueError if a pod holds more than is kept, or what cannot be summed."""
    pools = {one.pool for one in holdings}
    amounts = sum([len(one.amounts) for one in holdings]) + len(holdings)
    if amounts > MAX_AMOUNTS:
        raise ValueError(f"wanted at most {MAX_AMOUNTS} amounts of one pod, found {amounts}")
    if len(pools) < len(holdings):
        raise ValueError("wanted each pool once, found one twice")
    for one in holdings:
        if len(one.pool.encode()) > MAX_POOL_NAME_BYTES:
            raise ValueError(f"wanted pool names of at most {MAX_POOL_NAME_BYTES} bytes")
        if any(not 0 <= amount <= MAX_HELD for _, amount in one.amounts):
            raise ValueError(f"pool {one.pool:.80}: wanted amounts from 0 to {MAX_HELD}")
