"""Memory QoS of a pod: the node's settings for its class, and the pod's own annotation. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from koord.api.annotations import json_annotation
from koord.api.gojson import shape_of, wire
from koord.api.nodeslo import RECOMMENDED
from koord.api.pod import Pod
from koord.api.qos import KubeQoS, QoSClass
from koord.api.qosstrategy import MemoryQoS, QoSClassStrategy, ResourceQoS

ANNOTATION = "koordinator.sh/memoryQOS"
NONE, AUTO = "none", "auto"  # policies; any other keeps the node's values


@dataclass(frozen=True, slots=True)
class OwnMemoryQoS:
    """A pod's annotation: a policy, and canonical JSON of the fields that it has."""

    policy: str = ""
    fields: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Effective:
    """The settings of a pod or class. given: JSON keys that count; None: all of them do.

    A setting that does not count leaves the kernel's value unchanged.
    """

    values: MemoryQoS
    given: frozenset[str] | None = None

    def has(self, key: str) -> bool:
        """Whether a setting, by its JSON key, counts."""
        return self.given is None or key in self.given


NOTHING = Effective(MemoryQoS(), frozenset())


@dataclass(frozen=True, slots=True)
class _Policy:
    policy: str = wire("policy", "")


_POLICY = shape_of(_Policy)
_FIELDS = shape_of(MemoryQoS)


def own_memory_qos(pod: Pod) -> OwnMemoryQoS:
    """Return the settings in a pod's annotation.

    Raises:
        InvalidObject: its annotation is malformed or out of the limits.
    """
    policy, fields = (json_annotation(pod, ANNOTATION, shape) for shape in (_POLICY, _FIELDS))
    if not isinstance(policy, dict) or not isinstance(fields, dict):
        return OwnMemoryQoS()
    return OwnMemoryQoS(policy.get("policy", ""), fields)


def merged(own: OwnMemoryQoS, node: ResourceQoS, qos: QoSClass) -> Effective:
    """Return the settings of a pod: its own fields over its policy's values or the node's."""
    if own.policy == NONE:
        return NOTHING
    values = of_class(node, qos).memory
    if own.policy == AUTO:
        values = replace(of_class(RECOMMENDED, qos).memory, enable=True)
    fields = own.fields or {}
    values = _FIELDS.load(_FIELDS.overlay(_FIELDS.dump(values), fields))
    return Effective(values, None if values.enable else frozenset(fields))


def settings_of_directory(node: ResourceQoS, qos: KubeQoS) -> Effective:
    """Return the settings of a Kubernetes QoS class's own cgroup."""
    values = _BY_DIRECTORY[qos](node).memory
    return Effective(values) if values.enable else NOTHING


def of_class(node: ResourceQoS, qos: QoSClass) -> QoSClassStrategy:
    """Return the strategy for pods of a class."""
    match qos:
        case QoSClass.LSE | QoSClass.LSR:
            return node.lsr
        case QoSClass.BE:
            return node.be
        case QoSClass.SYSTEM:
            return node.system
        case _:
            return node.ls


_BY_DIRECTORY = {
    KubeQoS.GUARANTEED: lambda node: node.lsr,
    KubeQoS.BURSTABLE: lambda node: node.ls,
    KubeQoS.BEST_EFFORT: lambda node: node.be,
}
