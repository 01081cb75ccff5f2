"""Which of the resources that a pod requests nodes have too little of.

Source: Kubernetes, plugins/noderesources/fit.go (fitsRequest).
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from koord.cluster.facts import PODS, PodSpec
from koord.cluster.view import View
from koord_scheduler.rules.freetable import FreeTable
from koord_scheduler.rules.resourceuse import Amounts

Demand = Sequence[tuple[str, int]]
"""What a node must have free: name and amount, in the order in which reasons name them."""

_FIRST = (PODS, "cpu", "memory", "ephemeral-storage")


def demand_of(spec: PodSpec, ignored: Callable[[str], bool]) -> Demand:
    """The demand of pods with this spec, of which some resources may be ignored."""
    asked = dict(spec.requests)
    asked[PODS] = asked.get(PODS, 1)
    first = [(name, asked.pop(name)) for name in _FIRST if name in asked]
    if asked:
        first += [one for one in asked.items() if not ignored(one[0])]
    return first


def shortages(
    demand: Demand, nodes: View, table: FreeTable | None = None
) -> NDArray[np.int64] | None:
    """What each node lacks; shape (nodes,). 0: nothing. None: no node lacks anything.

    Bit k: there is too little of resource k of the demand. The bit above all of them: of one there
    would be too little even without any pods. table: what is free; without it that is computed.
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


def _free(nodes: View, column: int | None, table: FreeTable | None) -> Amounts:
    """What is free of a resource; less than any amount, if no node has it."""
    if column is None:
        return np.full(len(nodes), -1)
    known = None if table is None else table.of(nodes, column)
    if known is not None:
        return known.free
    return nodes.allocatable[:, column] - nodes.requested[:, column]


def shortage_at(demand: Demand, nodes: View, row: int) -> int:
    """As shortages, of one node."""
    found, never = 0, False
    for bit, (name, amount) in enumerate(demand):
        column = nodes.resources.get(name)
        allocatable = 0 if column is None else nodes.allocatable_of(row, column)
        requested = 0 if column is None else nodes.requested_of(row, column)
        if allocatable - requested < amount:
            found |= 1 << bit
            never = never or (name != PODS and allocatable < amount)
    return found | never << len(demand)
