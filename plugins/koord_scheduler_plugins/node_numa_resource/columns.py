"""All nodes as pods find them: a Machine each, and columns for what needs no trial."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koord.api.annotations import RESOURCE_STATUS
from koord.api.nodetopology import BindPolicy
from koord_scheduler.plugin import ClusterPod, NodeInfo, PodSpec, Status, View
from koord_scheduler.plugin.koordinator import FrozenAccount, NUMATopologyPolicy
from koord_scheduler.plugin.vector import (
    FreeResources,
    Mask,
    Numbers,
    Scores,
    pod_amount,
    resource_counts,
    use_of_all,
    uses_of_node,
)
from koord_scheduler_plugins.node_numa_resource.accumulator import NOT_ENOUGH, CpuLayout
from koord_scheduler_plugins.node_numa_resource.allocation import AmountScorer, Need, allocate
from koord_scheduler_plugins.node_numa_resource.holdings import (
    NO_ALLOCATION,
    NUMA_HOLDINGS,
    Allocation,
    annotation,
    exclusive_policy,
    with_allocation,
)
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
    PodDemand,
    need_on,
)
from koord_scheduler_plugins.node_numa_resource.topology import NO_REPORT, MachineReport, amplify

_POLICIES = {one: number for number, one in enumerate(NUMATopologyPolicy, 1)}
_BINDS = {one: number for number, one in enumerate(BindPolicy, 1)}
BEST_EFFORT = _POLICIES[NUMATopologyPolicy.BEST_EFFORT]

_COLUMNS = np.dtype(
    [
        ("free", np.int32),  # CPUs that a pod could have
        ("whole", np.int32),  # those of whole cores
        ("cores", np.int32),  # cores with at least one
        ("broken", np.int32),  # cores with some free CPUs, and some that are not
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
        """The allocation of a pod on a node on which a what-if has put it."""
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
        self.reconsider: Callable[[], None] = _ignore
        """Called when is_plain has changed."""
        self._is_settled = False  # whether no node has changed since all were looked at
        self._view: View | None = None
        self._pending: dict[int, None] = {}  # changed rows, not yet taken over
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
        self.node_changed(old, new)

    @property
    def is_plain(self) -> bool:
        """Whether no node asks anything of pods that ask for nothing.

        A node that has changed counts as one that does, until settle has looked at it.
        """
        return self._is_settled and not self.has_special

    def node_changed(self, old: object, new: object) -> None:
        """A node, or what is reported of it, has changed."""
        if self._is_settled:
            self._is_settled = False
            self.reconsider()

    def settle(self, nodes: View) -> None:
        """Take over all that has changed, for is_plain too."""
        self.follow(nodes)
        if not self._is_settled:
            self._is_settled = True
            self.reconsider()

    def follow(self, nodes: View, most: int | None = None) -> bool:
        """Take over at most so many rows that have changed; return whether that is all of them."""
        if not (self._stale or self._pending) and (nodes is self._view or self._is_known(nodes)):
            return True
        if len(self._machines) != len(nodes):
            self._resize(len(nodes))
        pending = self._pending
        pending.update(dict.fromkeys(self._changed(nodes)))
        complete = most is None or len(pending) <= most
        for row in list(islice(pending, most)):
            if row not in nodes.altered:
                self._place(nodes, row)
                del pending[row]
        if not self._is_special_known:
            self._look_for_special()
        self._view = nodes
        self._stale.clear()
        return complete

    def _is_known(self, nodes: View) -> bool:
        """Whether nothing differs from the view that was followed last: most pods hold nothing.

        Then it is the one that was followed last.
        """
        last = self._view
        if (
            last is None
            or not nodes.account.has_pools_of(last.account, NUMA_HOLDINGS)
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

    def machine_in(self, node: NodeInfo, account: FrozenAccount) -> Machine:
        """A node where pods hold what an account says."""
        pool = account.pool(NUMA_HOLDINGS, node.name)
        return Machine(node.node, self._reports.get(node.name, NO_REPORT), pool)

    def report_of(self, name: str) -> MachineReport:
        return self._reports.get(name, NO_REPORT)

    def _resize(self, count: int) -> None:
        self._machines = self._machines[:count] + [None] * (count - len(self._machines))
        self._pending = {row: None for row in self._pending if row < count}
        self._columns = np.resize(self._columns, count)
        self._is_special_known = False
        self._imagined.clear()
        self._rows = {}
        for row, machine in enumerate(self._machines):
            if machine is None:
                self._columns[row] = _NO_MACHINE
            else:
                self._rows[machine.node.name] = row

    def _changed(self, nodes: View) -> Iterable[int]:
        """Rows that are others than in the view that was followed last; before the first one all.

        All are compared once only: a start takes over a few at a time, and to look at 50,000
        machines each time would take longer than to make them.
        """
        last = self._view
        if last is None:
            return range(len(nodes))
        names = self._stale.union(nodes.account.other_pools(NUMA_HOLDINGS, last.account))
        named = [row for name in names if (row := nodes.row(name)) is not None]
        found = nodes.node_column.other_rows(last.node_column)
        return [*[row for row in found if row < len(nodes)], *named]

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


def _ignore() -> None:
    """Nobody keeps it."""


def _nothing(pod: ClusterPod, machine: Machine) -> Allocation:
    return NO_ALLOCATION


def _is_waiting(pod: ClusterPod) -> bool:
    """Whether a pod is only nominated to a node, and has not been given anything there."""
    return not pod.node and not pod.finished and not annotation(pod, RESOURCE_STATUS)


_NO_MACHINE = np.array([(0, 0, 0, 0, 0, False, 0, 0, 0, 0, 0, 0, 1.0)], _COLUMNS)[0]


def _free_counts(machine: Machine) -> tuple[int, int, int, int]:
    """Free CPUs, those of whole cores, cores with at least one, and those with others, too."""
    if not machine.use.counts:  # as most nodes of a cluster, which are of few kinds
        return _counts(machine.layout, machine.report.reserved)
    return _counted(machine.layout, machine.free)


@lru_cache(maxsize=256)
def _counts(layout: CpuLayout, reserved: frozenset[int]) -> tuple[int, int, int, int]:
    return _counted(layout, layout.all - reserved)


def _counted(layout: CpuLayout, free: frozenset[int]) -> tuple[int, int, int, int]:
    whole = cores = broken = 0
    for cpus in layout.cores.values():
        there = sum([cpu in free for cpu in cpus])
        cores += there > 0
        whole += there if there == len(cpus) else 0
        broken += 0 < there < len(cpus)
    return len(free), whole, cores, broken


def bind_number(policy: BindPolicy | None) -> int:
    """The place of a policy in the column bind; 0: none."""
    return 0 if policy is None else _BINDS[policy]


def policy_number(policy: NUMATopologyPolicy | None) -> int:
    """The place of a policy in the column policy; 0: none."""
    return 0 if policy is None else _POLICIES[policy]


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
    demand: PodDemand,
    policy: NUMATopologyPolicy | None,
    machine: Machine,
    node: NodeInfo,
    *,
    most: bool,
) -> Status | None:
    """Why a pod cannot be on a node whatever its NUMA nodes are; None: it can."""
    need = need_on(demand, machine)
    if need is NO_WHOLE_CPUS:
        return NO_WHOLE_CPUS
    binds = demand.binds or (machine.rules.bind is not None and demand.milli_cpu > 0)
    found = _amplified_status(demand.milli_cpu, machine, node, binds=binds)
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
        if not need.cpus and demand.milli_cpu > machine.left(_CPU):
            return TOO_LITTLE
        if need.requests.get(_MEMORY, 0) > machine.left(_MEMORY):
            return TOO_LITTLE_MEMORY
    return None


def _amplified_status(
    milli: int, machine: Machine, node: NodeInfo, *, binds: bool
) -> Status | None:
    """Amplify both the requests of pods with exclusive CPUs and the CPUs that they hold."""
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


def rejections(demand: PodDemand, table: MachineTable, nodes: View) -> tuple[Numbers, Mask]:
    """Return why nodes are rejected, by REJECTIONS, and which others have to be tried.

    Nodes of what-ifs are for the caller. Of many nodes that have to be tried, those are left on
    which the CPU of a NUMA node, or of all, is enough.
    """
    count = len(nodes)
    found = np.zeros(count, np.int32)
    own, bind = policy_number(demand.policy), table.column("bind")
    policy, milli = table.column("policy"), demand.milli_cpu
    if own:
        _reject(found, (policy != 0) & (policy != own), POLICIES_DIFFER)
        policy = np.where(policy == 0, own, policy)
    binds: Mask = np.full(count, True) if demand.binds else (bind != 0) & (milli > 0)
    strict = (policy != 0) & (policy != BEST_EFFORT)
    if demand.designated is not None:  # its CPUs are free on few nodes, whatever their number is
        return found, np.full(count, True)
    tried = strict
    if milli % 1000:
        _reject(found, binds, NO_WHOLE_CPUS)
    if milli:
        _reject_amplified(found, milli, binds, table, nodes)
    if binds.any():
        tried = strict | _reject_bound(found, demand, binds, table)
    _reject(found, (policy != 0) & (table.column("left") == NO_ZONES), NO_NUMA_NODES)
    if milli:
        best = ~binds & (policy == BEST_EFFORT) & (table.column("left") < milli)
        _reject(found, best, TOO_LITTLE)
        if np.count_nonzero(strict & (found == 0)) > _MANY:
            single = policy == policy_number(NUMATopologyPolicy.SINGLE_NUMA_NODE)
            there = np.where(single, table.column("most"), table.column("left"))
            _reject(found, strict & (there < milli), TOO_LITTLE)
    memory = dict(demand.requests).get(_MEMORY, 0)
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


def _reject_bound(found: Numbers, demand: PodDemand, binds: Mask, table: MachineTable) -> Mask:
    """Reject nodes without the CPUs; return those where counting them is not enough."""
    threads, bind, count = table.column("threads"), table.column("bind"), demand.milli_cpu // 1000
    _reject(found, binds & (threads == 0), NO_TOPOLOGY)
    own = bind_number(demand.required)
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


_HIGHEST = 100  # score


@dataclass(frozen=True, slots=True)
class _PlainPod:
    """The inputs of a pod: by resource its column, and the request with the weight."""

    spec: PodSpec
    resources: Mapping[str, int]  # columns of the cluster's resources
    columns: Sequence[int]
    parts: Sequence[tuple[int, int]]


class ColumnScorer:
    """Scores whole nodes by their amounts; CPU of pods with CPUs of their own is amplified."""

    def __init__(self, scorer: AmountScorer) -> None:
        self._names = tuple(each.name for each in scorer.resources)
        self._formula = scorer.columns
        self._most = scorer.most
        self._plain: _PlainPod | None = None  # pods alike come one after the other
        self._free = FreeResources()

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
        """The score of a node without amplified CPU, for a pod without CPUs of its own.

        The same as of uses_of_node, in a third of the time: most pods of a cluster are such pods.
        """
        nodes, row, plain = node.view, node.row, self._plain
        if plain is None or plain.spec is not pod.spec or plain.resources is not nodes.resources:
            plain = self._plain = self._plain_pod(pod, nodes)
        total = weight = 0
        uses = nodes.uses_of(row, plain.columns)
        for (amount, each), (there, taken) in zip(plain.parts, uses, strict=True):
            if there:
                asked = taken + amount
                part = min(asked, there) if self._most else max(there - asked, 0)
                total += each * (part * _HIGHEST // there)
                weight += each
        return total // weight if weight else 0

    def _plain_pod(self, pod: ClusterPod, nodes: View) -> "_PlainPod":
        weights = [
            (name, each)
            for name, each in zip(self._names, self._formula.weights, strict=True)
            if name in nodes.resources and resource_counts(pod, name, nonzero=False)
        ]
        parts = [(pod_amount(pod, name, nonzero=False), each) for name, each in weights]
        columns = [nodes.resources[name] for name, _ in weights]
        return _PlainPod(pod.spec, nodes.resources, columns, parts)

    def of_all(
        self, pod: ClusterPod, demand: PodDemand, table: MachineTable, nodes: View
    ) -> tuple[Scores, Mask | None]:
        """The scores of all nodes, and on which of them a trial says more; None: on none."""
        uses = [
            use_of_all(pod, nodes, name, nonzero=False, table=self._free) for name in self._names
        ]
        if not demand.asks and not table.has_special:
            return self._formula.of_all(uses, len(nodes)), None
        ratio, bind = table.column("ratio"), table.column("bind")
        milli = demand.milli_cpu
        binds: Mask = np.full(len(nodes), True) if demand.binds else (bind != 0) & (milli > 0)
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
        if demand.policy is not None:
            policy = np.where(policy == 0, policy_number(demand.policy), policy)
        impossible = unreadable | (binds & (table.column("threads") == 0))
        if binds.any():
            impossible |= binds & _never(demand, table)
        scores[impossible] = 0
        return scores, (policy != 0) & (policy != BEST_EFFORT)


def _never(demand: PodDemand, table: MachineTable) -> Mask:
    """Nodes that can never bind the CPUs of a pod."""
    if demand.milli_cpu % 1000:
        return np.full(len(table.column("bind")), True)
    numbers = np.zeros(len(table.column("bind")), np.int32)
    _reject_bound(numbers, demand, np.full(len(numbers), True), table)
    never: Mask = (numbers != 0) & (numbers != _NUMBERS[TOO_FEW])
    return never
