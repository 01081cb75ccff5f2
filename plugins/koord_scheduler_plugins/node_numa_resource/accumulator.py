"""The CPUs of a node, and the accumulator: which of the free ones a pod gets.

The order is Koordinator's exactly: the same node and the same request give the same CPUs. Source:
pkg/scheduler/plugins/nodenumaresource/cpu_accumulator.go.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from koord.api.nodetopology import BindPolicy

MAX_CPU = 4096  # the highest number of a CPU
MAX_NUMA_NODE = 63

CORES_OF_A_SOCKET = 65536  # core ids are unique only inside of a socket, ours on the node


class LogicalCpu(NamedTuple):
    """A CPU and where it is. Two are ordered by socket, NUMA node, core and number."""

    socket: int
    node: int  # NUMA node
    core: int  # unique on the node
    cpu: int


class CpuLayout:
    """The CPUs of a node. Nodes with the same CPUs share one; it never changes."""

    def __init__(self, cpus: Iterable[tuple[int, int, int, int]] = ()) -> None:
        """cpus: number, core, socket and NUMA node of each."""
        self.cpus: Mapping[int, LogicalCpu] = {
            cpu: LogicalCpu(socket, node, socket * CORES_OF_A_SOCKET + core, cpu)
            for cpu, core, socket, node in cpus
        }

    @cached_property
    def all(self) -> frozenset[int]:
        """The numbers of all CPUs."""
        return frozenset(self.cpus)

    @cached_property
    def cores(self) -> Mapping[int, tuple[int, ...]]:
        """CPUs by core, ascending."""
        return self._by("core")

    @cached_property
    def nodes(self) -> Mapping[int, tuple[int, ...]]:
        """CPUs by NUMA node, ascending."""
        return self._by("node")

    @cached_property
    def sockets(self) -> Mapping[int, tuple[int, ...]]:
        """CPUs by socket, ascending."""
        return self._by("socket")

    def _by(self, field: str) -> Mapping[int, tuple[int, ...]]:
        groups: dict[int, list[int]] = {}
        for number in sorted(self.cpus):
            groups.setdefault(getattr(self.cpus[number], field), []).append(number)
        return {key: tuple(groups[key]) for key in sorted(groups)}

    @property
    def valid(self) -> bool:
        """Whether it has any CPUs: without, none can be given to a pod."""
        return bool(self.cpus)

    @cached_property
    def cpus_per_core(self) -> int:
        """The most threads that a core has; 0: there are no CPUs."""
        return max(map(len, self.cores.values()), default=0)

    @cached_property
    def uniform(self) -> bool:
        """Whether all cores have as many threads."""
        return len(self.cpus) == self.cpus_per_core * len(self.cores)

    @cached_property
    def cpus_per_node(self) -> int:
        """The CPUs of a NUMA node on average, cut to a whole number."""
        return len(self.cpus) // max(len(self.nodes), 1)

    @cached_property
    def cpus_per_socket(self) -> int:
        """The CPUs of a socket on average, cut to a whole number."""
        return len(self.cpus) // max(len(self.sockets), 1)

    def nodes_of(self, cpus: Iterable[int]) -> frozenset[int]:
        """The NUMA nodes of CPUs; those that are not there are left out."""
        return frozenset(self.cpus[cpu].node for cpu in cpus if cpu in self.cpus)


NO_CPUS = CpuLayout()


NOT_ENOUGH = "not enough cpus available to satisfy request"
FAILED = "failed to allocate cpus"


class ExclusivePolicy(StrEnum):
    """Where no other pod with the same policy should be."""

    NONE = ""
    PCPU_LEVEL = "PCPULevel"  # on a core
    NUMA_NODE_LEVEL = "NUMANodeLevel"  # on a NUMA node


class TooFewCpus(Exception):
    """The CPUs are not there; the message is Koordinator's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuUse:
    """The CPUs of a node, and what pods have of them."""

    layout: CpuLayout
    counts: Mapping[int, int] = field(default_factory=dict)  # pods by CPU; without zeros
    exclusive: Mapping[int, Set[ExclusivePolicy]] = field(default_factory=dict)  # of pods, by CPU
    max_count: int = 1  # pods that one CPU can have


def take_cpus(
    use: CpuUse,
    free: Collection[int],
    count: int,
    policy: BindPolicy,
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE,
    *,
    most: bool = False,
) -> frozenset[int]:
    """Return so many of the free CPUs.

    most: sockets and NUMA nodes that have fewer free CPUs come first; otherwise those with more.

    Raises:
        TooFewCpus: there are fewer.
    """
    if count > len(free):
        raise TooFewCpus(NOT_ENOUGH)
    if count <= 0:
        return frozenset()
    return _Accumulator(use, free, count, policy, exclusive, most=most).take()


_Cpus = list[LogicalCpu]


class _Accumulator:
    """The state while CPUs are taken."""

    def __init__(
        self,
        use: CpuUse,
        free: Collection[int],
        count: int,
        policy: BindPolicy,
        exclusive: ExclusivePolicy,
        *,
        most: bool,
    ) -> None:
        self._layout, self._policy, self._exclusive = use.layout, policy, exclusive
        self._counts: Mapping[int, int] = use.counts if use.max_count > 1 else {}
        self._sign = 1 if most else -1
        cpus = use.layout.cpus
        self._free = {cpu: cpus[cpu] for cpu in sorted(free)}
        self._need = count
        self._taken: dict[int, LogicalCpu] = {}
        found = [
            cpus[cpu] for cpu, each in use.exclusive.items() if exclusive and exclusive in each
        ]
        self._cores = {cpu.core for cpu in found}  # that pods with the same policy have
        self._nodes = {cpu.node for cpu in found}

    def take(self) -> frozenset[int]:
        layout = self._layout
        packs = self._policy is BindPolicy.FULL_PCPUS
        done = (packs or layout.cpus_per_core == 1) and self._take_whole_cores()
        if not done and not packs:
            done = self._take_spread()
        if not done:
            done = self._take_single()
        if not done:
            raise TooFewCpus(FAILED)
        return frozenset(self._taken)

    def _take_whole_cores(self) -> bool:
        layout = self._layout
        if self._need <= layout.cpus_per_node:
            for exclusively in (True, False):
                if self._take_first(self._cores_by_node(exclusively=exclusively)):
                    return True
        if self._need <= layout.cpus_per_socket and self._take_first(self._cores_by_socket()):
            return True
        aside: list[_Cpus] = []
        for cpus in sorted(self._cores_by_socket(), key=len, reverse=True):
            if len(cpus) > self._need:
                aside.append(cpus)
                continue
            self._take(cpus)
            if not self._need:
                return True
        size = layout.cpus_per_core
        for cpus in sorted(aside, key=len):
            for core in _groups(cpus, lambda cpu: cpu.core).values():
                if self._need < size:
                    return False
                self._take(core)
                if not self._need:
                    return True
        return False

    def _take_spread(self) -> bool:
        lists = (
            (self._layout.cpus_per_node, self._cpus_by_node),
            (self._layout.cpus_per_socket, self._cpus_by_socket),
        )
        for size, listed in lists:
            if self._need <= size:
                for exclusively in (True, False):
                    if self._take_first(listed(exclusively), self._spread):
                        return True
        return False

    def _take_single(self) -> bool:
        for exclusively in (True, False):
            for cpu in self._spread(self._all(exclusively=exclusively)):
                self._take([cpu])
                if not self._need:
                    return True
        return False

    def _take_first(
        self, lists: Iterable[_Cpus], ordered: Callable[[_Cpus], _Cpus] = lambda cpus: cpus
    ) -> bool:
        """Take from the first list that has enough."""
        for cpus in lists:
            if len(cpus) >= self._need:
                self._take(ordered(cpus)[: self._need])
                return True
        return False

    def _take(self, cpus: Sequence[LogicalCpu]) -> None:
        for cpu in cpus:
            del self._free[cpu.cpu]
            self._taken[cpu.cpu] = cpu
            if self._exclusive:
                self._cores.add(cpu.core)
                self._nodes.add(cpu.node)
        self._need -= len(cpus)

    # Lists.

    def _cores_by_node(self, *, exclusively: bool) -> list[_Cpus]:
        """The CPUs of whole free cores, by NUMA node."""
        free = [cpu for cpu in self._free.values() if not (exclusively and self._node_is_had(cpu))]
        sockets = _sizes(free, lambda cpu: cpu.socket)
        lists = _groups(self._whole_cores(free), lambda cpu: cpu.node)
        return self._ordered(lists, lambda cpus: (len(cpus), sockets[cpus[0].socket]))

    def _cores_by_socket(self) -> list[_Cpus]:
        lists = _groups(self._whole_cores(self._free.values()), lambda cpu: cpu.socket)
        return self._ordered(lists, lambda cpus: (len(cpus),))

    def _cpus_by_node(self, exclusively: bool) -> list[_Cpus]:
        free = [
            cpu
            for cpu in self._free.values()
            if not (exclusively and (self._core_is_had(cpu) or self._node_is_had(cpu)))
        ]
        sockets, nodes = _sizes(free, lambda cpu: cpu.socket), _sizes(free, lambda cpu: cpu.node)
        listed = self._one_of_each_core(free) if exclusively else free
        lists = _groups(sorted(listed, key=self._by_count), lambda cpu: cpu.node)
        return self._ordered(lists, lambda cpus: (nodes[cpus[0].node], sockets[cpus[0].socket]))

    def _cpus_by_socket(self, exclusively: bool) -> list[_Cpus]:
        free = list(self._free.values())
        if exclusively:
            free = self._one_of_each_core(cpu for cpu in free if not self._core_is_had(cpu))
        lists = _groups(sorted(free, key=self._by_count), lambda cpu: cpu.socket)
        return self._ordered(lists, lambda cpus: (len(cpus),))

    def _all(self, *, exclusively: bool) -> _Cpus:
        free = [
            cpu
            for cpu in self._free.values()
            if not (exclusively and (self._core_is_had(cpu) or self._node_is_had(cpu)))
        ]
        sockets, nodes = _sizes(free, lambda cpu: cpu.socket), _sizes(free, lambda cpu: cpu.node)
        taken = _sizes(self._taken.values(), lambda cpu: cpu.socket)

        def order(cpus: _Cpus) -> tuple[int, ...]:
            first = cpus[0]
            return (
                -taken.get(first.socket, 0),
                self._sign * sockets[first.socket],
                self._sign * nodes[first.node],
                len(cpus),
                first.socket,
                sum(self._count(cpu) for cpu in cpus),
                first.core,
            )

        cores = sorted(_groups(free, lambda cpu: cpu.core).values(), key=order)
        return [cpu for core in cores for cpu in sorted(core, key=self._by_count)]

    def _spread(self, cpus: _Cpus) -> _Cpus:
        """One CPU of each core in turn."""
        if len(cpus) <= self._layout.cpus_per_core:
            return cpus
        turns: dict[int, int] = {}  # CPUs of a core so far
        placed: list[tuple[int, int, LogicalCpu]] = []
        for at, cpu in enumerate(cpus):
            turn = turns[cpu.core] = turns.get(cpu.core, 0) + 1
            placed.append((turn, at, cpu))
        return [cpu for _, _, cpu in sorted(placed)]

    def _whole_cores(self, free: Iterable[LogicalCpu]) -> _Cpus:
        """The CPUs of cores that are free as a whole; cores with fewer pods first."""
        cores = self._layout.cores
        whole = [
            cpus
            for core, cpus in _groups(free, lambda cpu: cpu.core).items()
            if len(cpus) == len(cores[core])
        ]
        whole.sort(key=lambda cpus: (sum(self._count(cpu) for cpu in cpus), cpus[0].core))
        return [cpu for cpus in whole for cpu in cpus]

    def _one_of_each_core(self, free: Iterable[LogicalCpu]) -> _Cpus:
        cores = _groups(free, lambda cpu: cpu.core).values()
        return [min(cpus, key=self._by_count) for cpus in cores]

    def _ordered(
        self, lists: Mapping[int, _Cpus], sizes: Callable[[_Cpus], tuple[int, ...]]
    ) -> list[_Cpus]:
        """Lists of NUMA nodes or sockets by sizes, as the strategy wants them, then by id."""

        def order(key: int) -> tuple[tuple[int, ...], int]:
            return tuple(self._sign * size for size in sizes(lists[key])), key

        return [lists[key] for key in sorted(lists, key=order)]

    def _count(self, cpu: LogicalCpu) -> int:
        return self._counts.get(cpu.cpu, 0)

    def _by_count(self, cpu: LogicalCpu) -> tuple[int, int]:
        return self._counts.get(cpu.cpu, 0), cpu.cpu

    def _core_is_had(self, cpu: LogicalCpu) -> bool:
        return self._exclusive is ExclusivePolicy.PCPU_LEVEL and cpu.core in self._cores

    def _node_is_had(self, cpu: LogicalCpu) -> bool:
        return self._exclusive is ExclusivePolicy.NUMA_NODE_LEVEL and cpu.node in self._nodes


def _groups(cpus: Iterable[LogicalCpu], key: Callable[[LogicalCpu], int]) -> dict[int, _Cpus]:
    found: dict[int, _Cpus] = {}
    for cpu in cpus:
        found.setdefault(key(cpu), []).append(cpu)
    return found


def _sizes(cpus: Iterable[LogicalCpu], key: Callable[[LogicalCpu], int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for cpu in cpus:
        found[key(cpu)] = found.get(key(cpu), 0) + 1
    return found
