"""NodeResourceTopology: what its annotations say of the kubelet, and of CPUs that no pod gets.

Source: Koordinator, apis/extension/numa_aware.go.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from koord.api.annotations import annotation_fields
from koord.api.fields import Fields
from koord.api.machine import format_cpulist, parse_cpulist
from koord.api.node import NODE_RESERVATION, SYSTEM_QOS_RESOURCE, system_qos
from koord.util.errors import InvalidObject

CPU_TOPOLOGY = "node.koordinator.sh/cpu-topology"
POD_CPU_ALLOCS = "node.koordinator.sh/pod-cpu-allocs"
CPU_MANAGER_POLICY = "kubelet.koordinator.sh/cpu-manager-policy"


@dataclass(frozen=True, slots=True)
class CpuManagerPolicy:
    """The kubelet's policy for giving CPUs to pods; all empty when nothing is known of it."""

    policy: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    reserved_cpus: frozenset[int] = frozenset()  # given to no pod by the static policy

    @property
    def pins_cpus(self) -> bool:
        """Whether the kubelet gives CPUs to Guaranteed pods by itself."""
        return self.policy == "static"

    @property
    def full_cores_only(self) -> bool:
        """Whether the kubelet gives whole cores only."""
        return self.pins_cpus and self.options.get("full-pcpus-only") == "true"

    def to_json(self) -> dict[str, object]:
        """The object as on the wire; what is empty is left out."""
        parts = (
            ("policy", self.policy),
            ("options", dict(sorted(self.options.items()))),
            ("reservedCPUs", format_cpulist(self.reserved_cpus)),
        )
        return {key: value for key, value in parts if value}


def cpu_manager_policy(annotations: Mapping[str, str]) -> CpuManagerPolicy:
    """Return what a kubelet reports of its CPU manager.

    Raises:
        InvalidObject: the annotation is malformed.
    """
    text = annotations.get(CPU_MANAGER_POLICY)
    return CpuManagerPolicy() if text is None else _manager_policy(text)


@lru_cache(maxsize=256)  # kubelets of one kind say the same, and each is asked for it twice
def _manager_policy(text: str) -> CpuManagerPolicy:
    fields = annotation_fields(text, CPU_MANAGER_POLICY)
    reserved = _cpus(fields.text("reservedCPUs"), fields.path("reservedCPUs"))
    return CpuManagerPolicy(fields.text("policy"), fields.texts("options"), reserved)


def withheld_cpus(annotations: Mapping[str, str]) -> frozenset[int]:
    """Return CPUs that are the kubelet's, the system's, or of pods whose CPUs the kubelet chooses.

    Raises:
        InvalidObject: a part of that is malformed.
    """
    found = set(cpu_manager_policy(annotations).reserved_cpus)
    for text, key in _allocated(annotations.get(POD_CPU_ALLOCS)):
        found |= _cpus(text, key)
    kept = annotations.get(NODE_RESERVATION)
    if kept is not None:
        fields = annotation_fields(kept, NODE_RESERVATION)
        found |= _cpus(fields.text("reservedCPUs"), fields.path("reservedCPUs"))
    system = system_qos(annotations)
    if system.exclusive is not False:
        found |= _cpus(system.cpuset, f"{SYSTEM_QOS_RESOURCE}.cpuset")
    return frozenset(found)


def _allocated(text: str | None) -> Iterator[tuple[str, str]]:
    """Yield the CPUs of pods that have them from the kubelet."""
    if text is None:
        return
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise InvalidObject(POD_CPU_ALLOCS, wanted="JSON", found=str(err)) from err
    listed = Fields({"pods": value}, POD_CPU_ALLOCS, fold_case=True)
    for each in listed.objects("pods"):
        if each.boolean("managedByKubelet") and each.text("uid"):
            yield each.text("cpuset"), each.path("cpuset")


def _cpus(text: str, where: str) -> frozenset[int]:
    try:
        return parse_cpulist(text)
    except ValueError as err:
        raise InvalidObject(where, wanted="a list of CPUs", found=text) from err


NUMA_TOPOLOGY_POLICY = "node.koordinator.sh/numa-topology-policy"  # label of a Node
NUMA_TOPOLOGY_SPEC = "scheduling.koordinator.sh/numa-topology-spec"  # annotation of a pod


class NUMATopologyPolicy(StrEnum):
    """The alignment of NUMA nodes that a node or a pod requires."""

    BEST_EFFORT = "BestEffort"  # any will do
    RESTRICTED = "Restricted"  # those that all hints prefer
    SINGLE_NUMA_NODE = "SingleNUMANode"  # one


# The topology policies of the kubelet that say something, as NodeResourceTopology has them.
_POLICIES = {
    "BestEffort": NUMATopologyPolicy.BEST_EFFORT,
    "BestEffortPodLevel": NUMATopologyPolicy.BEST_EFFORT,
    "Restricted": NUMATopologyPolicy.RESTRICTED,
    "RestrictedPodLevel": NUMATopologyPolicy.RESTRICTED,
    "SingleNUMANodePodLevel": NUMATopologyPolicy.SINGLE_NUMA_NODE,
}


def kubelet_topology_policy(topology: Mapping[str, object]) -> NUMATopologyPolicy | None:
    """Return the first policy of the kubelet that Koordinator knows.

    Those of containers are none for pods.
    """
    found = topology.get("topologyPolicies")
    for each in found if isinstance(found, list) else ():
        if isinstance(each, str) and (each in _POLICIES or each in _WITHOUT_EFFECT):
            return _POLICIES.get(each)
    return None


_WITHOUT_EFFECT = frozenset(
    {
        "None",
        "SingleNUMANodeContainerLevel",
        "RestrictedContainerLevel",
        "BestEffortContainerLevel",
    }
)


def policy_of(text: str) -> NUMATopologyPolicy | None:
    """Return the NUMA policy of a label or annotation; None: it is none."""
    return NUMATopologyPolicy(text) if text in set(NUMATopologyPolicy) else None


CPU_BIND_POLICY = "node.koordinator.sh/cpu-bind-policy"  # label of a Node


class BindPolicy(StrEnum):
    """How the CPUs of a pod lie on cores."""

    FULL_PCPUS = "FullPCPUs"  # whole cores
    SPREAD_BY_PCPUS = "SpreadByPCPUs"  # one thread of each core, as long as that is possible


_BINDS = {
    "FullPCPUsOnly": BindPolicy.FULL_PCPUS,
    "SpreadByPCPUs": BindPolicy.SPREAD_BY_PCPUS,
}


def bind_policy_of_node(labels: Mapping[str, str], kubelet: CpuManagerPolicy) -> BindPolicy | None:
    """Return how CPUs are bound on a node, of pods of any class; None: as each pod says."""
    if kubelet.full_cores_only:
        return BindPolicy.FULL_PCPUS
    return _BINDS.get(labels.get(CPU_BIND_POLICY, ""))
