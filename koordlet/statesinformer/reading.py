"""What a source makes of an object that may be wrong in parts."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from koord.api.nodeslo import NodeSLO, merge_nodeslo
from koord.util.errors import InvalidObject
from koordlet.statesinformer.informer import StatesInformer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ObjectReading(Generic[T]):
    """What is kept of one version of an object, and which of its fields were not understood."""

    value: T
    problems: tuple[InvalidObject, ...] = ()


def read_node_slo(obj: object, informer: StatesInformer) -> ObjectReading[NodeSLO]:
    """Return the NodeSLO of an object as JSON, merged with the defaults.

    A section that is not understood keeps its last good value: the one in force.

    Raises:
        InvalidObject: the object or its spec is no JSON object at all.
    """
    return ObjectReading(*merge_nodeslo(obj, informer.node_slo() or NodeSLO()))
