"""This node's topology: NUMA zones, shared CPU pools, and the managers of the other CPUs."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from koord.api.annotations import allocated_cpus
from koord.api.kubelet import (
    NO_POLICY,
    STATIC,
    CpuManagerState,
    KubeletConfig,
    PodCpus,
    kubelet_allocations,
    static_reserved_cpus,
)
from koord.api.machine import CpuTopology, Machine, NumaMemory, format_cpulist
from koord.api.node import Node, NodeReservation, SystemQoS, effective_reservation, system_qos
from koord.api.nodetopology import CpuManagerPolicy
from koord.api.pod import Pod
from koord.api.qos import QoSClass
from koord.api.quantity import Quantity
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


ZONE_TYPE = "Node"
_HUGE_PAGES = {"hugepages-1Gi": 1 << 30, "hugepages-2Mi": 2 << 20}  # resource -> page size
_ZERO = Quantity(0)


@dataclass(frozen=True, slots=True)
class Zone:
    """One NUMA node, and those of its resources that pods may use."""

    name: str
    resources: Mapping[str, Quantity]


def node_zones(
    machine: Machine, *, huge_pages: bool, reserved: Mapping[str, Quantity]
) -> tuple[Zone, ...]:
    """Return the zones in the order of their NUMA nodes.

    huge_pages: whether memory set aside for huge pages is separate. reserved is the amount that
    each zone keeps for the system; see reserved_per_zone.

    Raises:
        InvalidObject: CPUs and memory are not on the same NUMA nodes.
    """
    cpus = machine.topology.by(lambda cpu: cpu.node)
    if cpus.keys() != machine.memory.keys():
        raise InvalidObject(
            "NUMA nodes",
            wanted="CPUs and memory on the same nodes",
            found=f'CPUs on "{format_cpulist(cpus)}", memory on "{format_cpulist(machine.memory)}"',
        )
    return tuple(
        Zone(
            f"node-{node}",
            _minus_reserved(
                _resources(len(cpus[node]), machine.memory[node], huge_pages), reserved
            ),
        )
        for node in sorted(cpus)
    )


def reserved_per_zone(
    capacity: Mapping[str, str], allocatable: Mapping[str, str], zones: int
) -> dict[str, Quantity]:
    """Return the share of each zone when the node's reservation is spread evenly over all."""
    found = {}
    for name in ("cpu", "memory"):
        if name not in capacity or name not in allocatable:
            continue
        whole = Quantity.parse(capacity[name])
        milli = Quantity(whole.nano - Quantity.parse(allocatable[name]).nano).milli
        if milli > 0:
            found[name] = Quantity(-(-milli // zones) * 10**6, whole.format)
    return found


def _resources(cpus: int, memory: NumaMemory, huge_pages: bool) -> dict[str, Quantity]:
    """The resources of a zone, by name in ascending order."""
    pages = {
        name: memory.huge_pages.get(size, 0) if huge_pages else 0
        for name, size in _HUGE_PAGES.items()
    }
    return {
        "cpu": Quantity.of_milli(cpus * 1000),
        **{name: Quantity.of_bytes(count) for name, count in pages.items()},
        "memory": Quantity.of_bytes(max(memory.total - sum(pages.values()), 0)),
    }


def _minus_reserved(
    resources: Mapping[str, Quantity], reserved: Mapping[str, Quantity]
) -> dict[str, Quantity]:
    return {
        name: Quantity(max(whole.nano - reserved.get(name, _ZERO).nano, 0), whole.format)
        for name, whole in resources.items()
    }


NUMA_RESERVATION = "node.koordinator.sh/enable-numa-reservation"  # label of Node and topology


@dataclass(frozen=True, slots=True)
class KubeletFacts:
    """The kubelet's configuration and CPU allocations, as far as they are known.

    config None: not known, so that only the checkpoint shows which policy it follows.
    ignored: a flag forbids requests to the kubelet and the use of its allocations.
    """

    config: KubeletConfig | None = None
    state: CpuManagerState = field(default_factory=CpuManagerState)
    ignored: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeTopology:
    """The topology of one node. Immutable."""

    machine: Machine
    zones: tuple[Zone, ...]
    ls_pools: tuple[CpuPool, ...]
    be_pools: tuple[CpuPool, ...]
    cpu_manager: CpuManagerPolicy
    kubelet_allocations: tuple[PodCpus, ...]
    topology_policy: str | None  # None: the kubelet has not reported it
    reservation: NodeReservation
    system_qos: SystemQoS | None  # None: the node has no annotations at all
    numa_reservation: str  # the node's label; "" when it has none


@dataclass(frozen=True, slots=True)
class TopologyInputs:
    """All inputs of a node's topology."""

    machine: Machine
    node: Node
    pods: tuple[Pod, ...]
    kubelet: KubeletFacts
    huge_pages: bool = False  # whether memory of huge pages is reported apart


def node_topology(inputs: TopologyInputs) -> tuple[NodeTopology, tuple[InvalidObject, ...]]:
    """Return the topology, and the problems of annotations that were left out.

    Raises:
        InvalidObject: CPUs and memory are not on the same NUMA nodes, or it is not clear which
            CPUs are set aside for the system.
    """
    machine, node, kubelet = inputs.machine, inputs.node, inputs.kubelet
    manager, manager_problem = _cpu_manager(kubelet, machine.topology)
    allocations: tuple[PodCpus, ...] = ()
    if manager.policy == STATIC:
        allocations = kubelet_allocations(kubelet.state, inputs.pods)
    reservation, reservation_problem = effective_reservation(node.annotations, machine.topology)
    system = system_qos(node.annotations)
    taken = frozenset(cpu for pod in allocations for cpu in pod.cpus)
    shared = shared_cpus(machine.topology.numbers - taken, inputs.pods)
    set_aside = reservation.cpus | system.exclusive_cpus
    topology = NodeTopology(
        machine=machine,
        zones=_zones(inputs),
        ls_pools=cpu_pools(machine.topology, shared.ls, set_aside),
        be_pools=cpu_pools(machine.topology, shared.be, set_aside),
        cpu_manager=manager,
        kubelet_allocations=allocations,
        topology_policy=_topology_policy(kubelet),
        reservation=reservation,
        system_qos=system if node.annotations else None,
        numa_reservation=node.labels.get(NUMA_RESERVATION, ""),
    )
    problems = (manager_problem, reservation_problem, *shared.problems)
    return topology, tuple(problem for problem in problems if problem is not None)


def _zones(inputs: TopologyInputs) -> tuple[Zone, ...]:
    machine, node = inputs.machine, inputs.node
    reserved = {}
    if node.labels.get(NUMA_RESERVATION) == "true":
        count = max(len(machine.memory), 1)
        reserved = reserved_per_zone(node.capacity, node.allocatable, count)
    return node_zones(machine, huge_pages=inputs.huge_pages, reserved=reserved)


def _cpu_manager(
    kubelet: KubeletFacts, topology: CpuTopology
) -> tuple[CpuManagerPolicy, InvalidObject | None]:
    """Return the policy, and why its reserved CPUs are missing if they could not be found."""
    config = kubelet.config
    if kubelet.ignored:
        return CpuManagerPolicy(), None
    if config is None:
        return CpuManagerPolicy(kubelet.state.policy), None
    policy = CpuManagerPolicy(config.cpu_manager_policy, config.cpu_manager_options)
    try:
        reserved = static_reserved_cpus(config, topology)
    except InvalidObject as err:
        return policy, err
    return CpuManagerPolicy(policy.policy, policy.options, reserved), None


def _topology_policy(kubelet: KubeletFacts) -> str | None:
    if kubelet.ignored:
        return NO_POLICY
    return None if kubelet.config is None else kubelet.config.topology_policy
