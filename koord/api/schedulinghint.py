"""The annotation by which a pod names nodes for the scheduler.

Source: Koordinator, apis/extension/scheduling_hint.go.
"""

from dataclasses import dataclass

from koord.api.decoding.annotation import annotation_fields
from koord.api.decoding.fields import Fields

SCHEDULING_HINTS = (
    "internal.scheduling.koordinator.sh/scheduling-hint",
    "scheduling.koordinator.sh/scheduling-hint",  # of older versions
)


@dataclass(frozen=True, slots=True)
class NodeHint:
    """Names of nodes."""

    nodes: tuple[str, ...] = ()  # the only ones to look at; empty: all
    preferred: tuple[str, ...] = ()  # to be taken whatever their scores, in this order


NO_HINT = NodeHint()


def scheduling_hint(text: str) -> NodeHint:
    """Return the hint of an annotation.

    Raises:
        InvalidObject: it is malformed.
    """
    found = annotation_fields(text, SCHEDULING_HINTS[0])
    return NodeHint(_names(found, "nodeNames"), _names(found, "preferredNodeNames"))


def _names(found: Fields, key: str) -> tuple[str, ...]:
    return tuple(found.list_of(key, _name, "the name of a node"))


def _name(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(value)
