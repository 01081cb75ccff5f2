"""Runtime quotas: what each quota of a tree requests, uses and may use, computed from sums.

The whole tree is computed top-down, all siblings at once; a later state takes over from the one
before it what does not depend on the change. Every resource is computed by itself.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from koord.api.elasticquota import ROOT_QUOTA, Amounts
from koord_scheduler_plugins.elastic_quota.tree import FIXED, ROOT, Tree


def divide(
    total: int,
    bases: Sequence[int],
    requests: Sequence[int],
    weights: Sequence[int],
    lends: Sequence[bool],
) -> list[int]:
    """Return the runtime of each child; all sequences are in order of their names.

    A child has its base (min, or what is guaranteed), or its request where that is less and it
    lends. What then is left of total is shared by weight among those that request more. The sum
    exceeds total where the bases do; it is below where nobody requests more.

    Source: Koordinator, quotaTree.redistribution.
    """
    runtimes, sharers, rest = [], [], total
    for at, base in enumerate(bases):  # one loop: a tree of 1,000 quotas has hundreds of parents
        runtime, request = base, requests[at]
        if request > base:
            if weights[at] > 0:
                sharers.append(at)
        elif lends[at]:
            runtime = request
        runtimes.append(runtime)
        rest -= runtime
    while rest > 0 and sharers:
        shares = largest_remainder(rest, [weights[at] for at in sharers])
        rest, staying = 0, []
        for number, at in enumerate(sharers):
            runtime, request = runtimes[at] + shares[number], requests[at]
            if runtime >= request:
                rest += runtime - request
                runtimes[at] = request
            else:
                runtimes[at] = runtime
                staying.append(at)
        sharers = staying
    return runtimes


def largest_remainder(amount: int, weights: Sequence[int]) -> list[int]:
    """Split amount in proportion to positive weights; the shares sum up to it exactly.

    The units that rounding down leaves over go to the largest remainders; of equal ones, to the
    first.
    """
    if len(weights) == 1:
        return [amount]
    whole, left_over = sum(weights), amount
    shares, remainders = [], []
    for weight in weights:
        share, remainder = divmod(weight * amount, whole)
        shares.append(share)
        remainders.append(remainder)
        left_over -= share
    if left_over == 1:
        shares[remainders.index(max(remainders))] += 1
    elif left_over:
        by_remainder = sorted(range(len(weights)), key=remainders.__getitem__, reverse=True)
        for at in by_remainder[:left_over]:
            shares[at] += 1
    return shares


def scaled_mins(
    total: int, mins: Sequence[int], scaling: Sequence[bool] | None = None
) -> list[int]:
    """Return the mins of all children as they count when their sum exceeds total.

    scaling: which of them are scaled; None: all. The others are served first.

    Source: Koordinator, ScaleMinQuotaManager.
    """
    whole, total = sum(mins), max(total, 0)
    if whole <= total:
        return list(mins)
    if scaling is None:  # in one go: it is done for hundreds of parents when a node comes
        return [total * low // whole for low in mins]
    fixed = sum(low for low, scale in zip(mins, scaling, strict=True) if not scale)
    left, scaled = max(total - fixed, 0), whole - fixed
    return [
        left * low // scaled if scale and scaled else low
        for low, scale in zip(mins, scaling, strict=True)
    ]


_NOTHING: Amounts = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class RuntimeOptions:
    """How runtime quotas are computed."""

    enabled: bool = True  # False: the limit of a quota is its max
    scale_min: bool = False  # mins that exceed what there is are scaled down
    guarantee: bool = False  # what is allocated is not taken back; nobody lends


@dataclass(frozen=True, kw_only=True, slots=True)
class Sums:
    """Requests and usage of the own pods of each quota, by its name."""

    requested: Mapping[str, Amounts] = field(default_factory=dict)
    used: Mapping[str, Amounts] = field(default_factory=dict)
    non_preemptible_requested: Mapping[str, Amounts] = field(default_factory=dict)
    non_preemptible_used: Mapping[str, Amounts] = field(default_factory=dict)


class Column:
    """One resource of all quotas of a tree: lists by place. Nobody changes one that is complete."""

    __slots__ = (
        "allocated",
        "available",
        "child_request",
        "guaranteed",
        "lends",
        "limited",
        "max",
        "min",
        "non_preemptible_requested",
        "non_preemptible_used",
        "own",
        "request",
        "runtime",
        "scaled_min",
        "used",
        "weight",
    )

    def __init__(self, quotas: int) -> None:
        self.available: int | None = None  # for the children of the root; None: nothing known
        # inputs
        self.min = [0] * quotas
        self.max: list[int | None] = [None] * quotas  # None: not limited
        self.weight = [0] * quotas
        self.lends = [True] * quotas
        self.own = [(0, 0, 0, 0)] * quotas  # as the fields of Sums
        # sums of quotas and those below them
        self.child_request = [0] * quotas
        self.request = [0] * quotas
        self.limited = [0] * quotas
        self.used = [0] * quotas
        self.non_preemptible_requested = [0] * quotas
        self.non_preemptible_used = [0] * quotas
        self.allocated = [0] * quotas
        self.guaranteed = [0] * quotas
        # results
        self.scaled_min = [0] * quotas
        self.runtime: list[int | None] = [None] * quotas  # None: not divided by the parent

    def copy(self, *, results: bool = False) -> "Column":
        """Return one that may be changed; results: only its results, it shares all other lists."""
        found = Column.__new__(Column)
        found.available = self.available
        for name in self.__slots__:
            if name != "available":
                values = getattr(self, name)
                shared = results and name not in ("runtime", "scaled_min")
                setattr(found, name, values if shared else values.copy())
        return found


def full_column(
    resource: str, tree: Tree, sums: Sums, available: Amounts, options: RuntimeOptions
) -> Column:
    """Return one resource of all quotas; available: what there is for the children of the root."""
    column, places = Column(len(tree.quotas)), range(len(tree.quotas))
    for place in places:
        _load(resource, column, tree, sums, options, place)
    column.available = available.get(resource)
    _roll_up(column, tree, options, places)
    _hand_down(column, tree, options, range(ROOT, len(tree.quotas)))
    return column


def changed_column(
    resource: str,
    known: Column,
    tree: Tree,
    sums: Sums,
    available: Amounts,
    options: RuntimeOptions,
    places: Collection[int],
) -> Column:
    """Return the column after changes of quotas at places; known itself if none is of it."""
    if not places and available.get(resource) == known.available:
        return known
    column = known.copy(results=not places)
    touched = [place for place in places if _load(resource, column, tree, sums, options, place)]
    column.available = available.get(resource)
    if not touched and column.available == known.available:
        return known
    redivide = _roll_up(column, tree, options, touched)
    redivide |= {tree.parents[place] for place in touched}
    redivide |= set(touched)  # a quota whose max has or lacks the resource now
    if column.available != known.available:
        redivide.add(ROOT)
    _hand_down(column, tree, options, redivide)
    return column


def _load(
    resource: str, column: Column, tree: Tree, sums: Sums, options: RuntimeOptions, place: int
) -> bool:
    """Set the inputs of a quota; whether they differ from those before.

    Own pods count for the resources of max only.
    """
    quota = tree.quotas[place]
    name, ceiling = quota.name, quota.max.get(resource)
    own = (0, 0, 0, 0)
    if ceiling is not None:
        own = (
            sums.requested.get(name, _NOTHING).get(resource, 0),
            sums.used.get(name, _NOTHING).get(resource, 0),
            sums.non_preemptible_requested.get(name, _NOTHING).get(resource, 0),
            sums.non_preemptible_used.get(name, _NOTHING).get(resource, 0),
        )
    inputs = (
        own,
        ceiling,
        quota.min.get(resource, 0),
        quota.weight.get(resource, 0),
        quota.lends and not options.guarantee,
    )
    before = (
        column.own[place],
        column.max[place],
        column.min[place],
        column.weight[place],
        column.lends[place],
    )
    (
        column.own[place],
        column.max[place],
        column.min[place],
        column.weight[place],
        column.lends[place],
    ) = inputs
    return inputs != before


def _roll_up(
    column: Column, tree: Tree, options: RuntimeOptions, places: Iterable[int]
) -> set[int]:
    """Sum up quotas, children before parents; returns the places whose children must be divided."""
    waiting = [-place for place in places]
    heapify(waiting)
    known, redivide = {-place for place in waiting}, set()
    while waiting:
        place = -heappop(waiting)
        before = _sums_at(column, place)
        _sum(column, tree.children[place], options, place)
        if _sums_at(column, place) == before:
            continue
        parent = tree.parents[place]
        redivide.add(parent)
        if parent != ROOT and parent not in known:
            known.add(parent)
            heappush(waiting, -parent)
    return redivide


def _sums_at(column: Column, place: int) -> tuple[int, ...]:
    """Return the sums that count at the parent of a quota."""
    return (
        column.limited[place],
        column.used[place],
        column.non_preemptible_requested[place],
        column.non_preemptible_used[place],
        column.guaranteed[place],
    )


def _sum(column: Column, children: tuple[int, ...], options: RuntimeOptions, place: int) -> None:
    requested, used, fixed_requested, fixed_used = column.own[place]
    low, ceiling = column.min[place], column.max[place]
    allocated = used
    for child in children:
        requested += column.limited[child]
        used += column.used[child]
        fixed_requested += column.non_preemptible_requested[child]
        fixed_used += column.non_preemptible_used[child]
        allocated += column.guaranteed[child]
    request = requested if column.lends[place] else max(requested, low)
    column.child_request[place] = requested
    column.request[place] = request
    column.limited[place] = request if ceiling is None else min(request, ceiling)
    column.used[place] = used
    column.non_preemptible_requested[place] = fixed_requested
    column.non_preemptible_used[place] = fixed_used
    if options.guarantee:
        column.allocated[place] = allocated
        column.guaranteed[place] = max(allocated, low)


def _hand_down(column: Column, tree: Tree, options: RuntimeOptions, parents: Iterable[int]) -> None:
    """Divide what parents have among their children, and on below where that changes."""
    waiting = list(parents)
    heapify(waiting)
    known = set(waiting)
    while waiting:
        parent = heappop(waiting)
        for child in _divide_children(column, tree, options, parent):
            if child not in known and tree.children[child]:
                known.add(child)
                heappush(waiting, child)


def _divide_children(column: Column, tree: Tree, options: RuntimeOptions, parent: int) -> list[int]:
    """Set the runtime of all children of a quota; returns those whose runtime has changed."""
    children = tree.children[parent]
    if not children:
        return []
    # Siblings are neighbours in a tree: a slice of a list costs a fifth of picking them.
    first, siblings = children[0], slice(children[0], children[-1] + 1)
    mins = column.min[siblings]
    total = column.available if parent == ROOT else column.runtime[parent]
    if options.scale_min and total is not None and sum(mins) > total:
        mins = scaled_mins(total, mins)
    column.scaled_min[siblings] = mins
    if parent != ROOT and column.max[parent] is None:
        runtimes: list[int | None] = [None] * len(children)
    else:
        runtimes = divide(  # type: ignore[assignment]
            total or 0,
            list(map(max, mins, column.guaranteed[siblings])) if options.guarantee else mins,
            column.limited[siblings],
            column.weight[siblings],
            column.lends[siblings],
        )
    before = column.runtime[siblings]
    if runtimes == before:
        return []
    column.runtime[siblings] = runtimes
    return [first + at for at, runtime in enumerate(runtimes) if runtime != before[at]]


_NO_SUMS: Mapping[str, Amounts] = {}


@dataclass(frozen=True, slots=True)
class QuotaState:
    """The quotas of a tree with all that is computed of them. Immutable."""

    tree: Tree
    options: RuntimeOptions
    sums: Sums
    total: Amounts
    columns: Mapping[str, Column]  # by resource

    def limit(self, name: str) -> Amounts:
        """Return how much a quota may use now: the one limit for checks, display and revoking.

        A resource that it does not have is not limited. A quota that is detached from its tree
        may use nothing.
        """
        quota = self.tree.find(name)
        if quota is None:
            return _NOTHING
        if name in self.tree.detached:
            return dict.fromkeys(quota.max, 0)
        if name in self.tree.fixed or not self.options.enabled:
            return quota.max
        return {key: amount for key, amount in self.runtime(name).items() if key in quota.max}

    def runtime(self, name: str) -> Amounts:
        """Return the amounts that a quota has from its parent, also of what its max lacks."""
        place = self.tree.places.get(name)
        if place is None:
            return {} if name != ROOT_QUOTA else self.available
        return {
            resource: amount
            for resource, column in self.columns.items()
            if (amount := column.runtime[place]) is not None
        }

    @property
    def available(self) -> Amounts:
        """The total without what default and system quota use."""
        return _available(self.total, self.sums)

    def used(self, name: str) -> Amounts:
        """Return what the pods of a quota and of those below it use."""
        return self._sums(name, "used", self.sums.used)

    def non_preemptible_used(self, name: str) -> Amounts:
        return self._sums(name, "non_preemptible_used", self.sums.non_preemptible_used)

    def non_preemptible_requested(self, name: str) -> Amounts:
        own = self.sums.non_preemptible_requested
        return self._sums(name, "non_preemptible_requested", own)

    def request(self, name: str) -> Amounts:
        """Return what a quota asks its parent for, before its max limits that."""
        return self._sums(name, "request", self.sums.requested)

    def child_request(self, name: str) -> Amounts:
        """Return what its own pods and the quotas below it, each within its max, ask for."""
        return self._sums(name, "child_request", self.sums.requested)

    def allocated(self, name: str) -> Amounts:
        return self._sums(name, "allocated", _NO_SUMS)

    def guaranteed(self, name: str) -> Amounts:
        return self._sums(name, "guaranteed", _NO_SUMS)

    def scaled_min(self, name: str) -> Amounts:
        """Return the min of a quota as it counts where those of siblings exceed what is there."""
        return self._sums(name, "scaled_min", _NO_SUMS)

    def _sums(self, name: str, kind: str, own: Mapping[str, Amounts]) -> Amounts:
        """Return a list without its zeros; for a quota outside of the tree that of its own pods."""
        place = self.tree.places.get(name)
        if place is not None:
            found = {key: getattr(column, kind)[place] for key, column in self.columns.items()}
        elif name == ROOT_QUOTA:
            found = self._root_sums(kind, own)
        else:
            found = dict(own.get(name, _NOTHING))
        return {key: amount for key, amount in found.items() if amount}

    def _root_sums(self, kind: str, own: Mapping[str, Amounts]) -> dict[str, int]:
        kind = "limited" if kind in ("request", "child_request") else kind
        top = self.tree.children[ROOT]
        found = {
            key: sum(getattr(column, kind)[place] for place in top)
            for key, column in self.columns.items()
        }
        if "used" in kind:
            for name in FIXED:
                for key, amount in own.get(name, _NOTHING).items():
                    found[key] = found.get(key, 0) + amount
        return found


def compute(
    tree: Tree, sums: Sums, total: Amounts, options: RuntimeOptions | None = None
) -> QuotaState:
    """Return the state of a tree; total: what it has to give away."""
    options = options or RuntimeOptions()
    available = _available(total, sums)
    columns = {
        resource: full_column(resource, tree, sums, available, options)
        for resource in sorted({key for quota in tree.quotas for key in quota.max})
    }
    return QuotaState(tree, options, sums, total, columns)


def update(
    state: QuotaState, tree: Tree, sums: Sums, total: Amounts, changed: Collection[str]
) -> QuotaState:
    """Return compute of the new inputs, and compute only what depends on the change.

    tree: that of state, or one made of it by with_quota. changed: names of all quotas that differ
    from those of state, or whose sums do.
    """
    if tree.places is not state.tree.places:
        return compute(tree, sums, total, state.options)
    options, available = state.options, _available(total, sums)
    places = [tree.places[name] for name in changed if name in tree.places]
    had: set[str] = set().union(*(state.tree.quotas[place].max for place in places))
    has: set[str] = set().union(*(tree.quotas[place].max for place in places))
    columns = dict(state.columns)
    for resource in had - has:
        if not any(resource in quota.max for quota in tree.quotas):
            del columns[resource]
    for resource, column in list(columns.items()):
        columns[resource] = changed_column(resource, column, tree, sums, available, options, places)
    for resource in has - set(columns):
        columns[resource] = full_column(resource, tree, sums, available, options)
    return QuotaState(tree, options, sums, total, columns)


def _available(total: Amounts, sums: Sums) -> Amounts:
    left = dict(total)
    for name in FIXED:
        for resource, amount in sums.used.get(name, _NOTHING).items():
            if resource in left:
                left[resource] -= amount
    return left
