"""Allocates a number of CPUs: packed, whole sockets first.

Source: Kubernetes, pkg/kubelet/cm/cpumanager/cpu_assignment.go; Koordinator keeps a copy in which
sockets always come before NUMA nodes.
"""

from collections.abc import Callable, Iterable, Iterator, Set

from koord.api.nodes.machine import Cpu, CpuTopology

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
