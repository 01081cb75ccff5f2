"""The node this daemon runs on, as the cluster (or a file, or the host itself) describes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from koordlet.api.fields import Fields


@dataclass(frozen=True, slots=True)
class Node:
    """A v1 Node. Quantities are the texts found; each one is valid."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)


def parse_node(obj: object) -> Node:
    """Return the node of a v1 Node object as JSON.

    Raises:
        InvalidObject: a field this module reads is missing or has the wrong type.
    """
    root = Fields(obj, "node")
    meta, status = root.nested("metadata"), root.nested("status")
    return Node(
        name=meta.required_text("name"),
        labels=meta.texts("labels"),
        annotations=meta.texts("annotations"),
        capacity=status.quantities("capacity"),
        allocatable=status.quantities("allocatable"),
    )
