"""This node's topology: NUMA zones, shared CPUs, and the managers of the other CPUs.

Source: Koordinator, calcNodeTopo.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from koord.api.nodes.cpumanager import CpuManagerState, PodCpus, kubelet_allocations
from koord.api.nodes.kubeletconfig import (
    NO_POLICY,
    STATIC,
    KubeletConfig,
    static_reserved_cpus,
)
from koord.api.nodes.machine import CpuTopology, Machine
from koord.api.nodes.node import Node
from koord.api.nodes.reservation import (
    NodeReservation,
    SystemQoS,
    effective_reservation,
    system_qos,
)
from koord.api.pods.pod import Pod
from koord.util.errors import InvalidObject
from koordlet.rules.cpupools import CpuPool, cpu_pools, shared_cpus
from koordlet.rules.zones import Zone, node_zones, reserved_per_zone

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


@dataclass(frozen=True, slots=True)
class CpuManagerPolicy:
    """The kubelet's policy for giving CPUs to pods; all empty when the kubelet is ignored."""

    policy: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    reserved_cpus: frozenset[int] = frozenset()  # given to no pod by the static policy


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
