"""NodeSLO: what the cluster wants from this node's QoS strategies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from koord.api.decoding.fields import Fields
from koord.api.slo.defaults import (
    effective_cpu_burst,
    effective_resource_qos,
    effective_system,
    effective_threshold,
)
from koord.api.slo.resourceqos import ResourceQoS
from koord.api.slo.strategies import CPUBurst, ResourceThreshold, SystemStrategy
from koord.util.errors import InvalidObject

T = TypeVar("T")


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
    """The object's spec as it came, and its sections merged with Koordinator's defaults.

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
