"""Lenient reading of an object: fields that are not understood keep their last good value."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from koord.api.slo.nodeslo import NodeSLO, merge_nodeslo
from koord.util.errors import InvalidObject
from koordlet.statesinformer.informer import StatesInformer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ObjectReading(Generic[T]):
    """The value read from one version of an object, and the fields that were not understood."""

    value: T
    problems: tuple[InvalidObject, ...] = ()


def read_node_slo(obj: object, informer: StatesInformer) -> ObjectReading[NodeSLO]:
    """Return the NodeSLO of an object as JSON, merged with the defaults.

    A section that is not understood keeps its last good value: the one in force.

    Raises:
        InvalidObject: the object or its spec is no JSON object at all.
    """
    return ObjectReading(*merge_nodeslo(obj, informer.node_slo() or NodeSLO()))
