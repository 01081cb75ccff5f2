"""Requests of a pod for exclusive CPUs and for NUMA nodes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from koord.api.annotations import RESOURCE_SPEC, RESOURCE_STATUS, annotation_fields, is_designated
from koord.api.nodetopology import NUMA_TOPOLOGY_SPEC, BindPolicy, NUMATopologyPolicy, policy_of
from koord.api.qos import may_bind_cpus
from koord.plugin import InvalidObject
from koord_scheduler.plugin import ClusterPod, Status
from koord_scheduler_plugins.node_numa_resource.accumulator import ExclusivePolicy
from koord_scheduler_plugins.node_numa_resource.allocation import Need
from koord_scheduler_plugins.node_numa_resource.holdings import (
    Allocation,
    allocation_of,
    annotation,
    exclusive_policy,
)
from koord_scheduler_plugins.node_numa_resource.machine import Machine

NO_WHOLE_CPUS = Status.unresolvable("the requested CPUs must be integer")
POLICIES_DIFFER = Status.unresolvable("node(s) NUMA Topology policy not match")
NO_TOPOLOGY = Status.unresolvable("node(s) invalid CPU Topology")
BINDS_DIFFER = Status.unresolvable(
    "node(s) cpu bind policy conflicts with pod's required cpu bind policy"
)
NO_WHOLE_CORES = Status.unresolvable("node(s) requested cpus not multiple cpus per core")
NO_RATIO = Status.unresolvable("node(s) invalid CPU amplification ratio")
NO_AMPLIFIED_CPU = Status.unschedulable("Insufficient amplified cpu")
NO_NUMA_NODES = Status.unresolvable("node(s) missing NUMA resources")

PLUGIN = "NodeNUMAResource"  # its name in the extensions of a scheduling hint

_DEFAULT = "Default"


@dataclass(frozen=True, slots=True)
class PodDemand:
    """The demand of a pod, the same for all nodes."""

    requests: tuple[tuple[str, int], ...]
    binds: bool = False  # it gets CPUs of its own on each node
    required: BindPolicy | None = None
    preferred: BindPolicy | None = None
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE
    policy: NUMATopologyPolicy | None = None
    exclusive_numa: str = ""  # singleNUMANodeExclusive
    designated: Allocation | None = None  # it gets this or nothing; None: what the plugin chooses

    @property
    def milli_cpu(self) -> int:
        return next((amount for name, amount in self.requests if name == "cpu"), 0)

    def clone(self) -> "PodDemand":
        return self

    @property
    def asks(self) -> bool:
        """Whether it asks for CPUs or NUMA nodes, whatever its node asks of it."""
        return self.binds or self.policy is not None

    @property
    def requires_own_numa_nodes(self) -> bool:
        return self.exclusive_numa == "Required"

    @property
    def prefers_own_numa_nodes(self) -> bool:
        return self.exclusive_numa == "Preferred"

    @property
    def wants_own_numa_nodes(self) -> bool:
        """A pod with a NUMA policy of its own does, unless it says otherwise."""
        implied = not self.exclusive_numa and self.policy is not None
        return implied or self.requires_own_numa_nodes


@dataclass(frozen=True, slots=True)
class _Spec:
    required: str
    preferred: str


@lru_cache(maxsize=1024)
def _spec(text: str) -> _Spec:
    fields = annotation_fields(text, RESOURCE_SPEC)
    fields.text("preferredCPUExclusivePolicy")
    return _Spec(fields.text("requiredCPUBindPolicy"), fields.text("preferredCPUBindPolicy"))


@lru_cache(maxsize=1024)
def _numa_spec(text: str) -> tuple[str, str]:
    fields = annotation_fields(text, NUMA_TOPOLOGY_SPEC)
    return fields.text("numaTopologyPolicy"), fields.text("singleNUMANodeExclusive")


def demand_of(pod: ClusterPod, default: BindPolicy | None) -> PodDemand | Status:
    """Return what a pod asks for, or why it cannot be placed anywhere.

    default: the policy of pods that may have CPUs and name none; None: they get none.
    """
    spec, numa, policy = _Spec("", ""), "", ""
    try:
        if text := annotation(pod, RESOURCE_SPEC):
            spec = _spec(text)
        if text := annotation(pod, NUMA_TOPOLOGY_SPEC):
            policy, numa = _numa_spec(text)
        designated = designation_of(pod)
    except InvalidObject as err:
        return Status.unresolvable(str(err))
    found = PodDemand(
        pod.spec.requests,
        policy=policy_of(policy),
        exclusive_numa=numa,
        designated=designated,
    )
    if not may_bind_cpus(pod.labels, pod.priority):
        return found
    required = _bind(spec.required, default) if spec.required else None
    preferred = _bind(spec.preferred or _DEFAULT, default)
    if spec.required:
        preferred = required
    if preferred is None or not found.milli_cpu:
        return found
    if found.milli_cpu % 1000:
        return NO_WHOLE_CPUS
    return PodDemand(
        pod.spec.requests,
        binds=True,
        required=required,
        preferred=preferred,
        exclusive=exclusive_policy(pod),
        policy=found.policy,
        exclusive_numa=numa,
        designated=designated,
    )


def designation_of(pod: ClusterPod) -> Allocation | None:
    """Return the allocation that a pod comes with; None: its scheduling hint names none.

    Raises:
        InvalidObject: the hint, or the allocation, is malformed.
    """
    if not annotation(pod, RESOURCE_STATUS) or not is_designated(pod.annotations, PLUGIN):
        return None
    return allocation_of(pod)


def _bind(text: str, default: BindPolicy | None) -> BindPolicy | None:
    if text == _DEFAULT:
        return default
    return BindPolicy(text) if text in set(BindPolicy) else None


def need_on(demand: PodDemand, machine: Machine) -> Need | Status:
    """Return what a pod needs of one node, or why the node can never do."""
    requests: Mapping[str, int] = dict(demand.requests)
    rules = machine.rules
    if not demand.binds and (rules.bind is None or not demand.milli_cpu):
        return Need(requests=requests)
    if demand.milli_cpu % 1000:
        return NO_WHOLE_CPUS
    if not machine.layout.valid:
        return NO_TOPOLOGY
    if demand.required is not None and rules.bind not in (None, demand.required):
        return BINDS_DIFFER
    required = rules.bind or demand.required
    count = demand.milli_cpu // 1000
    if required is BindPolicy.FULL_PCPUS and count % machine.layout.cpus_per_core:
        return NO_WHOLE_CORES
    return Need(
        requests=requests,
        cpus=count,
        policy=demand.required or rules.bind or demand.preferred,
        required=required is not None,
        exclusive=demand.exclusive,
    )


def completed_spec(text: str, need: Need) -> str | None:
    """Return the annotation resource-spec with the policy that was used; None: it has it.

    text: the annotation as it was, "" if the pod has none.
    """
    if need.policy is None or not need.cpus:
        return None
    spec = _spec(text) if text else _Spec("", "")
    required, preferred = spec.required, spec.preferred
    if need.required and required in ("", _DEFAULT):
        required = need.policy
    if preferred == _DEFAULT:
        preferred = need.policy
    if not required and not preferred:
        preferred = need.policy
    if (required, preferred) == (spec.required, spec.preferred):
        return None
    kept = json.loads(text) if text else {}
    found = {"requiredCPUBindPolicy": required, "preferredCPUBindPolicy": preferred}
    others = {key: value for key, value in kept.items() if key.lower() not in _LOWER_KEYS}
    filled = {key: str(value) for key, value in found.items() if value}
    return json.dumps({**filled, **others}, separators=(",", ":"))


_LOWER_KEYS = ("requiredcpubindpolicy", "preferredcpubindpolicy")


def policy_on(demand: PodDemand, machine: Machine) -> NUMATopologyPolicy | Status | None:
    """Return the NUMA policy of a pod on a node; None: there is none."""
    own, of_node = demand.policy, machine.rules.policy
    if own is not None and of_node is not None and own is not of_node:
        return POLICIES_DIFFER
    return own or of_node
