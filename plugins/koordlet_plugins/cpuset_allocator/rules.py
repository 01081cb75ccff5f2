"""The choice of the CPUs that a container may use. Pure.

Source: Koordinator, the cpuset hook.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from koord.api.nodes.kubeletconfig import STATIC
from koord.api.nodes.reservation import SYSTEM_QOS_RESOURCE, SystemQoS
from koord.api.pods.pod import Pod
from koord.api.pods.resourcestatus import RESOURCE_STATUS, ResourceStatus, resource_status
from koord.api.qos import KubeQoS, QoSClass
from koordlet.plugin import InvalidObject
from koordlet.plugin.rules import CpuPool, NodeTopology

OWN_CPUS = frozenset({QoSClass.LSE, QoSClass.LSR})  # classes of pods that may have some


@dataclass(frozen=True, slots=True)
class Pools:
    """The CPUs of a node by the pods that may use them."""

    ls: tuple[CpuPool, ...]
    be: tuple[CpuPool, ...]
    system: frozenset[int] = frozenset()  # of pods of class SYSTEM; empty: none of their own
    by_kubelet: bool = False  # its static policy chooses the CPUs of pods without a class


@dataclass(frozen=True, slots=True)
class CpusetRule:
    """Settings for all pods. pools None: the node's topology is not known."""

    pools: Pools | None
    be_by_numa: bool = False  # whether BE pods are held to their NUMA nodes


class AssignedCpus(NamedTuple):
    """The class and the CPUs in a pod's label and annotation."""

    qos: QoSClass  # LSR for a pod without a class that has CPUs of its own
    status: ResourceStatus


class Choice(NamedTuple):
    """The CPUs for a container, and the reason."""

    cpus: frozenset[int]
    reason: str


def pools_of(topology: NodeTopology) -> Pools:
    """Return the CPUs of a node by the pods that may use them.

    Raises:
        InvalidObject: the CPUs that are set aside for the system are malformed.
    """
    return Pools(
        ls=topology.ls_pools,
        be=topology.be_pools,
        system=_system_cpus(topology.system_qos or SystemQoS()),
        by_kubelet=topology.cpu_manager.policy == STATIC,
    )


def _system_cpus(system: SystemQoS) -> frozenset[int]:
    try:
        return system.cpus
    except ValueError as err:
        where = f"node: {SYSTEM_QOS_RESOURCE}.cpuset"
        raise InvalidObject(where, wanted="a list of CPUs", found=system.cpuset) from err


def pod_cpus(pod: Pod) -> AssignedCpus:
    """Return the CPUs that the scheduler has chosen for a pod, and the pod's class.

    Raises:
        InvalidObject: the annotation is malformed.
    """
    status, qos = resource_status(pod), pod.raw_qos_class
    if qos is QoSClass.NONE and status.cpus:
        qos = QoSClass.LSR
    return AssignedCpus(qos, status)


def choose_cpus(pod: AssignedCpus, kube_qos: KubeQoS, rule: CpusetRule) -> Choice | None:
    """Return the CPUs for the containers of a pod; None: this plugin makes no claim.

    kube_qos is that of the pod's cgroup.
    """
    if pod.status.cpus:
        return Choice(pod.status.cpus, f"CPUs of the pod's own, by {RESOURCE_STATUS}")
    pools = rule.pools
    if pools is None:
        return None
    if pod.qos is QoSClass.SYSTEM and pools.system:
        return Choice(pools.system, "CPUs that the node sets aside for the system")
    has_cpu = any(entry.has_cpu for entry in pod.status.numa)
    if has_cpu and (pod.qos is not QoSClass.BE or rule.be_by_numa):
        nodes = sorted({entry.node for entry in pod.status.numa})
        return _of_nodes(pools.be if pod.qos is QoSClass.BE else pools.ls, nodes)
    if pod.qos is not QoSClass.LS and (kube_qos is KubeQoS.BEST_EFFORT or pools.by_kubelet):
        return None
    return shared_cpus(pools)


def shared_cpus(pools: Pools) -> Choice | None:
    """Return the CPUs that all LS pods share; None: there are none."""
    return _union(pools.ls, "CPUs that pods of this node share")


def _of_nodes(pools: Collection[CpuPool], nodes: list[int]) -> Choice | None:
    """The shared CPUs of NUMA nodes; all shared CPUs when those nodes have none."""
    names = ", ".join(map(str, nodes))
    here = [pool for pool in pools if pool.node in nodes and pool.cpus]
    if here:
        return _union(here, f"shared CPUs of NUMA node {names}, by {RESOURCE_STATUS}")
    return _union(pools, f"all shared CPUs, as NUMA node {names} has none")


def _union(pools: Iterable[CpuPool], reason: str) -> Choice | None:
    cpus = frozenset(cpu for pool in pools for cpu in pool.cpus)
    return Choice(cpus, reason) if cpus else None
