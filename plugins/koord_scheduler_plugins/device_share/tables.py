"""The devices of all nodes of a view: equal nodes share one table, so each is looked at once."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from koord.api.devices.layout import (
    NO_DEVICES,
    NODE_LOCKS,
    DeviceLayout,
    DeviceTable,
    NodeDevices,
    NodeTraits,
)
from koord_scheduler.plugin import ClusterNode, ClusterPod, View, in_time
from koord_scheduler.plugin.koordinator import FrozenAccount, Pool
from koord_scheduler.plugin.vector import Mask
from koord_scheduler_plugins.device_share.allocated import DEVICES

MIN_TABLES = 1024  # kept; with more than this, and than four a node, all are made anew
MAX_KINDS = 128  # of requests of which answers are kept
NONE = 0  # code of nodes without a Device

Codes = NDArray[np.int32]
"""For each node the number of its table; shape (nodes,)."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Known:
    """A table, and what it was made of."""

    devices: NodeDevices | None
    node: ClusterNode
    pool: Pool
    missing: bool
    table: DeviceTable | None

    def of(self, devices: NodeDevices | None, node: ClusterNode, pool: Pool, missing: bool) -> bool:
        return (
            self.pool is pool
            and self.node is node
            and self.devices is devices
            and self.missing == missing
        )


class DeviceTables:
    """The tables of a profile's nodes. Belongs to one thread."""

    def __init__(self) -> None:
        self.devices: dict[str, NodeDevices] = {}
        """Devices by the name of the node."""
        self.unread: Collection[str] = ()
        """Names of Devices that cannot be understood; live."""
        self.expected: Callable[[ClusterPod, DeviceTable], Sequence[tuple[str, int]]] = _nothing
        """Devices of a pod on a node, by used_key, on which a what-if has put it."""
        self.locks: dict[str, tuple[str, ...]] = {}
        """Locks of nodes, for device plugins, by the name of the node; most have none."""
        self.epoch = 0
        """Another one once all tables were made anew: what is kept about old ones is of no use."""
        self._changes = 0
        self._gone: dict[str, None] = {}  # nodes whose Device was deleted
        self._known: dict[str, _Known] = {}
        self._tables: dict[Hashable, DeviceTable] = {}
        self._numbers: dict[DeviceTable | None, int] = {None: NONE}
        self._every: list[DeviceTable | None] = [None]
        self._codes: Codes = np.zeros(0, np.int32)
        self._last: tuple[Hashable, Any, Any] | None = None

    @property
    def version(self) -> Hashable:
        """Stands for all Devices: another one after each change of one."""
        return self._changes, tuple(self.unread)

    def changed(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        """Take note that a Device has come, changed or gone."""
        self._changes += 1
        if new is not None:
            self.devices[new.name] = new
            self._gone.pop(new.name, None)
        elif old is not None:
            self.devices.pop(old.name, None)
            self._gone[old.name] = None

    def table(self, nodes: View, row: int) -> DeviceTable | None:
        """Return the devices of a node; None: it has never had a Device object.

        Where the Device cannot be understood, was deleted, or is not there yet although pods have
        devices of the node, there are none to be given away.
        """
        node = nodes.node(row)
        name = node.name
        devices = self.devices.get(name)
        pool = nodes.account.pool(DEVICES, name)
        missing = devices is None and self._is_missing(name, pool)
        known = self._known.get(name)
        if known is None or not known.of(devices, node, pool, missing):
            table = None
            if devices is not None or missing:
                layout = NO_DEVICES if devices is None else devices.layout
                table = self._shared(layout, NodeTraits.of(node.labels), pool.allocated)
            known = self._known[name] = _Known(devices, node, pool, missing, table)
            if locks := tuple([text for key, text in node.annotations if key in NODE_LOCKS]):
                self.locks[name] = locks
            elif self.locks:
                self.locks.pop(name, None)
        if known.table is not None and row in nodes.altered:
            return self._with_expected(known.table, pool, nodes.pods(row))
        return known.table

    def _with_expected(
        self, table: DeviceTable, pool: Pool, pods: Sequence[ClusterPod]
    ) -> DeviceTable:
        """The devices that are left beside pods that are to come, as those nominated to a node."""
        used = dict(pool.allocated)
        for pod in pods:
            if not pod.node:
                for key, amount in self.expected(pod, table):
                    used[key] = used.get(key, 0) + amount
                table = self._shared(table.layout, table.node, used)
        return table

    def table_without(self, nodes: View, row: int, pod: ClusterPod) -> DeviceTable | None:
        """Return the devices of a node as if a pod that is on it had none of them."""
        account = nodes.account.with_pods([(pod, nodes.node(row).name)], ())
        return self.table_in(nodes, row, account)

    def table_in(self, nodes: View, row: int, account: FrozenAccount) -> DeviceTable | None:
        """Return the devices of a node where pods hold what an account says."""
        node = nodes.node(row)
        devices = self.devices.get(node.name)
        pool = account.pool(DEVICES, node.name)
        if devices is None and not self._is_missing(node.name, pool):
            return None
        layout = NO_DEVICES if devices is None else devices.layout
        return self._shared(layout, NodeTraits.of(node.labels), pool.allocated)

    def _is_missing(self, name: str, pool: Pool) -> bool:
        """Whether a node without a Device that can be read has, or had, one none the less."""
        return bool(pool.allocated) or name in self._gone or name in self.unread

    def codes(self, nodes: View) -> tuple[Codes, Sequence[DeviceTable | None]]:
        """Return the numbers of the tables of all nodes, and the tables by number.

        They are right until the next call.
        """
        if len(self._tables) > max(MIN_TABLES, 4 * len(nodes)):
            self._forget()
        last, version = self._last, self.version
        rows: Iterable[int]
        if last is not None and last[0] == version and last[1] is nodes.traits:
            rows = nodes.generations.other_rows(last[2])
        else:
            self._codes, rows = np.zeros(len(nodes), np.int32), range(len(nodes))
            self._prune(nodes)
        for row in rows:
            table = self.table(nodes, row)
            number = self._numbers.get(table)
            if number is None:
                number = self._numbers[table] = len(self._every)
                self._every.append(table)
            self._codes[row] = number
        self._last = version, nodes.traits, nodes.generations
        return self._codes, self._every

    def _prune(self, nodes: View) -> None:
        """Keep nothing of nodes that have gone."""
        names = nodes.traits.rows
        if len(self._known) > len(names):
            self._known = {name: each for name, each in self._known.items() if name in names}
        for kept in (self._gone, self.locks):
            for name in [name for name in kept if name not in names]:
                del kept[name]

    def _shared(
        self, layout: DeviceLayout, traits: NodeTraits, used: Mapping[str, int]
    ) -> DeviceTable:
        key = layout, traits, frozenset(used.items())
        found = self._tables.get(key)
        if found is None:
            found = self._tables[key] = DeviceTable(layout, traits, used.items())
        return found

    def counted(self) -> Sequence[tuple[DeviceTable, int]]:
        """Return the tables of the view of the last codes, and how many nodes have each.

        Any thread may ask.
        """
        codes, every = self._codes, self._every
        counts = np.bincount(codes, minlength=len(every)).tolist()
        pairs = zip(every, counts, strict=False)
        return [(table, count) for table, count in pairs if table is not None and count]

    def _forget(self) -> None:
        self.epoch += 1
        self._tables.clear()
        self._known.clear()
        self._numbers, self._every, self._last = {None: NONE}, [None], None


def _nothing(pod: ClusterPod, table: DeviceTable) -> Sequence[tuple[str, int]]:
    return ()


class ResponseCache(Generic[T]):
    """Responses about tables, by what was asked: pods that request the same get the same."""

    def __init__(self, tables: DeviceTables) -> None:
        self._tables = tables
        self._epoch = tables.epoch
        self._kept: dict[Hashable, dict[DeviceTable, T]] = {}

    def of(self, asked: Hashable) -> dict[DeviceTable, T]:
        """The answers to a question, to be added to."""
        if self._epoch != self._tables.epoch:
            self._epoch = self._tables.epoch
            self._kept.clear()
        found = self._kept.pop(asked, None)
        if found is None:
            found = {}
            while len(self._kept) >= MAX_KINDS:
                del self._kept[next(iter(self._kept))]
        self._kept[asked] = found  # the last one now
        return found


def each_once(
    codes: Codes, tables: Sequence[DeviceTable | None], answer: Callable[[DeviceTable], int]
) -> NDArray[np.int64]:
    """Return a number for each node, asked for once for each table; 0: it has none."""
    present: Mask = np.bincount(codes, minlength=len(tables)) > 0
    numbers = np.zeros(len(tables), np.int64)
    for code in in_time(np.flatnonzero(present).tolist()):
        table = tables[code]
        if table is not None:
            numbers[code] = answer(table)
    found: NDArray[np.int64] = numbers[codes]
    return found
