"""All nodes as pods find them: one Machine each, and columns for what needs no trial."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koord_scheduler.plugin import ClusterPod, View
from koord_scheduler.plugin.koordinator import NUMATopologyPolicy
from koord_scheduler_plugins.node_numa_resource.accumulator import BindPolicy
from koord_scheduler_plugins.node_numa_resource.holdings import (
    NO_ALLOCATION,
    NUMA_HOLDINGS,
    RESOURCE_STATUS,
    Allocation,
    annotation,
    exclusive_policy,
    with_allocation,
)
from koord_scheduler_plugins.node_numa_resource.layout import CpuLayout
from koord_scheduler_plugins.node_numa_resource.machine import Machine
from koord_scheduler_plugins.node_numa_resource.topology import NO_REPORT, MachineReport

_POLICIES = {one: number for number, one in enumerate(NUMATopologyPolicy, 1)}
_BINDS = {one: number for number, one in enumerate(BindPolicy, 1)}
BEST_EFFORT = _POLICIES[NUMATopologyPolicy.BEST_EFFORT]

_COLUMNS = np.dtype(
    [
        ("free", np.int32),  # CPUs that a pod could have
        ("whole", np.int32),  # those of whole cores
        ("cores", np.int32),  # cores with at least one
        ("threads", np.int32),  # of a core; 0: the topology is not known
        ("uneven", np.bool_),  # cores differ in their threads
        ("bound", np.int32),  # CPUs that pods have
        ("bind", np.int8),  # 0: none; otherwise the place of a BindPolicy
        ("policy", np.int8),  # 0: none; otherwise the place of a NUMATopologyPolicy
        ("left", np.int64),  # milli-cores of all NUMA nodes
        ("memory", np.int64),  # bytes of all NUMA nodes
        ("most", np.int64),  # milli-cores of the NUMA node that has most
        ("ratio", np.float64),  # of CPUs, 1 or more; NaN: not readable
    ]
)
Column = NDArray[Any]
NO_ZONES = -1  # in left and most, of a node without NUMA nodes


class MachineTable:
    """Machines by row of a view, and their columns. Belongs to one event loop.

    What follows depends on the rows' generations and on version, on nothing else.
    """

    def __init__(self) -> None:
        self.version = 0  # grows when NodeResourceTopology objects change
        self.expected: Callable[[ClusterPod, Machine], Allocation] = _nothing
        """What a pod would get of a node on which a what-if has put it."""
        self._reports: dict[str, MachineReport] = {}
        self._stale: set[str] = set()  # nodes whose report has changed
        self._machines: list[Machine | None] = []
        self._rows: dict[str, int] = {}
        self._columns = np.zeros(0, _COLUMNS)
        self.has_special = False
        """Whether a node asks something of pods that ask for nothing, or amplifies its CPUs."""
        self.has_policy = False
        """Whether a node has a NUMA policy."""
        self.is_amplified = False
        self._view: View | None = None
        self._passed_over: tuple[int, ...] = ()  # changed rows that the view had altered
        self._is_special_known = False  # whether no column has changed since that was looked for
        self._imagined: dict[int, tuple[int, Machine]] = {}  # by row: of what-ifs

    def take_report(self, old: MachineReport | None, new: MachineReport | None) -> None:
        """A NodeResourceTopology has come, changed or gone."""
        name = (new or old or NO_REPORT).name
        if new is None:
            self._reports.pop(name, None)
        elif self._reports.get(name) == new:
            return
        else:
            self._reports[name] = new
        self._stale.add(name)
        self.version += 1

    def follow(self, nodes: View, most: int | None = None) -> bool:
        """Take over at most so many rows that have changed; return whether that is all of them."""
        if not self._stale and (nodes is self._view or self._is_known(nodes)):
            return True
        if len(self._machines) != len(nodes):
            self._resize(len(nodes))
        changed = self._changed(nodes)
        if changed or self._passed_over:
            for row in changed[:most]:
                if row not in nodes.altered:
                    self._place(nodes, row)
            self._passed_over = tuple([row for row in changed if row in nodes.altered])
        if not self._is_special_known:
            self._look_for_special()
        complete = most is None or len(changed) <= most
        self._view = nodes if complete else None
        if complete:
            self._stale.clear()
        return complete

    def _is_known(self, nodes: View) -> bool:
        """Whether nothing differs from the view that was followed last: most pods hold nothing.

        Then it is the one that was followed last.
        """
        last = self._view
        if (
            last is None
            or self._passed_over
            or nodes.account is not last.account
            or nodes.node_column is not last.node_column
        ):
            return False
        self._view = nodes
        return True

    def column(self, name: str) -> Column:
        """A column of the nodes of the view that was followed last; only to be read."""
        found: Column = self._columns[name]
        return found

    def machine(self, nodes: View, row: int) -> Machine:
        """The node of a row, after follow; in a what-if with its pods."""
        found = self._machines[row]
        if row not in nodes.altered:
            assert found is not None  # noqa: S101 - follow has made it
            return found
        generation, last = int(nodes.generations[row]), self._imagined.get(row)
        node = nodes.node(row)
        pool = nodes.account.pool(NUMA_HOLDINGS, node.name)
        waiting = [pod for pod in nodes.pods(row) if _is_waiting(pod)]
        if not waiting and found is not None and found.node is node and found.pool is pool:
            return found
        report = self._reports.get(node.name, NO_REPORT)
        if last is not None and last[0] == generation and last[1].report is report:
            return last[1]
        imagined = Machine(node, report, pool)
        for pod in waiting:
            taken = self.expected(pod, imagined)
            more = with_allocation(imagined.pool, taken, exclusive_policy(pod))
            imagined = Machine(node, report, more)
        if len(self._imagined) >= len(nodes):
            self._imagined.clear()
        self._imagined[row] = generation, imagined
        return imagined

    def without(self, nodes: View, row: int, pod: ClusterPod) -> Machine:
        """The node of a row without what one of its pods holds."""
        account = nodes.account.with_pods([(pod, nodes.node(row).name)], [])
        pool = account.pool(NUMA_HOLDINGS, nodes.node(row).name)
        machine = self.machine(nodes, row)
        return Machine(machine.node, machine.report, pool)

    def report_of(self, name: str) -> MachineReport:
        return self._reports.get(name, NO_REPORT)

    def _resize(self, count: int) -> None:
        self._machines = self._machines[:count] + [None] * (count - len(self._machines))
        self._columns = np.resize(self._columns, count)
        self._is_special_known = False
        self._imagined.clear()
        self._rows = {}
        for row, machine in enumerate(self._machines):
            if machine is None:
                self._columns[row] = _NO_MACHINE
            else:
                self._rows[machine.node.name] = row

    def _changed(self, nodes: View) -> list[int]:
        """Rows that are not as they were placed last, as far as that costs little to say."""
        last = self._view
        if last is not None:
            found = nodes.node_column.other_rows(last.node_column)
            names = self._stale
            if nodes.account is not last.account:
                names = names.union(nodes.account.other_pools(NUMA_HOLDINGS, last.account))
            named = [row for name in names if (row := nodes.row(name)) is not None]
            return [row for row in (*found, *named, *self._passed_over) if row < len(nodes)]
        return [
            row
            for row, machine in enumerate(self._machines)
            if not self._is_current(machine, nodes, row)
        ]

    def _is_current(self, machine: Machine | None, nodes: View, row: int) -> bool:
        if machine is None or machine.node is not nodes.node(row):
            return False
        name = machine.node.name
        return machine.pool is nodes.account.pool(NUMA_HOLDINGS, name) and (
            machine.report is self.report_of(name)
        )

    def _place(self, nodes: View, row: int) -> None:
        if self._is_current(self._machines[row], nodes, row):
            return
        node = nodes.node(row)
        pool = nodes.account.pool(NUMA_HOLDINGS, node.name)
        machine = self._machines[row] = Machine(node, self.report_of(node.name), pool)
        self._rows[node.name] = row
        rules = machine.rules
        ratio = float("nan") if rules.ratios is None else rules.cpu_ratio
        bind = 0 if rules.bind is None else _BINDS[rules.bind]
        policy = 0 if rules.policy is None else _POLICIES[rules.policy]
        self._columns[row] = (
            *_free_counts(machine),
            machine.layout.cpus_per_core,
            not machine.layout.uniform,
            machine.bound_cpus,
            bind,
            policy,
            machine.left("cpu") if machine.zones else NO_ZONES,
            machine.left("memory") if machine.zones else NO_ZONES,
            machine.most_left_cpu if machine.zones else NO_ZONES,
            ratio,
        )
        self._is_special_known = False

    def _look_for_special(self) -> None:
        self._is_special_known = True
        columns = self._columns
        self.has_policy = bool(columns["policy"].any())
        self.is_amplified = bool((columns["ratio"] != 1).any())
        self.has_special = self.has_policy or self.is_amplified or bool(columns["bind"].any())


def _nothing(pod: ClusterPod, machine: Machine) -> Allocation:
    return NO_ALLOCATION


def _is_waiting(pod: ClusterPod) -> bool:
    """Whether a pod is only nominated to a node, and has not been given anything there."""
    return not pod.node and not pod.finished and not annotation(pod, RESOURCE_STATUS)


_NO_MACHINE = np.array([(0, 0, 0, 0, False, 0, 0, 0, 0, 0, 0, 1.0)], _COLUMNS)[0]


def _free_counts(machine: Machine) -> tuple[int, int, int]:
    """Free CPUs, those of whole cores, and cores with at least one."""
    if not machine.use.counts:  # as most nodes of a cluster, which are of few kinds
        return _counts(machine.layout, machine.report.reserved)
    return _counted(machine.layout, machine.free)


@lru_cache(maxsize=256)
def _counts(layout: CpuLayout, reserved: frozenset[int]) -> tuple[int, int, int]:
    return _counted(layout, layout.all - reserved)


def _counted(layout: CpuLayout, free: frozenset[int]) -> tuple[int, int, int]:
    whole = cores = 0
    for cpus in layout.cores.values():
        there = sum([cpu in free for cpu in cpus])
        cores += there > 0
        whole += there if there == len(cpus) else 0
    return len(free), whole, cores


def bind_number(policy: BindPolicy | None) -> int:
    """The place of a policy in the column bind; 0: none."""
    return 0 if policy is None else _BINDS[policy]


def policy_number(policy: NUMATopologyPolicy | None) -> int:
    """The place of a policy in the column policy; 0: none."""
    return 0 if policy is None else _POLICIES[policy]
