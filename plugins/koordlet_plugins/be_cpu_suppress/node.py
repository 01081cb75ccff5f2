"""The CPUs of this node that best-effort pods may use, and who else gives CPUs to containers."""

import operator
from typing import NamedTuple

from koord.api.kubeletconfig import STATIC
from koord.api.machine import NODE_CPU_INFO, NodeCpuInfo
from koord.api.nodereservation import set_aside_cpus
from koordlet.plugin import MetricCache, States
from koordlet.plugin.rules import NodeTopology
from koordlet_plugins.be_cpu_suppress.cpusets import BestEffortCpus


class NodeCpus(NamedTuple):
    """static: the kubelet gives CPUs to containers itself."""

    cpus: BestEffortCpus
    static: bool


class CpuView:
    """Works out the CPUs anew only when something they follow from was replaced."""

    def __init__(self, states: States, cache: MetricCache, *, in_cluster: bool) -> None:
        self._states = states
        self._cache = cache
        self._in_cluster = in_cluster
        self._facts: tuple[object, ...] = ()
        self._cpus: NodeCpus | None = None

    def now(self) -> NodeCpus | None:
        """Return what is known now; None: not enough to touch a cpuset."""
        states = self._states
        info, topology = self._cache.get(NODE_CPU_INFO), states.node_topology()
        facts = info, topology, states.node(), states.pods()
        if len(facts) != len(self._facts) or any(map(operator.is_not, facts, self._facts)):
            self._facts, self._cpus = facts, self._work_out(info, topology)
        return self._cpus

    def _work_out(self, info: object, topology: NodeTopology | None) -> NodeCpus | None:
        """Without a cluster there is no topology object, and the node's annotations count alone."""
        node = self._states.node()
        if not isinstance(info, NodeCpuInfo) or node is None:
            return None
        if topology is None and self._in_cluster:
            return None
        if topology is None:
            set_aside, static = set_aside_cpus(node.annotations, info.topology), False
        else:
            system = topology.system_qos.exclusive_cpus if topology.system_qos else frozenset()
            set_aside = topology.reservation.cpus | system
            static = topology.cpu_manager.policy == STATIC
        pods = (meta.pod for meta in self._states.pods())
        return NodeCpus(BestEffortCpus.of_node(info.topology, pods, set_aside), static)
