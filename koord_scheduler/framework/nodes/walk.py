"""Statuses of nodes, noted while Filter goes from plugin to plugin."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from koord.cluster.columns import Mask
from koord_scheduler.framework.calls import Loaded
from koord_scheduler.framework.diagnosis import ABSENT, FEASIBLE, NO_STATUS, NodeStatuses
from koord_scheduler.framework.interfaces import Filtering
from koord_scheduler.framework.nodes.forms import Rows
from koord_scheduler.framework.results import Numbers, Verdicts
from koord_scheduler.framework.status import Status


class Walk:
    """Statuses of nodes while Filter goes over them."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._numbers: Numbers | None = None  # None: no node was looked at
        self._feasible: Mask | None = None  # where it is known beside the numbers
        self._statuses: list[Status] = []

    @property
    def numbers(self) -> Numbers:
        """The status of each node, as in NodeStatuses."""
        if self._numbers is None:
            self._numbers = np.full(self._nodes, ABSENT, np.int32)
        return self._numbers

    @property
    def count(self) -> int:
        """How many statuses there are."""
        return len(self._statuses)

    @property
    def rejections(self) -> Sequence[Status]:
        """The statuses, by number."""
        return self._statuses

    def begin_with_all(self, first: Numbers, statuses: Sequence[Status], feasible: Mask) -> None:
        """As begin, of all nodes, while there is no status.

        feasible: those that none rejects; it is never written.
        """
        self._numbers, self._feasible = first.copy(), feasible
        self._statuses += statuses

    def begin(self, first: Numbers, statuses: Sequence[Status], wanted: Mask) -> None:
        """Take over the first rejections of the nodes that are wanted."""
        before = len(self._statuses)
        numbers = first if not before else np.where(first, first + before, 0)
        np.copyto(self.numbers, numbers, where=wanted, casting="same_kind")
        self._statuses += statuses

    def take(self, verdicts: Verdicts | Mask, loaded: Loaded, alive: Mask) -> bool:
        """Note a plugin's verdicts about nodes that are alive; return whether it rejected some."""
        self._feasible = None
        if not isinstance(verdicts, Verdicts):
            rejected = alive > verdicts
            if not rejected.any():
                return False
            plugin = cast(Filtering, loaded.plugin)
            self.reject(rejected, plugin.rejection.of(loaded.name))
            alive ^= rejected
            return True
        rejected = verdicts.numbers != 0
        rejected &= alive
        if not rejected.any():
            return False
        numbers = verdicts.numbers + len(self._statuses)
        np.copyto(self.numbers, numbers, where=rejected, casting="same_kind")
        self._statuses += verdicts.rejections
        alive ^= rejected
        return True

    def reject(self, row: int | Mask, status: Status) -> None:
        self._feasible = None
        self._statuses.append(status)
        self.numbers[row] = len(self._statuses)

    def leave_out_beyond(self, order: Rows, need: int) -> int:
        """Have only so many feasible nodes, the first in this order.

        Returns the number of nodes up to the last of them; all, if there are not so many.
        """
        self._feasible = None
        places = np.flatnonzero(self.numbers[order] == FEASIBLE)
        if len(places) < need:
            return len(order)
        self.numbers[order[places[need:]]] = ABSENT
        return int(places[need - 1]) + 1

    def statuses(self, absent: Status = NO_STATUS) -> NodeStatuses:
        return NodeStatuses(self.numbers, tuple(self._statuses), absent, self._feasible)
