"""The CPUs that pods without CPUs of their own share: one pool for LS pods and one for BE pods.

Source: Koordinator, calCPUSharePools.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass

from koord.api.nodes.machine import CpuTopology
from koord.api.pods.pod import Pod
from koord.api.pods.resourcestatus import allocated_cpus
from koord.api.qos import QoSClass
from koord.util.errors import InvalidObject


@dataclass(frozen=True, slots=True)
class CpuPool:
    """The shared CPUs of one NUMA node; none when all of them are set aside."""

    socket: int
    node: int
    cpus: frozenset[int]


@dataclass(frozen=True, slots=True)
class SharedCpus:
    """CPUs that LS and BE pods may use, and the pods whose annotations could not be counted.

    lsr: CPUs of LSR pods, which BE pods may borrow.
    """

    ls: frozenset[int]
    be: frozenset[int]
    problems: tuple[InvalidObject, ...] = ()
    lsr: frozenset[int] = frozenset()


def shared_cpus(available: frozenset[int], pods: Iterable[Pod]) -> SharedCpus:
    """Return the available CPUs without those that the scheduler has given to unfinished pods.

    BE pods may use the idle time of CPUs of LSR pods, but not of LSE pods.
    """
    given: set[int] = set()
    exclusive: set[int] = set()
    lsr: set[int] = set()
    problems: list[InvalidObject] = []
    for pod in pods:
        if pod.finished:
            continue
        try:
            cpus = allocated_cpus(pod)
        except InvalidObject as err:
            problems.append(err)
            continue
        given |= cpus
        if pod.raw_qos_class is QoSClass.LSE:
            exclusive |= cpus
        elif pod.raw_qos_class is QoSClass.LSR:
            lsr |= cpus
    borrowed = (available & lsr) - exclusive
    return SharedCpus(available - given, available - exclusive, tuple(problems), borrowed)


def cpu_pools(topology: CpuTopology, shared: Set[int], set_aside: Set[int]) -> tuple[CpuPool, ...]:
    """Return the shared CPUs by NUMA node, in the order of socket and node.

    A node that shares no CPU has no pool; one whose shared CPUs are all set aside has an empty one.
    """
    pools: dict[int, tuple[int, set[int]]] = {}
    for cpu in topology.cpus:
        if cpu.cpu in shared:
            pools.setdefault(cpu.node, (cpu.socket, set()))[1].add(cpu.cpu)
    found = (
        CpuPool(socket, node, frozenset(cpus - set_aside)) for node, (socket, cpus) in pools.items()
    )
    return tuple(sorted(found, key=lambda pool: (pool.socket, pool.node)))
