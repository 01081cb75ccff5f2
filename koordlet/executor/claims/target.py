"""The target of a claim: a cgroup, the node as a whole, or a process."""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from koord.api.nodeslo import HostApplication
from koord.api.qos import KubeQoS
from koordlet.host.cgroups.layout import Layout, host_app_group
from koordlet.host.objects import KINDS
from koordlet.host.resource import CGROUPS, File, Level, ObjectKind, Root, Support
from koordlet.statesinformer.podmeta import ContainerMeta, PodMeta

_MAX_PLACE_LENGTH = 4096  # characters of a path
_BAD_STEP = re.compile(r"//|/\.\.?/|[\x00-\x1f\x7f]")  # empty, ".", ".."; control characters


# The rules of the places that are names of kernel objects.
_PLACES = {kind.level: kind.is_place for kind in KINDS if kind.is_place is not None}


def levels_of_root(file: File[Any]) -> tuple[Level, ...]:
    """The levels on which a value has a place."""
    if file.root is Root.CGROUP:
        return (Level.NODE,) if file.support is Support.ROOT else CGROUPS
    if isinstance(file.root, ObjectKind):
        return (file.root.level,)
    if file.root is Root.RESCTRL:
        return (Level.RESCTRL,)
    return (Level.PROCESS,) if "{}" in file.name else (Level.NODE,)


@dataclass(frozen=True, slots=True)
class Target:
    """A place whose kernel values can be claimed. qos and pod are for rules and for people."""

    level: Level
    place: str  # path of a cgroup; "" for the node; the pid of a process; the name of an object
    start_time: int = 0  # of a process, in ticks since boot: a pid alone may come again
    qos: str = field(default="", compare=False)  # QoSClass of the pod; KubeQoS at level QOS
    pod: str = field(default="", compare=False)  # namespace/name
    uid: str = field(default="", compare=False)  # of the pod

    @property
    def is_valid(self) -> bool:
        """Whether the place is of its level, and below the root: relative, without "..".

        Targets come from the journal and from NodeSLO, too.
        """
        return _is_valid(self.level, self.place)

    @classmethod
    def node(cls) -> "Target":
        """The node, for sysctl and sysfs values."""
        return cls(Level.NODE, "")

    @classmethod
    def qos_class(cls, layout: Layout, qos: KubeQoS) -> "Target":
        """The cgroup of a Kubernetes QoS class; for Guaranteed that of all pods."""
        return cls(Level.QOS, layout.qos_dir(qos), qos=qos.value)

    @classmethod
    def of_pod(cls, pod: PodMeta) -> "Target":
        """The cgroup of a pod."""
        return _below(pod, Level.POD, pod.cgroup)

    @classmethod
    def of_container(cls, pod: PodMeta, container: ContainerMeta) -> "Target":
        """The cgroup of a container."""
        return _below(pod, Level.CONTAINER, container.cgroup)

    @classmethod
    def below_pod(cls, pod: PodMeta, group: str) -> "Target":
        """A cgroup right below that of a pod that is no known container: a sandbox."""
        return _below(pod, Level.CONTAINER, group)

    @classmethod
    def of_host_application(cls, layout: Layout, app: HostApplication) -> "Target":
        """The cgroup of a program outside of Kubernetes, on the level of pods."""
        return cls(Level.POD, host_app_group(layout, app), qos=app.qos)

    @classmethod
    def of_process(cls, pod: PodMeta, pid: int, start_time: int) -> "Target":
        """A process of a pod. start_time is in ticks since boot, as /proc/<pid>/stat has it."""
        return _below(pod, Level.PROCESS, str(pid), start_time)

    @classmethod
    def resctrl(cls, group: str, pod: PodMeta | None = None) -> "Target":
        """A control group of resctrl; pod: whose own it is."""
        return cls(Level.RESCTRL, group) if pod is None else _below(pod, Level.RESCTRL, group)

    @classmethod
    def interface(cls, name: str, pod: PodMeta | None = None) -> "Target":
        """A network interface of the node; pod: whose other end it is."""
        return cls(Level.INTERFACE, name) if pod is None else _below(pod, Level.INTERFACE, name)

    @classmethod
    def terway(cls, file: str) -> "Target":
        """One of the files of the agent terway-qos."""
        return cls(Level.TERWAY, file)

    def __str__(self) -> str:
        """The text for people: "kubepods/besteffort", "node", "process 4711" or "resctrl BE"."""
        if not self.level.is_cgroup and self.place:
            return f"{self.level.value} {self.place}"
        return self.place or self.level.value


@lru_cache(maxsize=4096)  # several times for each value of each round of a plugin
def _is_valid(level: Level, place: str) -> bool:
    if level is Level.NODE:
        return not place
    if level is Level.PROCESS:
        return place.isascii() and place.isdigit()
    if is_place := _PLACES.get(level):
        return is_place(place)
    return len(place) <= _MAX_PLACE_LENGTH and _BAD_STEP.search(f"/{place}/") is None


def _below(pod: PodMeta, level: Level, place: str, start_time: int = 0) -> Target:
    return Target(
        level,
        place,
        start_time,
        qos=pod.qos.value,
        pod=f"{pod.pod.namespace}/{pod.pod.name}",
        uid=pod.uid,
    )
