"""The CPUs of a node: sockets, NUMA nodes, cores."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

MAX_CPU = 4096  # the highest number of a CPU
MAX_NUMA_NODE = 63

_CORES_OF_A_SOCKET = 65536  # core ids are unique only inside of a socket


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
            cpu: LogicalCpu(socket, node, socket * _CORES_OF_A_SOCKET + core, cpu)
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
