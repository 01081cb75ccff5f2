"""The pools of one kind in the account: what their pods hold of each, together."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType

from msgspec import Struct

from koord.cluster.columns import FrozenShards, Shards

MAX_WAITING = 512  # changes of pools that nobody asks for, until they are summed
UNASKED = 64  # changes after which it is so

_NOTHING: Mapping[str, int] = MappingProxyType({})
_NO_MEMBERS: Mapping[str, str] = MappingProxyType({})


class Holding(Struct, frozen=True, gc=False):
    """The amounts that a pod holds of one pool; amounts are whole numbers, 0 or more."""

    pool: str
    amounts: tuple[tuple[str, int], ...] = ()  # by name, each once; none: it is only a member


class Pool(Struct, frozen=True, gc=False):
    """The sums of one pool. Amounts that are 0 are absent."""

    allocated: Mapping[str, int]  # by pods on nodes, assumed ones too
    requested: Mapping[str, int]  # by all pods, those on nodes too
    pods: int  # how many there are
    members: Mapping[str, str]  # their nodes by namespace/name; "": on none. Empty if not kept


EMPTY_POOL = Pool(_NOTHING, _NOTHING, 0, _NO_MEMBERS)


class PoolSums:
    """The sums of one pool while they change; times is 1 or -1."""

    def __init__(self, pool: Pool, *, members: bool) -> None:
        """members: keep where each pod is."""
        self.pods = pool.pods
        self._allocated = dict(pool.allocated)
        self._requested = dict(pool.requested)
        self._members = dict(pool.members) if members else None
        self._frozen_requested: Mapping[str, int] | None = None  # None: it has changed

    def request(self, holding: Holding, times: int) -> None:
        """A pod has come or gone."""
        self.pods += times
        self._frozen_requested = None
        _add(self._requested, holding, times)

    def allocate(self, holding: Holding, times: int) -> None:
        """A pod has come to a node, or left it."""
        _add(self._allocated, holding, times)

    def move(self, key: str, node: str | None) -> None:
        """Note where a pod is now; None: it is no member any more."""
        if self._members is None:
            return
        if node is None:
            del self._members[key]
        else:
            self._members[key] = node

    def freeze(self) -> Pool:
        members = _NO_MEMBERS if self._members is None else MappingProxyType(self._members.copy())
        if self._frozen_requested is None:
            self._frozen_requested = MappingProxyType(self._requested.copy())
        allocated = MappingProxyType(self._allocated.copy())
        return Pool(allocated, self._frozen_requested, self.pods, members)


PoolChange = tuple[Holding, int, int, str, str]
"""A pod that comes, goes or moves: its holding, times by which that is requested and allocated
more (1, 0 or -1), its namespace/name, and the node that it is on; "": none."""


class _Asked:
    """Whether somebody has looked into frozen pools of a kind."""

    __slots__ = ("lately",)

    def __init__(self) -> None:
        self.lately = True


class FrozenPools:
    """The pools of a kind at one moment. They never change.

    What nobody asked for lately is kept as changes, and summed when it is asked for: of equal pods
    in a queue, each makes another account, into which perhaps nobody looks.
    """

    __slots__ = ("_asked", "_held", "_members")

    def __init__(
        self,
        pools: FrozenShards[Pool],
        changes: Sequence[PoolChange],
        asked: _Asked,
        *,
        members: bool,
    ) -> None:
        """changes: which are not in pools; it may become longer."""
        self._held = pools, changes, len(changes)  # one object: threads that look in may be many
        self._asked = asked
        self._members = members

    def get(self, name: str) -> Pool | None:
        """Return a pool; None: nobody has anything of it."""
        return self._summed().get(name)

    def other_keys(self, before: "FrozenPools | None") -> Iterator[str]:
        """Names of pools that are, or may be, others than before; None: before there were none."""
        return self._summed().other_keys(None if before is None else before._summed())

    def _summed(self) -> FrozenShards[Pool]:
        self._asked.lately = True
        pools, changes, count = self._held
        if count:
            summed, sums = Shards(pools), dict[str, PoolSums]()
            for change in islice(changes, count):
                _apply(*change, sums=sums, pools=pools, members=self._members)
            _write(summed, sums)
            pools = summed.freeze()
            self._held = pools, (), 0
        return pools


class Pools:
    """The pools of a kind while they change. Belongs to one thread."""

    def __init__(self, *, members: bool) -> None:
        """members: keep where each pod of a pool is."""
        self._members = members
        self._sums: dict[str, PoolSums] = {}
        self._shards: Shards[Pool] = Shards()
        self._names: set[str] = set()  # of pools whose sums are others than in shards
        self._waiting: list[PoolChange] = []  # that are not in sums; a frozen one may have it, too
        self._asked = _Asked()
        self._unasked = 0  # changes since it was asked
        self.frozen: FrozenPools | None = None
        """The pools as they are now; None: they have changed since they were frozen."""

    def change(self, holding: Holding, requested: int, allocated: int, key: str, node: str) -> None:
        """Count a change; see PoolChange."""
        self.frozen = None
        if self._asked.lately:
            self._asked.lately, self._unasked = False, 0
        self._unasked += 1
        if self._unasked > UNASKED:
            self._waiting.append((holding, requested, allocated, key, node))
            if len(self._waiting) >= MAX_WAITING:
                self._sum()
            return
        if self._waiting:
            self._sum()
        self._count(holding, requested, allocated, key, node)

    def freeze(self) -> FrozenPools:
        """The pools as they are now. Costs those that have changed, if somebody asks for them."""
        if self.frozen is None:
            if self._asked.lately and self._waiting:
                self._sum()
            self._write()
            self.frozen = FrozenPools(
                self._shards.freeze(), self._waiting, self._asked, members=self._members
            )
        return self.frozen

    def _sum(self) -> None:
        """Take what waits into the sums."""
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            self._count(*change)

    def _count(self, holding: Holding, requested: int, allocated: int, key: str, node: str) -> None:
        self._names.add(holding.pool)
        _apply(holding, requested, allocated, key, node, sums=self._sums, members=self._members)

    def _write(self) -> None:
        if self._names:
            changed = {name: self._sums[name] for name in self._names}
            self._names.clear()
            for name in _write(self._shards, changed):
                del self._sums[name]


def _apply(
    holding: Holding,
    requested: int,
    allocated: int,
    key: str,
    node: str,
    *,
    sums: dict[str, PoolSums],
    members: bool,
    pools: FrozenShards[Pool] | None = None,
) -> None:
    """Count a change in the sums of its pool, which begin with what it has in pools."""
    found = sums.get(holding.pool)
    if found is None:
        before = None if pools is None else pools.get(holding.pool)
        found = sums[holding.pool] = PoolSums(before or EMPTY_POOL, members=members)
    if requested:
        found.request(holding, requested)
    if allocated:
        found.allocate(holding, allocated)
    if members:
        found.move(key, None if requested < 0 else node)


def _write(shards: Shards[Pool], sums: Mapping[str, PoolSums]) -> list[str]:
    """Write pools, and return the names of those of which nobody has anything any more."""
    gone = []
    for name, each in sums.items():
        if each.pods:
            shards.put(name, each.freeze())
        else:
            shards.drop(name)
            gone.append(name)
    return gone


def _add(sums: dict[str, int], holding: Holding, times: int) -> None:
    for name, amount in holding.amounts:
        total = sums.get(name, 0) + times * amount
        if total:
            sums[name] = total
        else:
            sums.pop(name, None)
