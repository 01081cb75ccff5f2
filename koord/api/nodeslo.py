"""NodeSLO: what the cluster wants from the QoS strategies of a node, merged with defaults."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from koord.api.fields import Fields
from koord.api.gojson import Struct, shape_of
from koord.api.qosstrategy import (
    CPUBurst,
    CPUQoS,
    MemoryQoS,
    QoSClassStrategy,
    ResctrlQoS,
    ResourceQoS,
    ResourceThreshold,
    SystemStrategy,
)
from koord.util.errors import InvalidObject

_LOWER_AND_UPPER = (
    ("memoryEvictLowerPercent", "memoryEvictThresholdPercent"),
    ("memoryAllocatableEvictLowerPercent", "memoryAllocatableEvictThresholdPercent"),
    ("cpuEvictLowerPercent", "cpuEvictThresholdPercent"),
    ("cpuAllocatableEvictLowerPercent", "cpuAllocatableEvictThresholdPercent"),
    ("cpuEvictBESatisfactionLowerPercent", "cpuEvictBESatisfactionUpperPercent"),
)


def check_order(threshold: Mapping[str, object], where: str) -> None:
    """Compare the two marks of each band of a resourceUsedThresholdWithBE as JSON.

    Raises:
        InvalidObject: they are reversed. Where one of them is not set there is no band.
    """
    for lower_key, upper_key in _LOWER_AND_UPPER:
        lower, upper = threshold.get(lower_key), threshold.get(upper_key)
        if isinstance(lower, int) and isinstance(upper, int) and lower > upper:
            wanted = f"at most {upper_key}, which is {upper}"
            raise InvalidObject(f"{where}.{lower_key}", wanted=wanted, found=str(lower))


T = TypeVar("T")

THRESHOLD = shape_of(ResourceThreshold)
RESOURCE_QOS = shape_of(ResourceQoS)
CPU_BURST = shape_of(CPUBurst)
SYSTEM = shape_of(SystemStrategy)

_LATENCY_SENSITIVE = QoSClassStrategy(
    cpu=CPUQoS(group_identity=2, core_expeller=True),
    memory=MemoryQoS(wmark_ratio=95, wmark_scale_permill=20, wmark_min_adj=-25),
)
_BEST_EFFORT = QoSClassStrategy(
    cpu=CPUQoS(group_identity=-1),
    memory=MemoryQoS(wmark_ratio=95, wmark_scale_permill=20, wmark_min_adj=50),
    resctrl=ResctrlQoS(cat_range_end_percent=30),
)
# What an enabled block of a class holds, unless the NodeSLO says otherwise.
RECOMMENDED = ResourceQoS(lsr=_LATENCY_SENSITIVE, ls=_LATENCY_SENSITIVE, be=_BEST_EFFORT)


def effective_threshold(received: object, where: str) -> ResourceThreshold:
    """Return the strategy merged with its defaults. None: not received, all defaults.

    Raises:
        InvalidObject: a field has the wrong type or a value that the CRD forbids (so do the other
            functions here), or of two thresholds the lower one is above the other.
    """
    merged = _merged(THRESHOLD, ResourceThreshold(), received, where)
    check_order(THRESHOLD.dump(merged), where)
    return merged


def effective_cpu_burst(received: object, where: str) -> CPUBurst:
    return _merged(CPU_BURST, CPUBurst(), received, where)


def effective_system(received: object, where: str) -> SystemStrategy:
    return _merged(SYSTEM, SystemStrategy(), received, where)


def effective_resource_qos(received: object, where: str) -> ResourceQoS:
    """Return the settings by class; blocks that are not enabled hold the values for "off".

    The system class and the root cgroup keep what they have even in a block that is not enabled.
    """
    merged = _merged(RESOURCE_QOS, RECOMMENDED, received, where)
    return dataclasses.replace(
        merged,
        lsr=_without_disabled(merged.lsr),
        ls=_without_disabled(merged.ls),
        be=_without_disabled(merged.be),
    )


def _merged(shape: Struct[T], default: T, received: object, where: str) -> T:
    if received is None:
        return default
    read = shape.read(received, where)
    shape.check(read, where)
    return shape.load(shape.overlay(shape.dump(default), read))


def _without_disabled(settings: QoSClassStrategy) -> QoSClassStrategy:
    return dataclasses.replace(
        settings,
        cpu=settings.cpu if settings.cpu.enable else CPUQoS(),
        memory=settings.memory if settings.memory.enable else MemoryQoS(),
        resctrl=settings.resctrl if settings.resctrl.enable else ResctrlQoS(),
    )


class CgroupBase(StrEnum):
    """The directory below which a host application's cgroup lies."""

    CGROUP_ROOT = "CgroupRoot"
    KUBEPODS = "Kubepods"
    KUBEPODS_BURSTABLE = "KubepodsBurstable"
    KUBEPODS_BEST_EFFORT = "KubepodsBesteffort"


@dataclass(frozen=True, slots=True)
class HostApplication:
    """A program outside of Kubernetes that the node is to measure, with its cgroup.

    priority and qos go verbatim into the NodeMetric.
    """

    name: str
    priority: str = ""
    qos: str = ""
    base: CgroupBase | None = None  # None: no cgroupPath given, qos and name decide
    parent_dir: str = ""
    relative_path: str = ""


@dataclass(frozen=True, slots=True)
class NodeSLO:
    """The object's spec as it was received, and its sections merged with Koordinator's defaults.

    The sections of an empty NodeSLO are the defaults: every strategy is there and off.
    """

    spec: Mapping[str, object] = field(default_factory=dict)
    host_applications: tuple[HostApplication, ...] = ()
    threshold: ResourceThreshold = field(default_factory=ResourceThreshold)
    resource_qos: ResourceQoS = field(default_factory=ResourceQoS)
    cpu_burst: CPUBurst = field(default_factory=CPUBurst)
    system: SystemStrategy = field(default_factory=SystemStrategy)


_EMPTY = NodeSLO()


def merge_nodeslo(
    obj: object, previous: NodeSLO = _EMPTY
) -> tuple[NodeSLO, tuple[InvalidObject, ...]]:
    """Return the NodeSLO of a slo.koordinator.sh/v1alpha1 object as JSON, and what was wrong.

    A section with a wrong field keeps what it is in previous, the last good value; the other
    sections are not affected.

    Raises:
        InvalidObject: the object or its spec is no JSON object at all.
    """
    spec = Fields(obj, "nodeSLO").nested("spec")
    problems: list[InvalidObject] = []

    def section(key: str, read: Callable[[object, str], T], last: T) -> T:
        try:
            return read(spec.raw.get(key), spec.path(key))
        except InvalidObject as err:
            problems.append(err)
            return last

    slo = NodeSLO(
        spec=spec.raw,
        host_applications=section(
            "hostApplications", parse_host_applications, previous.host_applications
        ),
        threshold=section("resourceUsedThresholdWithBE", effective_threshold, previous.threshold),
        resource_qos=section("resourceQOSStrategy", effective_resource_qos, previous.resource_qos),
        cpu_burst=section("cpuBurstStrategy", effective_cpu_burst, previous.cpu_burst),
        system=section("systemStrategy", effective_system, previous.system),
    )
    return slo, tuple(problems)


def parse_host_applications(value: object, where: str) -> tuple[HostApplication, ...]:
    """Return the applications of a list as JSON, none when it is absent.

    Raises:
        InvalidObject: a field has the wrong type, or a path leaves its base directory.
    """
    parent, _, key = where.rpartition(".")
    return tuple(map(_host_application, Fields({key: value}, parent).objects(key)))


def _host_application(fields: Fields) -> HostApplication:
    path = fields.nested("cgroupPath")
    given = fields.raw.get("cgroupPath") is not None
    return HostApplication(
        name=_inside(fields.path("name"), fields.required_text("name")),
        priority=fields.text("priority"),
        qos=fields.text("qos"),
        base=_base(path.text("base")) if given else None,
        parent_dir=_inside(path.path("parentDir"), path.text("parentDir")),
        relative_path=_inside(path.path("relativePath"), path.text("relativePath")),
    )


def _base(text: str) -> CgroupBase:
    """Return the base directory; like Koordinator, an unknown name is the cgroup root."""
    try:
        return CgroupBase(text)
    except ValueError:
        return CgroupBase.CGROUP_ROOT


def _inside(where: str, path: str) -> str:
    if ".." in path.split("/"):
        raise InvalidObject(where, wanted='a path without ".."', found=path)
    return path
