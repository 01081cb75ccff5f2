"""Objects that this agent keeps on the API server: owner, and patches of its part of them."""

from collections.abc import Iterator, Mapping

from koord.api.node import Node

Operation = dict[str, object]
"""One operation of a JSON patch."""


def new_metadata(
    name: str, node: Node, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> dict[str, object]:
    """Return the metadata of an object to create.

    Its owner is the Node, where that is known to the cluster.
    """
    owner = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": node.name,
        "uid": node.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name,
        "labels": {"app.kubernetes.io/managed-by": "Koordinator", **labels},
        "annotations": dict(annotations),
        **({"ownerReferences": [owner]} if node.uid else {}),
    }


def precondition(uid: str, version: str, operations: list[Operation]) -> list[Operation]:
    """Return the operations such that they apply to exactly this version of this object."""
    if not operations:
        return []
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": version},
        *operations,
    ]


def annotation_operations(
    field: str, found: Mapping[str, str] | None, wanted: Mapping[str, str]
) -> Iterator[Operation]:
    """Operations that make texts of a map in the metadata what they should be.

    field is labels or annotations; found is None where the object has none. "" takes a text away.
    """
    kept = {key: text for key, text in wanted.items() if text}
    if found is None:
        if kept:
            yield add_operation(f"/metadata/{field}", kept)
        return
    for key, text in wanted.items():
        if found.get(key, "") != text:
            path = f"/metadata/{field}/{_escaped(key)}"
            yield add_operation(path, text) if text else {"op": "remove", "path": path}


def add_operation(path: str, value: object) -> Operation:
    """The operation that sets a value; it replaces what is there."""
    return {"op": "add", "path": path, "value": value}


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
