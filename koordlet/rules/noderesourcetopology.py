"""NodeResourceTopology v1alpha1 on the wire: this agent's part of it, and patches that correct it.

Other agents write to the same object: koord-manager adds resources to the zones. Their part stays.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from koord.api.decoding.fields import Fields
from koord.api.nodes.kubeletconfig import NO_POLICY
from koord.api.nodes.node import Node
from koordlet.rules.nodetopology import NUMA_RESERVATION, NodeTopology
from koordlet.rules.topologyannotations import annotations, outdated
from koordlet.rules.zonesonwire import merged_zones, same_zones

Operation = dict[str, object]
"""One operation of a JSON patch."""


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
    labels = {"app.kubernetes.io/managed-by": "Koordinator"}
    if topology.numa_reservation:
        labels[NUMA_RESERVATION] = topology.numa_reservation
    owner = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": node.name,
        "uid": node.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha1",
        "kind": "NodeResourceTopology",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": annotations(topology),
            **({"ownerReferences": [owner]} if node.uid else {}),
        },
        "topologyPolicies": [topology.topology_policy or NO_POLICY],
        "zones": merged_zones([], topology.zones),
    }


def patch(published: PublishedTopology, topology: NodeTopology) -> list[Operation]:
    """Return the operations that correct this agent's part of the object; none when it is right.

    They apply to exactly the version that was read, as zones are replaced as a whole.
    """
    operations = [
        *_annotation_operations(published.annotations, topology),
        *_label_operations(published.labels, topology.numa_reservation),
    ]
    policy = topology.topology_policy
    if policy is not None and published.policies != [policy]:
        operations.append(_add("/topologyPolicies", [policy]))
    if not same_zones(published.zones, topology.zones):
        operations.append(_add("/zones", merged_zones(published.zones, topology.zones)))
    if not operations:
        return []
    return [
        {"op": "test", "path": "/metadata/uid", "value": published.uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": published.version},
        *operations,
    ]


def _annotation_operations(
    found: Mapping[str, str] | None, topology: NodeTopology
) -> Iterator[Operation]:
    if found is None:
        yield _add("/metadata/annotations", annotations(topology))
        return
    for key, text in outdated(found, topology).items():
        yield _add(f"/metadata/annotations/{_escaped(key)}", text)


def _label_operations(found: Mapping[str, str] | None, wanted: str) -> Iterator[Operation]:
    if found is None and wanted:
        yield _add("/metadata/labels", {NUMA_RESERVATION: wanted})
    elif found is not None and found.get(NUMA_RESERVATION, "") != wanted:
        path = f"/metadata/labels/{_escaped(NUMA_RESERVATION)}"
        yield _add(path, wanted) if wanted else {"op": "remove", "path": path}


def _add(path: str, value: object) -> Operation:
    return {"op": "add", "path": path, "value": value}  # replaces what is there


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
