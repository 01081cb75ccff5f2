"""What drivers can still provide of each class, as columns. The same as provisioning's plain form.

One object for each node is common; most of them change once a minute.
"""

import numpy as np

from koord_scheduler.plugin import Mask, View
from koord_scheduler.plugin.storage import (
    FrozenCapacities,
    NodeTerm,
    StorageCapacity,
    StorageObjects,
    matches_terms,
)
from koord_scheduler_plugins.volume_binding.nodegroups import NodeGroups

_ROOM = 64  # slots that a table begins with


class CapacityTables:
    """Capacities by class, followed at the cost of what changes. Belongs to one thread."""

    def __init__(self) -> None:
        self._seen: FrozenCapacities | None = None
        self._tables: dict[str, CapacityTable] = {}

    def has_space(self, storage: StorageObjects, name: str, size: int, nodes: View) -> Mask:
        """Nodes from which so many bytes of a class can be reached in one piece."""
        self._follow(storage.capacities.freeze())
        table = self._tables.get(name)
        return np.zeros(len(nodes), np.bool_) if table is None else table.has_space(size, nodes)

    def _follow(self, now: FrozenCapacities) -> None:
        seen = self._seen
        if now is seen:
            return
        for key in now.other_keys(seen):
            old, new = (None if seen is None else seen.get(key)), now.get(key)
            if old is not None and (new is None or new.storage_class != old.storage_class):
                self._tables[old.storage_class].drop(key)
            if new is not None:
                self._tables.setdefault(new.storage_class, CapacityTable()).put(new)
        self._seen = now


class CapacityTable:
    """The capacities of one class."""

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}  # by key
        self._unused: list[int] = []
        self._count = 0
        self._limits = np.full(_ROOM, -1, np.int64)  # bytes; -1: nothing
        self._group = np.zeros(_ROOM, np.intp)
        self._groups = NodeGroups()

    def put(self, capacity: StorageCapacity) -> None:
        """Take over a capacity."""
        slot = self._slots.get(capacity.key)
        if slot is None:
            slot = self._slots[capacity.key] = self._new_slot()
        limit = capacity.limit
        self._limits[slot] = -1 if limit is None or capacity.nodes is None else limit
        self._group[slot] = self._groups.of((NodeTerm(capacity.nodes or ()),))

    def drop(self, key: str) -> None:
        """Forget a capacity."""
        slot = self._slots.pop(key)
        self._limits[slot] = -1
        self._unused.append(slot)

    def has_space(self, size: int, nodes: View) -> Mask:
        """Nodes from which so many bytes can be reached in one piece."""
        enough = np.zeros(len(self._groups), np.bool_)
        enough[self._group[: self._count][self._limits[: self._count] >= max(size, 0)]] = True
        reached = np.zeros(len(nodes), np.bool_)
        for column, groups, codes in self._groups.by_label(nodes):
            table = np.zeros(len(column.index) + 1, np.bool_)
            table[codes] = enough[groups]
            reached |= table[column.codes]
        for group, terms in self._groups.others.items():
            if enough[group] and terms is not None:
                reached |= matches_terms(terms, nodes)
        return reached

    def _new_slot(self) -> int:
        if self._unused:
            return self._unused.pop()
        if self._count == len(self._limits):
            self._limits = np.concatenate((self._limits, np.full(self._count, -1, np.int64)))
            self._group = np.concatenate((self._group, np.zeros(self._count, np.intp)))
        self._count += 1
        return self._count - 1
