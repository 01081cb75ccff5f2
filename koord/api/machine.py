"""A node's machine: CPU lists, CPU topology, NUMA memory, CPU allocation by topology."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field

MAX_RANGE_END = 4096
_MAX_RANGE_ITEMS = 16 * MAX_RANGE_END  # numbers that a list may name, repetitions included


def parse_cpulist(text: str) -> frozenset[int]:
    """Return the numbers of a list. The empty text is the empty set; "5-3" holds nothing.

    Raises:
        ValueError: malformed, a range that ends above 4096, or far more numbers than any machine
            has CPUs.
    """
    numbers: set[int] = set()
    named = 0
    for item in text.split(",") if text else ():
        first, dash, last = item.partition("-")
        run = _range(first, last, text) if dash else (_number(first, text),)
        named += len(run)
        if named > _MAX_RANGE_ITEMS:
            raise ValueError(
                f"wanted at most {_MAX_RANGE_ITEMS} numbers, found more: {text[:60]!r}"
            )
        numbers.update(run)
    return frozenset(numbers)


def parse_cpulist_file(data: bytes) -> frozenset[int]:
    """Return the numbers of a file that holds nothing but a list."""
    if not data.endswith(b"\n"):
        raise ValueError(f"wanted a list and a newline, found {data[:60]!r}")
    return parse_cpulist(data.decode("ascii").strip("\n"))


def format_cpulist(numbers: Iterable[int]) -> str:
    """Return the shortest list: ascending, with neighbours as ranges. "" for the empty set."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)


def _range(first: str, last: str, text: str) -> range:
    end = _number(last, text)
    if end > MAX_RANGE_END:
        raise ValueError(f"wanted ranges up to {MAX_RANGE_END}, found {text[:60]!r}")
    return range(_number(first, text), end + 1)


def _number(digits: str, text: str) -> int:
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f'wanted a list like "0-3,8", found {text[:60]!r}')
    return int(digits)


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


_Level = Callable[[Cpu], int]
_Groups = Iterable[tuple[Cpu, ...]]

# From the outside in. Each phase takes whole groups of one level, the last one single CPUs.
_LEVELS: tuple[_Level, ...] = (
    lambda cpu: cpu.socket,
    lambda cpu: cpu.node,
    lambda cpu: cpu.core,
    lambda cpu: cpu.cpu,
)


def take_by_topology(topology: CpuTopology, available: Set[int], count: int) -> frozenset[int]:
    """Return so many of the available CPUs: always the same ones, on as few sockets as possible.

    Raises:
        ValueError: there are fewer.
    """
    left = [cpu for cpu in topology.cpus if cpu.cpu in available]
    if count > len(left):
        raise ValueError(f"wanted {count} CPUs, found {len(left)}")
    taken: set[int] = set()
    for depth, level in enumerate(_LEVELS):
        is_whole = _wholeness(topology, level)
        for group in _ordered(left, _LEVELS[: depth + 1]):
            if is_whole(group) and len(group) <= count - len(taken):
                taken.update(cpu.cpu for cpu in group)
        left = [cpu for cpu in left if cpu.cpu not in taken]
    return frozenset(taken)


def _wholeness(topology: CpuTopology, level: _Level) -> Callable[[tuple[Cpu, ...]], bool]:
    """Return whether nothing of a group is taken. Sockets and cores have the average size."""
    sizes = {key: len(cpus) for key, cpus in topology.by(level).items()}
    if level is _LEVELS[1]:
        return lambda group: len(group) == sizes[level(group[0])]
    average = len(topology.cpus) // max(len(sizes), 1)
    return lambda group: len(group) == average


def _ordered(cpus: Iterable[Cpu], levels: Iterable[_Level]) -> _Groups:
    """Return the groups of the innermost level, ordered at each: the smallest first, then by id."""
    groups: _Groups = (tuple(cpus),)
    for level in levels:
        groups = [part for group in groups for part in _split(group, level)]
    return groups


def _split(group: tuple[Cpu, ...], level: _Level) -> Iterator[tuple[Cpu, ...]]:
    parts: dict[int, tuple[Cpu, ...]] = {}
    for cpu in group:
        parts[level(cpu)] = (*parts.get(level(cpu), ()), cpu)
    for _, part in sorted(parts.items(), key=lambda item: (len(item[1]), item[0])):
        yield part
