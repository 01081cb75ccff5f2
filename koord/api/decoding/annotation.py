"""Annotations whose value is JSON."""

from typing import TypeVar

from koord.api.decoding.fields import Fields
from koord.api.decoding.jsonrules import Struct, parse_json
from koord.api.decoding.jsonvalues import Shape
from koord.api.pods.pod import Pod

T = TypeVar("T")


def annotation_fields(text: str, where: str) -> Fields:
    """Return the object of an annotation.

    As in Go, the case of its keys does not matter, and null is an object without fields.

    Raises:
        InvalidObject: it is no JSON, or something else than an object.
    """
    value = parse_json(text, where)
    return Fields({} if value is None else value, where, fold_case=True)


def pod_annotation(pod: Pod, key: str, struct: Struct[T]) -> T | None:
    """Return the object in a pod's annotation; None: the pod has none of this key.

    As in Go, the case of its keys does not matter, and null is an object without fields.

    Raises:
        InvalidObject: it is no JSON, has another shape, or a value is out of its limits.
    """
    found = json_annotation(pod, key, struct)
    return None if found is None else struct.load(found)


def json_annotation(pod: Pod, key: str, shape: Shape) -> object:
    """Return the canonical JSON of a pod's annotation; None: the pod has none of this key.

    Raises:
        InvalidObject: as pod_annotation.
    """
    text = pod.annotations.get(key)
    if text is None:
        return None
    where = place(pod, key)
    value = parse_json(text, where)
    found = shape.read({} if value is None else value, where, fold_case=True)
    shape.check(found, where)
    return found


def place(pod: Pod, key: str) -> str:
    """The name of a pod's annotation in messages."""
    return f"pod {pod.namespace}/{pod.name}: {key}"
