"""One resource of all quotas of a tree: requests summed up to the root, runtimes handed down."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from koord.api.elasticquota import Amounts
from koord_scheduler_plugins.elastic_quota.division import divide, scaled_mins
from koord_scheduler_plugins.elastic_quota.tree import ROOT, Tree

_NOTHING: Amounts = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class RuntimeOptions:
    """How runtime quotas are computed."""

    enabled: bool = True  # False: the limit of a quota is its max
    scale_min: bool = False  # mins that exceed what there is are scaled down
    guarantee: bool = False  # what is allocated is not taken back; nobody lends


@dataclass(frozen=True, kw_only=True, slots=True)
class Sums:
    """What the own pods of each quota, by its name, ask for and have."""

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
    """What the parent of a quota sums up."""
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
