"""The CPUs of best-effort pods: those that they may use on this node, and the choice among them.

Source: Koordinator, pkg/koordlet/qosmanager/plugins/cpusuppress: adjustByCPUSet,
calculateBESuppressPolicy.
"""

import math
import operator
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from koord.api.kubelet import STATIC
from koord.api.machine import NODE_CPU_INFO, Cpu, CpuTopology, NodeCpuInfo
from koord.api.node import set_aside_cpus
from koord.api.pod import Pod
from koordlet.plugin import MetricCache, NodeTopology, States, shared_cpus
from koordlet_plugins.be_cpu_suppress.usage import STEP, Allowance

MIN_CPUS = 2


@dataclass(frozen=True, slots=True)
class BestEffortCpus:
    """The CPUs that best-effort pods may use: all but those of LSE pods and those set aside."""

    processors: int  # of the node
    borrowed: tuple[Cpu, ...]  # of LSR pods
    shared: tuple[Cpu, ...]  # the others

    @classmethod
    def of_node(
        cls, topology: CpuTopology, pods: Iterable[Pod], set_aside: Set[int]
    ) -> "BestEffortCpus":
        """Take off the CPUs that the scheduler gave to pods, and those set aside.

        set_aside: reserved CPUs, and those for the system only.
        """
        found = shared_cpus(topology.numbers, pods)
        usable = [cpu for cpu in topology.cpus if cpu.cpu in found.be - set_aside]
        return cls(
            len(topology.cpus),
            tuple(cpu for cpu in usable if cpu.cpu in found.lsr),
            tuple(cpu for cpu in usable if cpu.cpu not in found.lsr),
        )

    @property
    def pool(self) -> frozenset[int]:
        """The numbers of all of them."""
        return frozenset(cpu.cpu for cpu in (*self.borrowed, *self.shared))

    @property
    def whole_node(self) -> bool:
        """Whether these are all CPUs of the node."""
        return len(self.borrowed) + len(self.shared) == self.processors

    def count(self, allowance: Allowance, current: int) -> int:
        """Return the number of CPUs from now on; current is the number now."""
        wanted = min(max(current, _cpus(allowance.least)), _cpus(allowance.most))
        return min(wanted, current + math.ceil(self.processors * STEP))

    def choose(self, count: int) -> frozenset[int]:
        """Return so many CPUs, or all when there are fewer: of both kinds in proportion."""
        total = len(self.borrowed) + len(self.shared)
        if not total:
            return frozenset()
        count = min(count, total)
        borrowed = count * len(self.borrowed) // total
        return frozenset(pick(borrowed, self.borrowed) + pick(count - borrowed, self.shared))


class NodeCpus(NamedTuple):
    """static: the kubelet gives CPUs to containers itself."""

    cpus: BestEffortCpus
    static: bool


class CpuView:
    """Caches the CPUs until one of their inputs is replaced."""

    def __init__(self, states: States, cache: MetricCache, *, in_cluster: bool) -> None:
        self._states = states
        self._cache = cache
        self._in_cluster = in_cluster
        self._facts: tuple[object, ...] = ()
        self._cpus: NodeCpus | None = None

    def now(self) -> NodeCpus | None:
        """Return the present CPUs; None: too little is known to touch a cpuset."""
        states = self._states
        info, topology = self._cache.get(NODE_CPU_INFO), states.node_topology()
        facts = info, topology, states.node(), states.pods()
        if len(facts) != len(self._facts) or any(map(operator.is_not, facts, self._facts)):
            self._facts, self._cpus = facts, self._work_out(info, topology)
        return self._cpus

    def _work_out(self, info: object, topology: NodeTopology | None) -> NodeCpus | None:
        """Without a cluster there is no topology object, and the node's annotations count alone."""
        node = self._states.node()
        if not isinstance(info, NodeCpuInfo) or node is None:
            return None
        if topology is None and self._in_cluster:
            return None
        if topology is None:
            set_aside, static = set_aside_cpus(node.annotations, info.topology), False
        else:
            system = topology.system_qos.exclusive_cpus if topology.system_qos else frozenset()
            set_aside = topology.reservation.cpus | system
            static = topology.cpu_manager.policy == STATIC
        pods = (meta.pod for meta in self._states.pods())
        return NodeCpus(BestEffortCpus.of_node(info.topology, pods, set_aside), static)


def pick(count: int, cpus: Iterable[Cpu]) -> list[int]:
    """Return so many CPUs, or all when there are fewer: spread over sockets, in whole cores.

    Sockets take turns, the one with the most CPUs first. The rest of an odd number, or of cores
    that are not whole, comes as single CPUs.
    """
    free = _buckets(cpus)
    pairs, turn = _deal(count, free, together=2)
    singles, _ = _deal(count - len(pairs), [*free[turn:], *free[:turn]], together=1)
    return [*pairs, *singles]


def _buckets(cpus: Iterable[Cpu]) -> list[list[Cpu]]:
    """CPUs by NUMA node and socket, sorted by core; the largest first, then by the first CPU."""
    buckets: dict[tuple[int, int], list[Cpu]] = {}
    for cpu in sorted(cpus, key=lambda cpu: (cpu.core, cpu.cpu)):
        buckets.setdefault((cpu.node, cpu.socket), []).append(cpu)
    return sorted(buckets.values(), key=lambda bucket: (-len(bucket), bucket[0].cpu))


def _deal(count: int, free: Sequence[list[Cpu]], *, together: int) -> tuple[list[int], int]:
    """Take CPUs of one core at a time, `together` of them, from the buckets in turns.

    Ends when that is enough, or after a whole cycle in which no bucket had any. Also returns the
    index of the next bucket.
    """
    dealt: list[int] = []
    turn, had = 0, -1  # had: how many were dealt when the cycle began
    while free and count - len(dealt) >= together:
        if turn == 0 and len(dealt) == had:
            break
        had = len(dealt) if turn == 0 else had
        for cpu in _first_of_one_core(free[turn], together):
            free[turn].remove(cpu)
            dealt.append(cpu.cpu)
        turn = (turn + 1) % len(free)
    return dealt, turn


def _first_of_one_core(free: list[Cpu], together: int) -> Sequence[Cpu]:
    if together == 1:
        return free[:1]
    return next((pair for pair in pairwise(free) if pair[0].core == pair[1].core), ())


def _cpus(left: int) -> int:
    """CPUs for so many milli-cores."""
    return max(math.ceil(left / 1000), MIN_CPUS)
