"""Free and requested amounts of resources, and which resources are insufficient."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import FrozenColumn, Mask
from koord.cluster.facts import PODS, ClusterPod, PodSpec
from koord.cluster.view import View

_FEW_ROWS = 16  # that are written one by one sooner than the whole table
_NONZERO = ("cpu", "memory")  # columns before those of the resources: see View.nonzero_requested

Floats = NDArray[np.float64]


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


_NATIVE = ("cpu", "memory", "ephemeral-storage")
_UNCOUNTED = ("pods", "storage")
_NONZERO_DEFAULTS = {"cpu": 0, "memory": 1}  # columns of nonzero_requested

Amounts = NDArray[np.int64] | NDArray[np.float64]


class ResourceUse(NamedTuple):
    """Use of a resource on one node."""

    allocatable: int
    requested: int  # with the pod


@dataclass(frozen=True, slots=True)
class UseColumns:
    """Use of a resource on all nodes; each column has shape (nodes,).

    The numbers are whole, also in float columns.
    """

    allocatable: Amounts
    taken: Amounts  # what is requested without the pod
    amount: int  # what the pod requests
    lacking: Mask | None = None  # nodes that have nothing of it; None: there is none
    spare: Amounts | None = None  # what is free without the pod; None: not computed yet

    @property
    def requested(self) -> Amounts:
        """With the pod; another column each time."""
        return self.taken + self.amount

    @property
    def free(self) -> Amounts:
        """With the pod, below zero where it does not fit; another column each time."""
        spare = self.allocatable - self.taken if self.spare is None else self.spare
        return spare - self.amount


def is_extended(name: str) -> bool:
    """Whether a resource is not one of Kubernetes' own, such as example.com/gpu."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def pod_amount(pod: ClusterPod, name: str, *, nonzero: bool) -> int:
    """Return the request of a pod for a resource.

    nonzero: cpu and memory as loads are compared, with a default for containers without a request.
    """
    if nonzero and name in _NONZERO_DEFAULTS:
        return pod.spec.nonzero_cpu if name == "cpu" else pod.spec.nonzero_memory
    for each, amount in pod.spec.requests:
        if each == name:
            return amount
    return 0


def use_of_all(
    pod: ClusterPod, nodes: View, name: str, *, nonzero: bool, table: FreeResources | None = None
) -> UseColumns | None:
    """The use of a resource on all nodes.

    None: it does not count; no node has it, or it is not native and the pod does not request it.
    nonzero as for pod_amount. table: what is known of it; without one it is looked up in the view.
    """
    amount, column = pod_amount(pod, name, nonzero=nonzero), nodes.resources.get(name)
    if column is None or not _counts(name, amount):
        return None
    which = _NONZERO_DEFAULTS.get(name) if nonzero else None
    lacking = nodes.lacking(column)
    if table is not None and lacking is None:
        known = table.of(nodes, column, which)
        if known is not None:
            return UseColumns(known.allocatable, known.taken, amount, None, known.free)
    taken = nodes.requested[:, column] if which is None else nodes.nonzero_requested[:, which]
    return UseColumns(nodes.allocatable[:, column], taken, amount, lacking)


def use_of_node(
    pod: ClusterPod, nodes: View, row: int, name: str, *, nonzero: bool
) -> ResourceUse | None:
    """As use_of_all, of one node."""
    amount, column = pod_amount(pod, name, nonzero=nonzero), nodes.resources.get(name)
    if column is None or not _counts(name, amount):
        return None
    if nonzero and name in _NONZERO_DEFAULTS:
        requested = nodes.nonzero_requested_of(row)[_NONZERO_DEFAULTS[name]]
    else:
        requested = nodes.requested_of(row, column)
    return ResourceUse(nodes.allocatable_of(row, column), requested + amount)


def _counts(name: str, amount: int) -> bool:
    return name in _NATIVE or (amount > 0 and name not in _UNCOUNTED)


def resource_counts(pod: ClusterPod, name: str, *, nonzero: bool) -> bool:
    """Whether a resource counts for a pod on nodes that have some; arguments as for use_of_all."""
    return name in _NATIVE or _counts(name, pod_amount(pod, name, nonzero=nonzero))


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


def insufficient_resources(
    demand: ResourceRequests, nodes: View, table: FreeResources | None = None
) -> NDArray[np.int64] | None:
    """Return what each node lacks; shape (nodes,). 0: nothing. None: no node lacks anything.

    Bit k: there is too little of resource k of the demand. The bit above all of them: even without
    any pods, one of them would be too little. table: free amounts; without it they are computed.
    """
    found: NDArray[np.int64] | None = None
    never = 1 << len(demand)
    for bit, (name, amount) in enumerate(demand):
        column = nodes.resources.get(name)
        free = _free(nodes, column, table)
        if free.min(initial=amount) >= amount:
            continue
        if found is None:
            found = np.zeros(len(nodes), np.int64)
        found |= (free < amount) * (1 << bit)
        if column is None:
            found |= never
        elif name != PODS:
            found |= (nodes.allocatable[:, column] < amount) * never
    return found


def _free(nodes: View, column: int | None, table: FreeResources | None) -> Amounts:
    """Return the free amounts of a resource; less than any amount, if no node has it."""
    if column is None:
        return np.full(len(nodes), -1)
    known = None if table is None else table.of(nodes, column)
    if known is not None:
        return known.free
    return nodes.allocatable[:, column] - nodes.requested[:, column]


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
