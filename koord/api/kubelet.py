"""The kubelet's configuration of CPUs and topology, and the state of its static CPU manager."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from koord.api.annotations import allocated_cpus
from koord.api.fields import Fields
from koord.api.machine import CpuTopology, parse_cpulist, take_by_topology
from koord.api.pod import Pod
from koord.api.qos import QoSClass
from koord.api.quantity import Quantity
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


@dataclass(frozen=True, slots=True)
class CpuManagerState:
    """The checkpoint. An empty one has given nothing away."""

    policy: str = ""  # "none" or "static"; "" when the file does not say
    entries: Mapping[str, frozenset[int]] = field(default_factory=dict)  # pod UID -> its CPUs


@dataclass(frozen=True, slots=True)
class PodCpus:
    """The CPUs that a pod has from the kubelet. Namespace and name are "" for an unknown pod."""

    uid: str
    cpus: frozenset[int]
    namespace: str = ""
    name: str = ""


def parse_cpu_manager_state(obj: object) -> CpuManagerState:
    """Return the checkpoint of a JSON object; as in Go, the case of its keys does not matter.

    Lists of CPUs that are malformed count as empty, as in Koordinator.

    Raises:
        InvalidObject: it has another shape.
    """
    where = "cpu_manager_state"
    root = Fields({str(key).lower(): value for key, value in Fields(obj, where).raw.items()}, where)
    entries = root.nested("entries")
    return CpuManagerState(
        policy=root.text("policyname"),
        entries={uid: _union(entries.texts(uid).values()) for uid in entries.raw},
    )


def kubelet_allocations(state: CpuManagerState, pods: Iterable[Pod]) -> tuple[PodCpus, ...]:
    """Return what the kubelet alone manages, by ascending UID.

    Left out are pods without CPUs, and those whose CPUs are Koordinator's business: labelled LS or
    BE, or with CPUs from its scheduler.
    """
    known = {pod.uid: pod for pod in pods}
    return tuple(_allocations(state, known))


def _allocations(state: CpuManagerState, known: Mapping[str, Pod]) -> Iterator[PodCpus]:
    for uid, cpus in sorted(state.entries.items()):
        pod = known.get(uid)
        if not cpus or (pod is not None and _is_managed(pod)):
            continue
        yield PodCpus(uid, cpus, *((pod.namespace, pod.name) if pod else ()))


def _is_managed(pod: Pod) -> bool:
    if pod.raw_qos_class in (QoSClass.LS, QoSClass.BE):
        return True
    try:
        return bool(allocated_cpus(pod))
    except InvalidObject:
        return False


def _union(lists: Iterable[str]) -> frozenset[int]:
    cpus: set[int] = set()
    for text in lists:
        try:
            cpus |= parse_cpulist(text)
        except ValueError:
            continue
    return frozenset(cpus)
