"""Predicates about single nodes: resources, flags, taints, labels, ports and volumes."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from koord.api.labelselector import Requirement
from koord.cluster.columns import CodedColumn, FrozenColumn, Mask
from koord.cluster.facts import (
    PODS,
    PREFER_NO_SCHEDULE,
    ClusterNode,
    ClusterPod,
    HostPort,
    NodeTerm,
    PodSpec,
    PreferredTerm,
    Taint,
)
from koord.cluster.selectors import NODE_NAME, whole_number
from koord.cluster.view import View
from koord.util.timebudget import in_time

UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "NoSchedule")
_REPELLING = ("NoSchedule", "NoExecute")


def is_read(pod: ClusterPod, view: View) -> Mask:
    """All nodes, if the pod could be read in full; else none; shape (nodes,)."""
    return np.full(len(view), not pod.spec.unread)


def is_schedulable(pod: ClusterPod, view: View) -> Mask:
    """Nodes that are not cordoned; all of them for a pod that tolerates that; shape (nodes,).

    It may not be written.
    """
    if any(one.tolerates(UNSCHEDULABLE) for one in pod.spec.tolerations):
        return np.ones(len(view), np.bool_)
    return view.traits.schedulable


def tolerates_taints(pod: ClusterPod, view: View) -> Mask:
    """Nodes all of whose taints NoSchedule and NoExecute the pod tolerates; shape (nodes,)."""
    return view.traits.taints.where(lambda taints: tolerates(pod.spec, taints))


def untolerated_preferences(pod: ClusterPod, view: View) -> NDArray[np.int64]:
    """How many taints PreferNoSchedule of each node the pod does not tolerate; shape (nodes,)."""
    return view.traits.taints.numbers(lambda taints: intolerable_preferences(pod.spec, taints))


def has_name(pod: ClusterPod, view: View) -> Mask:
    """The node that the pod's spec names; all nodes, if it names none; shape (nodes,)."""
    if not pod.node:
        return np.ones(len(view), np.bool_)
    named = np.zeros(len(view), np.bool_)
    row = view.row(pod.node)
    if row is not None:
        named[row] = True
    return named


def matches_node_affinity(pod: ClusterPod, view: View) -> Mask:
    """Nodes that the node selector and the required node affinity allow; shape (nodes,)."""
    allowed = np.ones(len(view), np.bool_)
    for requirement in in_time(pod.spec.node_selector):
        allowed &= _matches(requirement, view.traits.label(requirement.key))
    if pod.spec.node_terms is not None:
        allowed &= matches_terms(pod.spec.node_terms, view)
    return allowed


def matches_terms(terms: Collection[NodeTerm], view: View) -> Mask:
    """Nodes that at least one of the terms matches; without any, none; shape (nodes,)."""
    matched = np.zeros(len(view), np.bool_)
    for term in in_time(terms):
        every = np.ones(len(view), np.bool_)
        for requirement in in_time(term.labels):
            every &= _matches(requirement, view.traits.label(requirement.key))
        for requirement in in_time(term.names):
            every &= _matches(requirement, view.traits.names)
        matched |= every
    return matched


def preferences_met(terms: Collection[PreferredTerm], view: View) -> NDArray[np.int64]:
    """The sum of the weights of the terms that match each node; shape (nodes,)."""
    found = np.zeros(len(view), np.int64)
    for one in in_time(terms):
        found += one.weight * matches_terms((one.term,), view)
    return found


def affinity_allows(spec: PodSpec, node: ClusterNode) -> bool:
    """Whether the node selector and the required node affinity of a spec allow one node."""
    return all(one.matches(node.labels) for one in spec.node_selector) and (
        spec.node_terms is None or node_matches_terms(spec.node_terms, node)
    )


def term_matches(term: NodeTerm, node: ClusterNode) -> bool:
    """Whether a term matches a node."""
    name = {NODE_NAME: node.name}
    return all(_holds(one, node.labels) for one in term.labels) and all(
        one.matches(name) for one in term.names
    )


def tolerates(spec: PodSpec, taints: Iterable[Taint]) -> bool:
    """Whether a pod tolerates all NoSchedule and NoExecute taints of a node."""
    return all(
        taint.effect not in _REPELLING
        or any(one.tolerates(taint) for one in in_time(spec.tolerations))
        for taint in taints
    )


def intolerable_preferences(spec: PodSpec, taints: Iterable[Taint]) -> int:
    """How many taints PreferNoSchedule of a node a pod does not tolerate."""
    return sum(
        taint.effect == PREFER_NO_SCHEDULE
        and not any(one.tolerates(taint) for one in in_time(spec.tolerations))
        for taint in taints
    )


def node_matches_terms(terms: Iterable[NodeTerm], node: ClusterNode) -> bool:
    """Whether at least one of the terms matches a node: the plain form of matches_terms."""
    return any(term_matches(term, node) for term in terms)


def _matches(requirement: Requirement, column: CodedColumn[str]) -> Mask:
    """Return the nodes that match a requirement.

    NotIn and DoesNotExist match an absent label, Gt and Lt do not, as in Kubernetes.
    """
    operator = requirement.operator
    if operator == "In":
        return column.among(requirement.values)
    if operator == "NotIn":
        return ~column.among(requirement.values)
    if operator == "Exists":
        return column.present
    if operator == "DoesNotExist":
        return ~column.present
    bound = whole_number(requirement.values[0])
    assert bound is not None  # noqa: S101 - terms with another are left out
    above = operator == "Gt"
    return column.where(lambda text: _beyond(whole_number(text), bound, above=above))


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    operator = requirement.operator
    if operator not in ("Gt", "Lt"):
        return requirement.matches(labels)
    number = whole_number(labels.get(requirement.key, ""))
    bound = whole_number(requirement.values[0])
    assert bound is not None  # noqa: S101 - terms with another are left out
    return _beyond(number, bound, above=operator == "Gt")


def _beyond(number: int | None, bound: int, *, above: bool) -> bool:
    if number is None:
        return False
    return number > bound if above else number < bound


def has_free_ports(pod: ClusterPod, view: View) -> Mask:
    """Nodes on which no pod has a host port that this one needs; shape (nodes,)."""
    wanted = pod.spec.host_ports
    if not wanted:
        return np.ones(len(view), np.bool_)
    return view.ports_where(lambda taken: not ports_conflict(wanted, taken))


def ports_conflict(some: Collection[HostPort], others: Iterable[HostPort]) -> bool:
    """Whether one of the ports conflicts with one of the others."""
    taken: dict[tuple[int, str], list[HostPort]] = {}
    for one in others:
        taken.setdefault((one.port, one.protocol), []).append(one)
    return any(
        one.conflicts(other)
        for one in in_time(some)
        for other in taken.get((one.port, one.protocol), ())
    )


def reaches_volumes(pod: ClusterPod, view: View) -> Mask:
    """Nodes that can reach all volumes to which the pod's claims are bound; shape (nodes,).

    A claim, or a volume of one, that is not known is out of reach of all nodes. A claim that is
    not bound yet allows all of them.
    """
    allowed = np.ones(len(view), np.bool_)
    for name in in_time(pod.claims):
        claim = view.claim(pod.namespace, name)
        if claim is None:
            return np.zeros(len(view), np.bool_)
        if not claim.volume:
            continue
        volume = view.volume(claim.volume)
        if volume is None:
            return np.zeros(len(view), np.bool_)
        if volume.node_terms is not None:
            allowed &= matches_terms(volume.node_terms, view)
    return allowed


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
    for name, amount in spec.requests:
        column = resources.get(name)
        if column is None:
            return np.zeros(len(enough), np.bool_)
        enough &= free(column) >= amount
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
