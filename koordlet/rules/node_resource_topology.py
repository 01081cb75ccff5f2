"""NodeResourceTopology v1alpha1 on the wire: zones, CPU annotations, patches."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from koord.api.fields import Fields
from koord.api.gojson import parse_json
from koord.api.kubelet import NO_POLICY, PodCpus
from koord.api.machine import CpuBasics, CpuTopology, format_cpulist
from koord.api.node import NODE_RESERVATION, SYSTEM_QOS_RESOURCE, Node
from koord.api.nodetopology import CPU_MANAGER_POLICY, CPU_TOPOLOGY, POD_CPU_ALLOCS
from koord.api.quantity import Quantity
from koord.util.errors import InvalidObject
from koordlet.rules.node_topology import (
    NUMA_RESERVATION,
    ZONE_TYPE,
    CpuPool,
    NodeTopology,
    Zone,
)
from koordlet.rules.object_patch import (
    Operation,
    add_operation,
    annotation_operations,
    new_metadata,
    precondition,
)

_AMOUNTS = ("capacity", "allocatable", "available")  # Koordinator's parts expect them to be equal


def same_zones(found: object, wanted: Iterable[Zone]) -> bool:
    """Whether exactly the wanted zones are there with their resources, in any order."""
    zones = {zone.name: zone for zone in wanted}
    items = list(_by_name(found))
    if not isinstance(found, list) or len(items) != len(found) or len(items) != len(zones):
        return False
    return {name for name, _ in items} == zones.keys() and all(
        item.get("type") == ZONE_TYPE and _has_resources(item, zones[name]) for name, item in items
    )


def merged_zones(found: object, wanted: Iterable[Zone]) -> list[dict[str, object]]:
    """Return the wanted zones, each with the additions of others to the zone of its name."""
    zones = dict(_by_name(found))
    return [_merge_zone(zones.get(zone.name, {}), zone) for zone in wanted]


def _merge_zone(found: Mapping[str, object], zone: Zone) -> dict[str, object]:
    resources = dict(_by_name(found.get("resources"))) | {
        name: {"name": name} | dict.fromkeys(_AMOUNTS, str(amount))
        for name, amount in zone.resources.items()
    }
    return {
        **found,
        "name": zone.name,
        "type": ZONE_TYPE,
        "resources": [resources[name] for name in sorted(resources)],
    }


def _has_resources(found: Mapping[str, object], zone: Zone) -> bool:
    resources = dict(_by_name(found.get("resources")))
    return all(
        name in resources
        and all(_equals_amount(resources[name].get(key), amount) for key in _AMOUNTS)
        for name, amount in zone.resources.items()
    )


def _equals_amount(found: object, amount: Quantity) -> bool:
    try:
        return Quantity.parse(found) == amount
    except ValueError:
        return False


def _by_name(items: object) -> Iterator[tuple[str, dict[str, object]]]:
    """The objects of a list by their names; those without a name are left out."""
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and isinstance(item.get("name"), str):
            yield item["name"], item


CPU_BASIC_INFO = "node.koordinator.sh/cpu-basic-info"
LS_POOLS = "node.koordinator.sh/cpu-shared-pools"
BE_POOLS = "node.koordinator.sh/be-cpu-shared-pools"

_GO_ESCAPES = str.maketrans({letter: f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"})


def topology_annotations(topology: NodeTopology) -> dict[str, str]:
    """Return all of them."""
    values: dict[str, object] = {
        CPU_BASIC_INFO: _basic_info(topology.machine.basics),
        CPU_TOPOLOGY: {"detail": _cpu_topology(topology.machine.topology)},
        LS_POOLS: _cpu_pools(topology.ls_pools),
        BE_POOLS: _cpu_pools(topology.be_pools),
        CPU_MANAGER_POLICY: topology.cpu_manager.to_json(),
        POD_CPU_ALLOCS: _pod_cpu_allocations(topology.kubelet_allocations),
        NODE_RESERVATION: topology.reservation.to_json(),
        SYSTEM_QOS_RESOURCE: topology.system_qos and topology.system_qos.to_json(),
    }
    return {key: _go_json(value) for key, value in values.items()}


def outdated_annotations(found: Mapping[str, str], topology: NodeTopology) -> dict[str, str]:
    """Return those that an object lacks, or whose JSON differs from what it should be."""
    return {
        key: text
        for key, text in topology_annotations(topology).items()
        if not _is_equal(found.get(key), text, partial=_is_partial(key, topology))
    }


def _is_partial(key: str, topology: NodeTopology) -> bool:
    """Whether an annotation may contain more: of the kubelet only its policy is known."""
    return key == CPU_MANAGER_POLICY and topology.topology_policy is None


def _is_equal(found: str | None, wanted: str, *, partial: bool) -> bool:
    if found is None or found == wanted:
        return found == wanted
    try:
        ours, theirs = parse_json(wanted, "ours"), parse_json(found, "theirs")
    except InvalidObject:
        return False
    if partial and isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.items() <= theirs.items()
    return ours == theirs


def _basic_info(basics: CpuBasics) -> object:
    values = {
        "cpuModel": basics.model,
        "hyperThreadEnabled": basics.hyper_threading,
        "turboEnabled": basics.turbo,
        "catL3CbmMask": basics.l3_mask,
        "vendorID": basics.vendor,
    }
    return {key: value for key, value in values.items() if value}


def _cpu_topology(topology: CpuTopology) -> object:
    return [
        {"id": cpu.cpu, "core": cpu.core, "socket": cpu.socket, "node": cpu.node}
        for cpu in sorted(topology.cpus, key=lambda cpu: cpu.cpu)
    ]


def _cpu_pools(pools: tuple[CpuPool, ...]) -> object:
    return [
        {"socket": pool.socket, "node": pool.node}
        | ({"cpuset": format_cpulist(pool.cpus)} if pool.cpus else {})
        for pool in pools
    ] or None


def _pod_cpu_allocations(pods: tuple[PodCpus, ...]) -> object:
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


@dataclass(frozen=True, slots=True)
class PublishedTopology:
    """The object as it is on the server. None: the object has no annotations or no labels."""

    uid: str
    version: str
    annotations: Mapping[str, str] | None
    labels: Mapping[str, str] | None
    policies: object  # as found
    zones: object  # as found


def parse_published_topology(obj: object) -> PublishedTopology:
    """Return the relevant part of a NodeResourceTopology object as JSON.

    Raises:
        InvalidObject: its metadata is malformed; other malformed fields will be overwritten.
    """
    root = Fields(obj, "nodeResourceTopology")
    meta = root.nested("metadata")
    return PublishedTopology(
        uid=meta.required_text("uid"),
        version=meta.required_text("resourceVersion"),
        annotations=meta.texts("annotations") if meta.raw.get("annotations") else None,
        labels=meta.texts("labels") if meta.raw.get("labels") else None,
        policies=root.raw.get("topologyPolicies"),
        zones=root.raw.get("zones"),
    )


def new_topology_object(name: str, node: Node, topology: NodeTopology) -> dict[str, object]:
    """Return the object to create. Its owner is the Node, where that is known to the cluster."""
    reservation = topology.numa_reservation
    labels = {NUMA_RESERVATION: reservation} if reservation else {}
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha1",
        "kind": "NodeResourceTopology",
        "metadata": new_metadata(name, node, labels, topology_annotations(topology)),
        "topologyPolicies": [topology.topology_policy or NO_POLICY],
        "zones": merged_zones([], topology.zones),
    }


def topology_patch(published: PublishedTopology, topology: NodeTopology) -> list[Operation]:
    """Return the operations that correct this agent's part of the object; none when it is right.

    They apply to exactly the version that was read, as zones are replaced as a whole.
    """
    found = published.annotations
    texts = (
        topology_annotations(topology) if found is None else outdated_annotations(found, topology)
    )
    operations = [
        *annotation_operations("annotations", found, texts),
        *annotation_operations(
            "labels", published.labels, {NUMA_RESERVATION: topology.numa_reservation}
        ),
    ]
    policy = topology.topology_policy
    if policy is not None and published.policies != [policy]:
        operations.append(add_operation("/topologyPolicies", [policy]))
    if not same_zones(published.zones, topology.zones):
        operations.append(add_operation("/zones", merged_zones(published.zones, topology.zones)))
    return precondition(published.uid, published.version, operations)
