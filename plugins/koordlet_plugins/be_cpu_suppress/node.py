"""The CPUs of this node that best-effort pods may use, and who else gives CPUs to containers."""

from typing import NamedTuple

from koordlet.api.kubeletconfig import STATIC
from koordlet.api.machine import NODE_CPU_INFO, NodeCpuInfo
from koordlet.api.nodereservation import set_aside_cpus
from koordlet.plugin import MetricCache, States
from koordlet_plugins.be_cpu_suppress.cpusets import BestEffortCpus


class NodeCpus(NamedTuple):
    """static: the kubelet gives CPUs to containers itself."""

    cpus: BestEffortCpus
    static: bool


def node_cpus(states: States, cache: MetricCache, *, in_cluster: bool) -> NodeCpus | None:
    """Return what is known now; None: not enough to touch a cpuset.

    Without a cluster there is no topology object, so what the node's annotations say counts alone.
    """
    info, topology, node = cache.get(NODE_CPU_INFO), states.node_topology(), states.node()
    if not isinstance(info, NodeCpuInfo) or node is None or (in_cluster and topology is None):
        return None
    if topology is None:
        set_aside, static = set_aside_cpus(node.annotations, info.topology), False
    else:
        system = topology.system_qos.exclusive_cpus if topology.system_qos else frozenset()
        set_aside = topology.reservation.cpus | system
        static = topology.cpu_manager.policy == STATIC
    pods = (meta.pod for meta in states.pods())
    return NodeCpus(BestEffortCpus.of_node(info.topology, pods, set_aside), static)
