"""The machine below a node: CPUs, how they are connected, and the memory of its NUMA nodes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

UNKNOWN_VENDOR = "unknown"
NODE_CPU_INFO = "node_cpu_info"  # key in the metric cache; the value is a NodeCpuInfo


@dataclass(frozen=True, slots=True)
class Cpu:
    """One logical CPU that is online."""

    node: int  # NUMA node; 0 when the machine has none
    socket: int
    core: int  # unique in the machine
    cpu: int
    l1: int = 0  # id of its first-level (data) cache
    l3: int = 0  # id of its last-level cache


@dataclass(frozen=True, slots=True)
class CpuTopology:
    """All online CPUs, sorted by node, socket, core and number."""

    cpus: tuple[Cpu, ...]

    def by(self, key: Callable[[Cpu], int]) -> dict[int, tuple[int, ...]]:
        """Return the CPU numbers of each group: `by(lambda cpu: cpu.core)`."""
        groups: dict[int, tuple[int, ...]] = {}
        for cpu in self.cpus:
            groups[key(cpu)] = (*groups.get(key(cpu), ()), cpu.cpu)
        return groups

    @property
    def numbers(self) -> frozenset[int]:
        """The numbers of all CPUs."""
        return frozenset(cpu.cpu for cpu in self.cpus)

    @property
    def node_of(self) -> dict[int, int]:
        """NUMA node by CPU number."""
        return {cpu.cpu: cpu.node for cpu in self.cpus}

    @property
    def threads_per_core(self) -> int:
        """The most CPUs that one core has."""
        return max(len(cpus) for cpus in self.by(lambda cpu: cpu.core).values())


@dataclass(frozen=True, slots=True)
class CpuBasics:
    """The facts that Koordinator publishes of a node's CPU. Unknown ones are "" or False."""

    model: str
    vendor: str
    hyper_threading: bool
    turbo: bool
    l3_mask: str  # resctrl's cbm_mask, hexadecimal


@dataclass(frozen=True, slots=True)
class NodeCpuInfo:
    """The CPUs of a node."""

    basics: CpuBasics
    topology: CpuTopology


@dataclass(frozen=True, slots=True)
class NumaMemory:
    """The memory of one NUMA node, in bytes."""

    total: int
    huge_pages: Mapping[int, int] = field(default_factory=dict)  # page size -> set aside for it


@dataclass(frozen=True, slots=True)
class Machine:
    """The whole machine. memory is by NUMA node; a node whose memory cannot be read is absent."""

    basics: CpuBasics
    topology: CpuTopology
    memory: Mapping[int, NumaMemory]
