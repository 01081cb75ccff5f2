"""The CPU annotations of a NodeResourceTopology, as Koordinator writes them."""

import json
from collections.abc import Mapping

from koord.api.decoding.jsonrules import parse_json
from koord.api.nodes.cpumanager import PodCpus
from koord.api.nodes.machine import CpuBasics, CpuTopology
from koord.api.nodes.reservation import NODE_RESERVATION, SYSTEM_QOS_RESOURCE
from koord.util.cpulist import format_cpulist
from koord.util.errors import InvalidObject
from koordlet.rules.cpupools import CpuPool
from koordlet.rules.nodetopology import CpuManagerPolicy, NodeTopology

CPU_BASIC_INFO = "node.koordinator.sh/cpu-basic-info"
CPU_TOPOLOGY = "node.koordinator.sh/cpu-topology"
LS_POOLS = "node.koordinator.sh/cpu-shared-pools"
BE_POOLS = "node.koordinator.sh/be-cpu-shared-pools"
CPU_MANAGER_POLICY = "kubelet.koordinator.sh/cpu-manager-policy"
POD_CPU_ALLOCS = "node.koordinator.sh/pod-cpu-allocs"

_GO_ESCAPES = str.maketrans({letter: f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"})


def annotations(topology: NodeTopology) -> dict[str, str]:
    """Return all of them."""
    values: dict[str, object] = {
        CPU_BASIC_INFO: _basics(topology.machine.basics),
        CPU_TOPOLOGY: {"detail": _cpus(topology.machine.topology)},
        LS_POOLS: _pools(topology.ls_pools),
        BE_POOLS: _pools(topology.be_pools),
        CPU_MANAGER_POLICY: _manager(topology.cpu_manager),
        POD_CPU_ALLOCS: _allocations(topology.kubelet_allocations),
        NODE_RESERVATION: topology.reservation.to_json(),
        SYSTEM_QOS_RESOURCE: topology.system_qos and topology.system_qos.to_json(),
    }
    return {key: _go_json(value) for key, value in values.items()}


def outdated(found: Mapping[str, str], topology: NodeTopology) -> dict[str, str]:
    """Return those that an object lacks, or whose JSON differs from what it should be."""
    return {
        key: text
        for key, text in annotations(topology).items()
        if not _says_the_same(found.get(key), text, partial=_is_partial(key, topology))
    }


def _is_partial(key: str, topology: NodeTopology) -> bool:
    """Whether an annotation may contain more: of the kubelet only its policy is known."""
    return key == CPU_MANAGER_POLICY and topology.topology_policy is None


def _says_the_same(found: str | None, wanted: str, *, partial: bool) -> bool:
    if found is None or found == wanted:
        return found == wanted
    try:
        ours, theirs = parse_json(wanted, "ours"), parse_json(found, "theirs")
    except InvalidObject:
        return False
    if partial and isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.items() <= theirs.items()
    return ours == theirs


def _basics(basics: CpuBasics) -> object:
    values = {
        "cpuModel": basics.model,
        "hyperThreadEnabled": basics.hyper_threading,
        "turboEnabled": basics.turbo,
        "catL3CbmMask": basics.l3_mask,
        "vendorID": basics.vendor,
    }
    return {key: value for key, value in values.items() if value}


def _cpus(topology: CpuTopology) -> object:
    return [
        {"id": cpu.cpu, "core": cpu.core, "socket": cpu.socket, "node": cpu.node}
        for cpu in sorted(topology.cpus, key=lambda cpu: cpu.cpu)
    ]


def _pools(pools: tuple[CpuPool, ...]) -> object:
    return [
        {"socket": pool.socket, "node": pool.node}
        | ({"cpuset": format_cpulist(pool.cpus)} if pool.cpus else {})
        for pool in pools
    ] or None


def _manager(manager: CpuManagerPolicy) -> object:
    values = {
        "policy": manager.policy,
        "options": dict(sorted(manager.options.items())),
        "reservedCPUs": format_cpulist(manager.reserved_cpus),
    }
    return {key: value for key, value in values.items() if value}


def _allocations(pods: tuple[PodCpus, ...]) -> object:
    return [
        {
            **({"namespace": pod.namespace, "name": pod.name} if pod.name else {}),
            "uid": pod.uid,
            "cpuset": format_cpulist(pod.cpus),
            "managedByKubelet": True,
        }
        for pod in pods
    ] or None


def _go_json(value: object) -> str:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.translate(_GO_ESCAPES)
