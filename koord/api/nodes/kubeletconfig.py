"""The kubelet's configuration of this node, as far as CPUs and topology go.

Source: Kubernetes, KubeletConfiguration v1beta1 as GET /configz shows it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from koord.api.decoding.fields import Fields
from koord.api.nodes.cpuallocator import take_by_topology
from koord.api.nodes.machine import CpuTopology
from koord.api.quantity import Quantity
from koord.util.cpulist import parse_cpulist
from koord.util.errors import InvalidObject

STATIC = "static"  # the CPU manager policy that gives pods CPUs of their own
NO_POLICY = "None"  # the topology policy of a node whose kubelet aligns nothing

_WHERE = "kubeletconfig"
_RESERVABLE = ("cpu", "memory", "ephemeral-storage", "pid")
_POLICIES = {
    "single-numa-node": "SingleNUMANode",
    "restricted": "Restricted",
    "best-effort": "BestEffort",
}
_SCOPES = {"container": "ContainerLevel", "pod": "PodLevel"}


@dataclass(frozen=True, slots=True)
class KubeletConfig:
    """The settings as found; those that are absent have Kubernetes' defaults."""

    cpu_manager_policy: str = "none"
    cpu_manager_options: Mapping[str, str] = field(default_factory=dict)
    kube_reserved: Mapping[str, str] = field(default_factory=dict)  # resource -> quantity
    system_reserved: Mapping[str, str] = field(default_factory=dict)
    reserved_system_cpus: str = ""  # a list of CPUs
    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"

    @property
    def topology_policy(self) -> str:
        """The topology manager's part of a NodeResourceTopology."""
        policy = _POLICIES.get(self.topology_manager_policy)
        scope = _SCOPES.get(self.topology_manager_scope)
        return f"{policy}{scope}" if policy and scope else NO_POLICY


def parse_kubelet_config(obj: object) -> KubeletConfig:
    """Return the settings of the "kubeletconfig" object of /configz.

    Raises:
        InvalidObject: a field this module reads has the wrong type.
    """
    root, default = Fields(obj, _WHERE), KubeletConfig()
    return KubeletConfig(
        cpu_manager_policy=root.text("cpuManagerPolicy") or default.cpu_manager_policy,
        cpu_manager_options=root.texts("cpuManagerPolicyOptions"),
        kube_reserved=root.texts("kubeReserved"),
        system_reserved=root.texts("systemReserved"),
        reserved_system_cpus=root.text("reservedSystemCPUs"),
        topology_manager_policy=root.text("topologyManagerPolicy"),
        topology_manager_scope=root.text("topologyManagerScope") or default.topology_manager_scope,
    )


def static_reserved_cpus(config: KubeletConfig, topology: CpuTopology) -> frozenset[int]:
    """Return the CPUs that the static CPU manager gives to no pod; none with another policy.

    Raises:
        InvalidObject: no CPU is reserved, which the static policy demands, or what is reserved is
            malformed or not there.
    """
    if config.cpu_manager_policy != STATIC:
        return frozenset()
    if config.reserved_system_cpus:
        return _named(config.reserved_system_cpus, topology)
    nano = _reserved_cpu(config.kube_reserved, "kubeReserved") + _reserved_cpu(
        config.system_reserved, "systemReserved"
    )
    count = Quantity(nano).integer
    wanted = f"1 to {len(topology.cpus)} reserved CPUs"
    if count == 0:
        raise InvalidObject(f"{_WHERE}.kubeReserved", wanted=wanted, found=config.kube_reserved)
    try:
        return take_by_topology(topology, topology.numbers, count)
    except ValueError as err:
        raise InvalidObject(f"{_WHERE}.kubeReserved", wanted=wanted, found=f"{count}") from err


def _named(text: str, topology: CpuTopology) -> frozenset[int]:
    """Return the CPUs of a list that overrides the reserved amounts."""
    where, wanted = f"{_WHERE}.reservedSystemCPUs", "a list of CPUs of this machine"
    try:
        cpus = parse_cpulist(text)
    except ValueError as err:
        raise InvalidObject(where, wanted=wanted, found=text) from err
    if not cpus or not cpus <= topology.numbers:
        raise InvalidObject(where, wanted=wanted, found=text)
    return cpus


def _reserved_cpu(reserved: Mapping[str, str], key: str) -> int:
    """Return the CPU of a reservation, in billionths of a core; the rest of it is checked, too."""
    for resource, text in reserved.items():
        where = f"{_WHERE}.{key}.{resource}"
        if resource not in _RESERVABLE:
            raise InvalidObject(where, wanted=" or ".join(_RESERVABLE), found=resource)
        try:
            negative = Quantity.parse(text).nano < 0
        except ValueError:
            negative = True
        if negative:
            raise InvalidObject(where, wanted="a quantity of 0 or more", found=text)
    return Quantity.parse(reserved.get("cpu", "0")).nano
