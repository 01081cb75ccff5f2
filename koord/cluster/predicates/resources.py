"""The rule about resources: whether what a pod requests is free on nodes, and what is missing.

Source: Kubernetes, NodeResourcesFit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import FrozenColumn, Mask
from koord.cluster.facts import PODS, ClusterPod, PodSpec
from koord.cluster.view import View

_FEW_ROWS = 16  # that are written one by one sooner than the whole table
_NONZERO = ("cpu", "memory")  # columns before those of the resources: see View.nonzero_requested

Floats = NDArray[np.float64]
Amounts = NDArray[np.int64] | NDArray[np.float64]


class ResourceColumn(NamedTuple):
    """A resource on all nodes, without the pod; each column is (nodes,). To be read at once."""

    allocatable: Floats
    taken: Floats
    free: Floats  # below zero where nodes are overcommitted


class FreeResources:
    """Amounts of all nodes as floats, one contiguous column for each resource.

    Follows views, of what-ifs too, each at the cost of its differences to the one before: a pod
    more on a node is one row, while the table of a view is joined anew. Belongs to one thread.
    """

    def __init__(self) -> None:
        self._seen: FrozenColumn | None = None  # generations of the rows that are in the tables
        self._resources: object = None
        self._taken = np.zeros((0, 0))
        self._free = np.zeros((0, 0))

    def of(self, nodes: View, column: int, nonzero: int | None = None) -> ResourceColumn | None:
        """Return the columns of a resource; None: amounts of it are too large to be exact.

        nonzero: 0 for cpu, 1 for memory, requested as in View.nonzero_requested.
        """
        whole = nodes.floats(column)
        if whole is None:
            return None
        self._follow(nodes)
        at = len(_NONZERO) + column if nonzero is None else nonzero
        return ResourceColumn(whole, self._taken[at], self._free[at])

    def _follow(self, nodes: View) -> None:
        generations = nodes.generations
        if generations is self._seen:
            return
        rows = generations.other_rows(self._seen)
        shape = len(_NONZERO) + len(nodes.resources), len(nodes)
        if (
            self._resources is not nodes.resources
            or self._free.shape != shape
            or len(rows) > _FEW_ROWS
        ):
            self._fill(nodes, shape)
        else:
            for row in rows:
                taken, free = nodes.amounts_of(row)
                self._taken[:, row] = taken
                self._free[:, row] = free
        self._seen, self._resources = generations, nodes.resources

    def _fill(self, nodes: View, shape: tuple[int, int]) -> None:
        self._taken, self._free = np.empty(shape), np.empty(shape)
        first = len(_NONZERO)
        self._taken[first:] = nodes.requested.T
        self._taken[:first] = nodes.nonzero_requested.T
        self._free[first:] = nodes.allocatable.T
        for which, name in enumerate(_NONZERO):
            self._free[which] = nodes.allocatable[:, nodes.resources[name]]
        self._free -= self._taken


ResourceRequests = Sequence[tuple[str, int]]
"""Resources that a node must have free: name and amount, in the order of the reasons."""

_FIRST = (PODS, "cpu", "memory", "ephemeral-storage")


def resource_requests_of(spec: PodSpec, ignored: Callable[[str], bool]) -> ResourceRequests:
    """The demand of pods with this spec, of which some resources may be ignored."""
    asked = dict(spec.requests)
    asked[PODS] = asked.get(PODS, 1)
    first = [(name, asked.pop(name)) for name in _FIRST if name in asked]
    if asked:
        first += [one for one in asked.items() if not ignored(one[0])]
    return first


def short_nodes(
    demand: ResourceRequests, resources: Mapping[str, int], free: Callable[[int], Amounts]
) -> Iterator[tuple[int, Mask | None]]:
    """Yield the places of what is too little somewhere, with the nodes; None: no node has any.

    resources: columns by name. free: returns the free amounts of a column; shape (nodes,).
    """
    for place, (name, amount) in enumerate(demand):
        column = resources.get(name)
        if column is None:
            yield place, None
            continue
        available = free(column)
        if available.min(initial=amount) < amount:
            yield place, available < amount


def enough_free(
    spec: PodSpec, resources: Mapping[str, int], free: Callable[[int], Amounts]
) -> Mask:
    """Nodes that can take one more pod and have its requests free; shape (nodes,).

    Arguments as for short_nodes; a resource that a node does not have counts as 0 there.
    """
    enough: Mask = free(resources[PODS]) >= 1
    for _, short in short_nodes(spec.requests, resources, free):
        if short is None:
            return np.zeros(len(enough), np.bool_)
        enough &= ~short
    return enough


def has_room(pod: ClusterPod, view: View) -> Mask:
    """Nodes that can take one more pod and have its requests free; shape (nodes,)."""
    return enough_free(pod.spec, view.resources, partial(free_amounts, view))


def free_amounts(nodes: View, column: int, table: FreeResources | None = None) -> Amounts:
    """Return what is free of a resource; shape (nodes,). table: where it may be known."""
    known = None if table is None else table.of(nodes, column)
    if known is not None:
        return known.free
    return nodes.allocatable[:, column] - nodes.requested[:, column]


def insufficient_resources(
    demand: ResourceRequests, nodes: View, table: FreeResources | None = None
) -> NDArray[np.int64] | None:
    """Return what each node lacks; shape (nodes,). 0: nothing. None: no node lacks anything.

    Bit k: there is too little of resource k of the demand. The bit above all of them: even without
    any pods, one of them would be too little. table: free amounts; without it they are computed.
    """
    found: NDArray[np.int64] | None = None
    never = 1 << len(demand)
    free = partial(free_amounts, nodes, table=table)
    for bit, short in short_nodes(demand, nodes.resources, free):
        if found is None:
            found = np.zeros(len(nodes), np.int64)
        name, amount = demand[bit]
        if short is None:
            found |= 1 << bit | never
            continue
        found |= short * (1 << bit)
        if name != PODS:
            found |= (nodes.allocatable[:, nodes.resources[name]] < amount) * never
    return found


def insufficient_resources_on(demand: ResourceRequests, nodes: View, row: int) -> int:
    """Return insufficient_resources of one node."""
    found, never = 0, False
    for bit, (name, amount) in enumerate(demand):
        column = nodes.resources.get(name)
        allocatable = 0 if column is None else nodes.allocatable_of(row, column)
        requested = 0 if column is None else nodes.requested_of(row, column)
        if allocatable - requested < amount:
            found |= 1 << bit
            never = never or (name != PODS and allocatable < amount)
    return found | never << len(demand)
