"""What a pod finds on nodes where nothing has to be tried: of one node, and of all at once."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from koord_scheduler.plugin import ClusterPod, NodeInfo, Status, View
from koord_scheduler.plugin.koordinator import NUMATopologyPolicy
from koord_scheduler.plugin.vector import Mask, Numbers, Scores, use_of_all, uses_of_node
from koord_scheduler_plugins.node_numa_resource.accumulator import NOT_ENOUGH, BindPolicy
from koord_scheduler_plugins.node_numa_resource.allocation import Need, allocate
from koord_scheduler_plugins.node_numa_resource.hints import AmountScorer
from koord_scheduler_plugins.node_numa_resource.machine import Machine
from koord_scheduler_plugins.node_numa_resource.pods import (
    BINDS_DIFFER,
    NO_AMPLIFIED_CPU,
    NO_NUMA_NODES,
    NO_RATIO,
    NO_TOPOLOGY,
    NO_WHOLE_CORES,
    NO_WHOLE_CPUS,
    POLICIES_DIFFER,
    Wish,
    need_on,
)
from koord_scheduler_plugins.node_numa_resource.table import (
    BEST_EFFORT,
    NO_ZONES,
    MachineTable,
    bind_number,
    policy_number,
)
from koord_scheduler_plugins.node_numa_resource.topology import amplify

TOO_FEW = Status.unschedulable(NOT_ENOUGH)
TOO_LITTLE = Status.unschedulable("Insufficient NUMA cpu")
TOO_LITTLE_MEMORY = Status.unschedulable("Insufficient NUMA memory")

# In the order in which they are looked for.
REJECTIONS = (
    POLICIES_DIFFER,
    NO_WHOLE_CPUS,
    NO_RATIO,
    NO_AMPLIFIED_CPU,
    NO_TOPOLOGY,
    BINDS_DIFFER,
    NO_WHOLE_CORES,
    TOO_FEW,
    NO_NUMA_NODES,
    TOO_LITTLE,
    TOO_LITTLE_MEMORY,
)
_NUMBERS = {status: number for number, status in enumerate(REJECTIONS, 1)}

_CPU, _MEMORY = "cpu", "memory"
_FULL, _SPREAD = bind_number(BindPolicy.FULL_PCPUS), bind_number(BindPolicy.SPREAD_BY_PCPUS)
_MANY = 64  # nodes that are tried whatever they have, so that the reasons are those of the trial


def whole_node_status(
    wish: Wish,
    policy: NUMATopologyPolicy | None,
    machine: Machine,
    node: NodeInfo,
    *,
    most: bool,
) -> Status | None:
    """Why a pod cannot be on a node whatever its NUMA nodes are; None: it can."""
    need = need_on(wish, machine)
    if need is NO_WHOLE_CPUS:
        return NO_WHOLE_CPUS
    binds = wish.binds or (machine.rules.bind is not None and wish.milli_cpu > 0)
    found = _amplified_status(wish.milli_cpu, machine, node, binds=binds)
    if found is not None:
        return found
    if isinstance(need, Status):
        return need
    if need.cpus:
        if _free_count(machine, need.required_policy) < need.cpus:
            return TOO_FEW
        if need.required_policy is not None and not machine.layout.uniform and policy is None:
            trial = allocate(machine, need, None, most=most)
            return trial if isinstance(trial, Status) else None
    if policy is not None and not machine.zones:
        return NO_NUMA_NODES
    if policy is NUMATopologyPolicy.BEST_EFFORT:
        if not need.cpus and wish.milli_cpu > machine.left(_CPU):
            return TOO_LITTLE
        if need.requests.get(_MEMORY, 0) > machine.left(_MEMORY):
            return TOO_LITTLE_MEMORY
    return None


def _amplified_status(
    milli: int, machine: Machine, node: NodeInfo, *, binds: bool
) -> Status | None:
    """What pods with CPUs of their own have is amplified as well as what they ask for."""
    if not milli:
        return None
    if machine.rules.ratios is None:
        return NO_RATIO
    ratio = machine.rules.cpu_ratio
    if ratio <= 1:
        return None
    wanted = amplify(milli, ratio) if binds else milli
    bound, used = 1000 * machine.bound_cpus, node.requested(_CPU)
    if used >= bound:
        used += amplify(bound, ratio) - bound
    return NO_AMPLIFIED_CPU if wanted > node.allocatable(_CPU) - used else None


def _free_count(machine: Machine, policy: BindPolicy | None) -> int:
    return len(machine.free if policy is None else machine.bindable(machine.free, policy))


def rejections(wish: Wish, table: MachineTable, nodes: View) -> tuple[Numbers, Mask]:
    """Return why nodes are rejected, by REJECTIONS, and which others have to be tried.

    Nodes of what-ifs are for the caller. Of many nodes that have to be tried, those are left on
    which the CPU of a NUMA node, or of all, is enough.
    """
    count = len(nodes)
    found = np.zeros(count, np.int32)
    own, bind = policy_number(wish.policy), table.column("bind")
    policy, milli = table.column("policy"), wish.milli_cpu
    if own:
        _reject(found, (policy != 0) & (policy != own), POLICIES_DIFFER)
        policy = np.where(policy == 0, own, policy)
    binds: Mask = np.full(count, True) if wish.binds else (bind != 0) & (milli > 0)
    strict = (policy != 0) & (policy != BEST_EFFORT)
    tried = strict
    if milli % 1000:
        _reject(found, binds, NO_WHOLE_CPUS)
    if milli:
        _reject_amplified(found, milli, binds, table, nodes)
    if binds.any():
        tried = strict | _reject_bound(found, wish, binds, table)
    _reject(found, (policy != 0) & (table.column("left") == NO_ZONES), NO_NUMA_NODES)
    if milli:
        best = ~binds & (policy == BEST_EFFORT) & (table.column("left") < milli)
        _reject(found, best, TOO_LITTLE)
        if np.count_nonzero(strict & (found == 0)) > _MANY:
            single = policy == policy_number(NUMATopologyPolicy.SINGLE_NUMA_NODE)
            there = np.where(single, table.column("most"), table.column("left"))
            _reject(found, strict & (there < milli), TOO_LITTLE)
    memory = dict(wish.requests).get(_MEMORY, 0)
    if memory and policy.any():
        best = (policy == BEST_EFFORT) & (table.column("memory") < memory)
        _reject(found, best, TOO_LITTLE_MEMORY)
    return found, tried & (found == 0)


def _reject(found: Numbers, rows: Mask, status: Status) -> None:
    """Reject nodes that are not rejected yet."""
    found[rows & (found == 0)] = _NUMBERS[status]


def _reject_amplified(
    found: Numbers, milli: int, binds: Mask, table: MachineTable, nodes: View
) -> None:
    ratio = table.column("ratio")
    if (ratio == 1).all():
        return
    _reject(found, np.isnan(ratio), NO_RATIO)
    column = nodes.resources.get(_CPU)
    if column is None:
        used = allocatable = np.zeros(len(nodes), np.int64)
    else:
        used, allocatable = nodes.requested[:, column], nodes.allocatable[:, column]
    ratio = np.where(np.isnan(ratio), 1.0, ratio)
    bound = table.column("bound").astype(np.int64) * 1000
    used = used + np.where(used >= bound, _amplified(bound, ratio) - bound, 0)
    wanted = np.where(binds, _amplified(np.int64(milli), ratio), milli)
    _reject(found, (ratio > 1) & (wanted > allocatable - used), NO_AMPLIFIED_CPU)


def _reject_bound(found: Numbers, wish: Wish, binds: Mask, table: MachineTable) -> Mask:
    """Reject nodes without the CPUs; return those where counting them is not enough."""
    threads, bind, count = table.column("threads"), table.column("bind"), wish.milli_cpu // 1000
    _reject(found, binds & (threads == 0), NO_TOPOLOGY)
    own = bind_number(wish.required)
    required = np.where(bind == 0, own, bind)
    if own:
        _reject(found, binds & (bind != 0) & (bind != own), BINDS_DIFFER)
    full = binds & (required == _FULL)
    _reject(found, full & (count % np.maximum(threads, 1) != 0), NO_WHOLE_CORES)
    free = np.where(full, table.column("whole"), table.column("free"))
    free = np.where(required == _SPREAD, table.column("cores"), free)
    _reject(found, binds & (free < count), TOO_FEW)
    uneven: Mask = binds & (required != 0) & table.column("uneven")
    return uneven


def _amplified(amounts: NDArray[np.int64] | np.int64, ratio: NDArray[np.float64]) -> Scores:
    amplified: Scores = np.ceil(np.asarray(amounts, np.float64) * ratio).astype(np.int64)
    return amplified


class ColumnScorer:
    """Scores whole nodes by their amounts; CPU of pods with CPUs of their own is amplified."""

    def __init__(self, scorer: AmountScorer) -> None:
        self._names = tuple(each.name for each in scorer.resources)
        self._formula = scorer.columns

    def of_node(self, pod: ClusterPod, machine: Machine, need: Need, node: NodeInfo) -> int:
        """The score of one node."""
        if machine.rules.ratios is None:
            return 0
        uses = uses_of_node(pod, node.view, node.row, self._names, nonzero=False)
        ratio, cpu = machine.rules.cpu_ratio, need.requests.get(_CPU, 0)
        if ratio > 1 and cpu and _CPU in self._names:
            bound = 1000 * machine.bound_cpus
            more = amplify(bound, ratio) - bound
            if need.cpus:
                more += amplify(cpu, ratio) - cpu
            at = self._names.index(_CPU)
            use = uses[at]
            uses[at] = None if use is None else use._replace(requested=use.requested + more)
        return self._formula.of_node(uses)

    def of_plain_node(self, pod: ClusterPod, node: NodeInfo) -> int:
        """The score of a node without amplified CPU, for a pod without CPUs of its own."""
        uses = uses_of_node(pod, node.view, node.row, self._names, nonzero=False)
        return self._formula.of_node(uses)

    def of_all(
        self, pod: ClusterPod, wish: Wish, table: MachineTable, nodes: View
    ) -> tuple[Scores, Mask]:
        """The scores of all nodes, and on which of them a trial says more."""
        ratio, bind = table.column("ratio"), table.column("bind")
        milli = wish.milli_cpu
        binds: Mask = np.full(len(nodes), True) if wish.binds else (bind != 0) & (milli > 0)
        uses = [use_of_all(pod, nodes, name, nonzero=False) for name in self._names]
        unreadable = np.isnan(ratio)
        if milli and _CPU in self._names and (ratio != 1).any():
            factor = np.where(unreadable, 1.0, ratio)
            bound = table.column("bound").astype(np.int64) * 1000
            own = _amplified(np.int64(milli), factor) - milli
            more = _amplified(bound, factor) - bound + np.where(binds, own, 0)
            at = self._names.index(_CPU)
            use = uses[at]
            uses[at] = None if use is None else replace(use, taken=use.taken + more, spare=None)
        scores = self._formula.of_all(uses, len(nodes))
        policy = table.column("policy")
        if wish.policy is not None:
            policy = np.where(policy == 0, policy_number(wish.policy), policy)
        impossible = unreadable | (binds & (table.column("threads") == 0))
        if binds.any():
            impossible |= binds & _never(wish, table)
        scores[impossible] = 0
        return scores, (policy != 0) & (policy != BEST_EFFORT)


def _never(wish: Wish, table: MachineTable) -> Mask:
    """Nodes that can never bind the CPUs of a pod."""
    if wish.milli_cpu % 1000:
        return np.full(len(table.column("bind")), True)
    numbers = np.zeros(len(table.column("bind")), np.int32)
    _reject_bound(numbers, wish, np.full(len(numbers), True), table)
    never: Mask = (numbers != 0) & (numbers != _NUMBERS[TOO_FEW])
    return never
