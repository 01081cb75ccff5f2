"""Machines of the sizes that rules about CPUs are tried on."""

from koord.api.machine import Cpu, CpuBasics, CpuTopology, Machine, NumaMemory

KIB = 1024
BASICS = CpuBasics("Xeon", "GenuineIntel", hyper_threading=True, turbo=False, l3_mask="fff")


def topology(*sockets: list[tuple[int, ...]], first_node: int = 0) -> CpuTopology:
    """CPUs by socket and core; each socket is a NUMA node."""
    cpus, core = [], 0
    for socket, cores in enumerate(sockets):
        for numbers in cores:
            cpus += [Cpu(first_node + socket, socket, core, number) for number in numbers]
            core += 1
    return CpuTopology(tuple(cpus))


ONE_SOCKET = topology([(0, 4), (1, 5), (2, 6), (3, 7)])
TWO_SOCKETS = topology([(0, 6), (2, 8), (4, 10)], [(1, 7), (3, 9), (5, 11)])
PAIRS = topology([(0, 1), (2, 3)], [(4, 5), (6, 7)])


def machine(cpus: CpuTopology = PAIRS, *kib: int) -> Machine:
    """A machine with so much memory on its NUMA nodes, by default those of a real one."""
    amounts = kib or (263432804, 263432000)
    return Machine(BASICS, cpus, {n: NumaMemory(size * KIB) for n, size in enumerate(amounts)})
