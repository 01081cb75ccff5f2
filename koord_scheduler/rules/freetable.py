"""What all nodes have free, kept from one view to the next."""

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import FrozenColumn
from koord.cluster.view import View

_FEW_ROWS = 16  # that are written one by one sooner than the whole table
_NONZERO = ("cpu", "memory")  # columns before those of the resources: see View.nonzero_requested


class FreeTable:
    """Free amounts of all nodes as floats, one contiguous column for each resource.

    Follows views, of what-ifs too, each at the cost of its differences to the one before: a pod
    more on a node is one row, while the table of a view is joined anew. Belongs to one thread.
    """

    def __init__(self) -> None:
        self._seen: FrozenColumn | None = None  # generations of the rows that are in the table
        self._resources: object = None
        self._table = np.zeros((0, 0))

    def free(self, nodes: View, column: int) -> NDArray[np.float64] | None:
        """What is allocatable and not requested, below zero if overcommitted; shape (nodes,).

        Not to be changed, or kept. None: amounts of this resource are too large to be exact.
        """
        if nodes.floats(column) is None:
            return None
        self._follow(nodes)
        found: NDArray[np.float64] = self._table[len(_NONZERO) + column]
        return found

    def nonzero_free(self, nodes: View, which: int) -> NDArray[np.float64] | None:
        """As free, of cpu, 0, or memory, 1, requested as in View.nonzero_requested."""
        if nodes.floats(nodes.resources[_NONZERO[which]]) is None:
            return None
        self._follow(nodes)
        found: NDArray[np.float64] = self._table[which]
        return found

    def _follow(self, nodes: View) -> None:
        generations = nodes.generations
        if generations is self._seen:
            return
        rows = generations.other_rows(self._seen)
        shape = len(_NONZERO) + len(nodes.resources), len(nodes)
        if (
            self._resources is not nodes.resources
            or self._table.shape != shape
            or len(rows) > _FEW_ROWS
        ):
            self._fill(nodes, shape)
        else:
            for row in rows:
                self._table[:, row] = nodes.free_of(row)
        self._seen, self._resources = generations, nodes.resources

    def _fill(self, nodes: View, shape: tuple[int, int]) -> None:
        self._table = table = np.empty(shape)
        np.subtract(nodes.allocatable, nodes.requested, out=table[len(_NONZERO) :].T)
        for which, name in enumerate(_NONZERO):
            there = nodes.allocatable[:, nodes.resources[name]]
            np.subtract(there, nodes.nonzero_requested[:, which], out=table[which])
