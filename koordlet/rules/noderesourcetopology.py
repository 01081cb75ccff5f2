"""NodeResourceTopology v1alpha1 on the wire: this agent's part of it, and patches that correct it.

Other agents write to the same object: koord-manager adds resources to the zones. Their part stays.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from koord.api.decoding.fields import Fields
from koord.api.nodes.kubeletconfig import NO_POLICY
from koord.api.nodes.node import Node
from koordlet.rules.nodetopology import NUMA_RESERVATION, NodeTopology
from koordlet.rules.objectpatch import (
    Operation,
    add,
    new_metadata,
    only_for,
    text_operations,
)
from koordlet.rules.topologyannotations import annotations, outdated
from koordlet.rules.zonesonwire import merged_zones, same_zones


@dataclass(frozen=True, slots=True)
class PublishedTopology:
    """The object as it is on the server. None: the object has no annotations or no labels."""

    uid: str
    version: str
    annotations: Mapping[str, str] | None
    labels: Mapping[str, str] | None
    policies: object  # as found
    zones: object  # as found


def parse_published(obj: object) -> PublishedTopology:
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


def new_object(name: str, node: Node, topology: NodeTopology) -> dict[str, object]:
    """Return the object to create. Its owner is the Node, where that is known to the cluster."""
    reservation = topology.numa_reservation
    labels = {NUMA_RESERVATION: reservation} if reservation else {}
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha1",
        "kind": "NodeResourceTopology",
        "metadata": new_metadata(name, node, labels, annotations(topology)),
        "topologyPolicies": [topology.topology_policy or NO_POLICY],
        "zones": merged_zones([], topology.zones),
    }


def patch(published: PublishedTopology, topology: NodeTopology) -> list[Operation]:
    """Return the operations that correct this agent's part of the object; none when it is right.

    They apply to exactly the version that was read, as zones are replaced as a whole.
    """
    found = published.annotations
    texts = annotations(topology) if found is None else outdated(found, topology)
    operations = [
        *text_operations("annotations", found, texts),
        *text_operations("labels", published.labels, {NUMA_RESERVATION: topology.numa_reservation}),
    ]
    policy = topology.topology_policy
    if policy is not None and published.policies != [policy]:
        operations.append(add("/topologyPolicies", [policy]))
    if not same_zones(published.zones, topology.zones):
        operations.append(add("/zones", merged_zones(published.zones, topology.zones)))
    return only_for(published.uid, published.version, operations)
