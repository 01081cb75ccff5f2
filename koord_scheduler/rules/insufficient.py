"""Which of the resources that a pod requests nodes have too little of.

Source: Kubernetes, plugins/noderesources/fit.go (fitsRequest).
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from koord.cluster.facts import PODS, PodSpec
from koord.cluster.view import View

Demand = Sequence[tuple[str, int]]
"""What a node must have free: name and amount, in the order in which reasons name them."""

_FIRST = (PODS, "cpu", "memory", "ephemeral-storage")


def demand_of(spec: PodSpec, ignored: Callable[[str], bool]) -> Demand:
    """The demand of pods with this spec, of which some resources may be ignored."""
    asked = {PODS: 1, **dict(spec.requests)}
    first = [(name, asked.pop(name)) for name in _FIRST if name in asked]
    return [*first, *(one for one in asked.items() if not ignored(one[0]))]


def shortages(demand: Demand, nodes: View) -> NDArray[np.int64] | None:
    """What each node lacks; shape (nodes,). 0: nothing. None: no node lacks anything.

    Bit k: there is too little of resource k of the demand. The bit above all of them: of one there
    would be too little even without any pods.
    """
    found: NDArray[np.int64] | None = None
    never = np.zeros(len(nodes), np.bool_)
    allocatable, requested = nodes.allocatable, nodes.requested
    for bit, (name, amount) in enumerate(demand):
        column = nodes.resources.get(name)
        if column is None:
            lacking = np.ones(len(nodes), np.bool_)
            never[:] = True
        else:
            there = allocatable[:, column]
            lacking = there - requested[:, column] < amount
            if not lacking.any():
                continue
            if name != PODS:
                never |= there < amount
        if found is None:
            found = np.zeros(len(nodes), np.int64)
        found += lacking * (1 << bit)
    if found is not None and never.any():
        found += never * (1 << len(demand))
    return found


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
