"""Koordinator's annotations with JSON values.

Scheduling hints, load-aware thresholds, allocated devices, and allocated CPUs and NUMA amounts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from koord.api.fields import Fields
from koord.api.gojson import Shape, Struct, parse_json, shape_of, wire
from koord.api.machine import parse_cpulist
from koord.api.pod import BATCH_CPU, Pod
from koord.api.quantity import Quantity
from koord.util import goformat
from koord.util.errors import InvalidObject

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


USAGE_THRESHOLDS = "scheduling.koordinator.sh/usage-thresholds"  # of a node
SCALING_FACTORS = "scheduling.koordinator.sh/load-estimated-scaling-factors"  # of a pod, as below
AFTER_SCHEDULED = "scheduling.koordinator.sh/load-estimated-seconds-after-pod-scheduled"
AFTER_INITIALIZED = "scheduling.koordinator.sh/load-estimated-seconds-after-initialized"
_MAX_PERCENT = 10_000
_MAX_SECONDS = 10**9


class AggregationType(StrEnum):
    """Ways to make one figure of a window of usage."""

    NONE = ""
    AVG = "avg"
    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"


_TYPES = {one.value: one for one in AggregationType}


@dataclass(frozen=True, slots=True)
class UsageThresholds:
    """Percentages of a node by resource, beyond which no pod is to come; empty: not given."""

    usage: Mapping[str, int] = field(default_factory=dict)
    prod: Mapping[str, int] = field(default_factory=dict)  # of what prod pods use
    aggregated: Mapping[str, int] = field(default_factory=dict)
    aggregation: AggregationType = AggregationType.NONE  # of aggregated
    duration: float = 0.0  # seconds; window of aggregated; 0: the longest that is reported


def usage_thresholds(text: str) -> UsageThresholds:
    """Return what a node's annotation says.

    A part with a threshold below 0 counts as not given: it would keep all pods away for ever.

    Raises:
        InvalidObject: it is malformed.
    """
    found = annotation_fields(text, USAGE_THRESHOLDS)
    aggregated = found.nested("aggregatedUsage")
    return UsageThresholds(
        _percentages(found, "usageThresholds"),
        _percentages(found, "prodUsageThresholds"),
        _percentages(aggregated, "usageThresholds"),
        _aggregation(aggregated),
        _duration(aggregated),
    )


def scaling_factors(text: str) -> dict[str, int]:
    """Return the percentages of a pod's requests that it is estimated to use, by resource.

    Raises:
        InvalidObject: it is malformed, or one is not 1 to 10000.
    """
    found = Fields({"factors": parse_json(text, SCALING_FACTORS)}, SCALING_FACTORS)
    factors = found.integers("factors")
    for name, factor in factors.items():
        if not 1 <= factor <= _MAX_PERCENT:
            where, wanted = f"{SCALING_FACTORS}: {name}", f"1 to {_MAX_PERCENT}"
            raise InvalidObject(where, wanted=wanted, found=factor)
    return factors


def estimation_seconds(text: str) -> int | None:
    """Return how long a pod is estimated; None: as in Koordinator, anything else means nothing."""
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(_MAX_SECONDS))):
        return None
    return min(int(digits), _MAX_SECONDS)


def _percentages(found: Fields, key: str) -> dict[str, int]:
    percentages = found.integers(key)
    return {} if any(one < 0 for one in percentages.values()) else percentages


def _aggregation(found: Fields) -> AggregationType:
    return _TYPES.get(found.text("usageAggregationType"), AggregationType.NONE)


def _duration(found: Fields) -> float:
    text = found.text("usageAggregatedDuration")
    try:
        return max(goformat.parse_duration(text), 0.0) if text else 0.0
    except ValueError as err:
        where = found.path("usageAggregatedDuration")
        raise InvalidObject(where, wanted="a duration like 5m0s", found=text) from err


SCHEDULING_HINTS = (
    "internal.scheduling.koordinator.sh/scheduling-hint",
    "scheduling.koordinator.sh/scheduling-hint",  # of older versions
)


MAX_HINT_BYTES = 256 << 10  # of a hint: it names nodes


@dataclass(frozen=True, slots=True)
class NodeHint:
    """Names of nodes."""

    nodes: tuple[str, ...] = ()  # the only ones to look at; empty: all
    preferred: tuple[str, ...] = ()  # to be taken whatever their scores, in this order
    extensions: frozenset[str] = frozenset()  # plugins for which the pod says what it is to get


NO_HINT = NodeHint()


def scheduling_hint(text: str) -> NodeHint:
    """Return the hint of an annotation.

    Raises:
        InvalidObject: it is malformed.
    """
    found = annotation_fields(text, SCHEDULING_HINTS[0])
    return NodeHint(
        _names(found, "nodeNames"),
        _names(found, "preferredNodeNames"),
        frozenset(found.nested("extensions").raw),
    )


def is_designated(annotations: Iterable[tuple[str, str]], plugin: str) -> bool:
    """Whether a pod's scheduling hint has its allocation by a plugin taken from its annotation.

    Raises:
        InvalidObject: the hint is malformed.
    """
    texts = {key: text for key, text in annotations if key in SCHEDULING_HINTS}
    for key in SCHEDULING_HINTS:
        if key in texts:
            return plugin in scheduling_hint(texts[key]).extensions
    return False


def _names(found: Fields, key: str) -> tuple[str, ...]:
    return tuple(found.list_of(key, _name, "the name of a node"))


def _name(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(value)


DEVICE_ALLOCATED = "scheduling.koordinator.sh/device-allocated"
MAX_DEVICES = 256  # of one type
_LARGEST_MINOR = 2**31 - 1


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One device of a pod, as the annotation has it. resources maps names to quantities."""

    minor: int
    id: str
    resources: Mapping[str, str]
    functions: tuple[str, ...] = ()  # PCI addresses of virtual functions
    containers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Quantities by the container that has them; empty: it is not said which has the device."""


def device_allocations(text: str) -> dict[str, tuple[AllocatedDevice, ...]]:
    """Return the devices of an annotation by type: gpu, rdma and others.

    Raises:
        InvalidObject: it is malformed, or names more devices than a node can have.
    """
    found = annotation_fields(text, DEVICE_ALLOCATED)
    return {kind: tuple(_devices(found, kind)) for kind in found.raw}


def _devices(found: Fields, kind: str) -> list[AllocatedDevice]:
    devices = [_device(fields) for fields in found.objects(kind)]
    if len(devices) > MAX_DEVICES:
        wanted = f"at most {MAX_DEVICES} devices"
        raise InvalidObject(found.path(kind), wanted=wanted, found=len(devices))
    return devices


def _device(fields: Fields) -> AllocatedDevice:
    minor = fields.integer("minor") or 0
    if not -1 <= minor <= _LARGEST_MINOR:
        raise InvalidObject(fields.path("minor"), wanted="a number of 31 bits", found=minor)
    functions = [each.text("busID") for each in fields.nested("extension").objects("vfs")]
    if len(functions) > MAX_DEVICES:
        wanted = f"at most {MAX_DEVICES} functions"
        raise InvalidObject(fields.path("extension.vfs"), wanted=wanted, found=len(functions))
    resources = fields.quantities("resources")
    containers = dict(_containers(fields, resources))
    return AllocatedDevice(minor, fields.text("id"), resources, tuple(functions), containers)


def _containers(
    fields: Fields, resources: Mapping[str, str]
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Containers with what they have of a device, each no more than the pod."""
    found = fields.nested("containers")
    for name in found.raw:
        quantities = found.quantities(name)
        for resource, text in quantities.items():
            most = resources.get(resource, "0")
            if not 0 <= Quantity.parse(text).nano <= Quantity.parse(most).nano:
                where = f"{found.path(name)}.{resource}"
                raise InvalidObject(where, wanted=f"0 to {most}, as the pod has", found=text)
        yield name, quantities


def devices_of_container(
    devices: Sequence[AllocatedDevice], container: str
) -> tuple[AllocatedDevice, ...]:
    """Return the devices of one type that a container of a pod sees, with what it has of them.

    All containers see all of them, unless the annotation says which container has which.
    """
    if not any(one.containers for one in devices):
        return tuple(devices)
    return tuple(
        replace(one, resources=one.containers[container], containers={})
        for one in devices
        if container in one.containers
    )


RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"  # annotations of a pod
RESOURCE_SPEC = "scheduling.koordinator.sh/resource-spec"


@dataclass(frozen=True, slots=True)
class NumaAllocation:
    """The resources of a pod on one NUMA node."""

    node: int = wire("node", 0)
    resources: Mapping[str, Quantity] = wire("resources", factory=dict)

    @property
    def has_cpu(self) -> bool:
        """Whether CPU time is among it."""
        nothing = Quantity(0)
        batch = self.resources.get(BATCH_CPU, nothing).nano
        return self.resources.get("cpu", nothing).nano != 0 or batch > 0


@dataclass(frozen=True, slots=True)
class _OnWire:
    cpuset: str = wire("cpuset", "")
    numa: tuple[NumaAllocation, ...] = wire("numaNodeResources", ())


@dataclass(frozen=True, slots=True)
class ResourceStatus:
    """CPUs and NUMA nodes that were chosen for a pod; empty: none were."""

    cpus: frozenset[int] = frozenset()
    numa: tuple[NumaAllocation, ...] = ()


_STRUCT = shape_of(_OnWire)


def resource_status(pod: Pod) -> ResourceStatus:
    """Return what the scheduler has chosen for a pod.

    Raises:
        InvalidObject: the annotation is malformed.
    """
    found = pod_annotation(pod, RESOURCE_STATUS, _STRUCT) or _OnWire()
    try:
        return ResourceStatus(parse_cpulist(found.cpuset), found.numa)
    except ValueError as err:
        where = f"{place(pod, RESOURCE_STATUS)}.cpuset"
        raise InvalidObject(where, wanted="a list of CPUs", found=found.cpuset) from err


def is_pinned(pod: Pod) -> bool:
    """Return whether the scheduler has chosen CPUs or NUMA nodes for a pod."""
    try:
        status = resource_status(pod)
    except InvalidObject:
        return False
    return bool(status.cpus or status.numa)


def allocated_cpus(pod: Pod) -> frozenset[int]:
    """Return the CPUs that the scheduler has chosen for a pod; empty when it has chosen none.

    Raises:
        InvalidObject: the annotation is malformed.
    """
    return resource_status(pod).cpus
