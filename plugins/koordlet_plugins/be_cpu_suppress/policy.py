"""What the policies have in common: their interface, what they see, the cgroups they act on."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from koord.api.qos import KubeQoS, QoSClass
from koordlet.plugin import Kernel, Layout, Level, PodMeta, Target
from koordlet_plugins.be_cpu_suppress.cpus import NodeCpus
from koordlet_plugins.be_cpu_suppress.evidence import Evidence, Room

DEPTH = 2  # pods, and containers with their sandboxes


class Seen(NamedTuple):
    """What a round found out about the node, beside usage."""

    cores: int  # the node's capacity
    pods: tuple[PodMeta, ...]
    cpus: NodeCpus | None  # None: not enough is known to touch a cpuset


class Policy(Protocol):
    """One way to hold best-effort pods back.

    round and look return the cores that best-effort pods are limited to from now on; None: no limit
    is in force, or as far as look goes it is the one that was.
    """

    looks: bool  # whether it has any use for fast looks

    async def round(self, evidence: Evidence, seen: Seen) -> float | None:
        """Follow a round."""

    def must_give_way(self, room: Room) -> bool:
        """Whether fast looks ask for less than there is now. Pure, for any thread."""

    async def look(self, evidence: Evidence) -> float | None:
        """Follow fast looks, before the next round."""

    async def end(self) -> None:
        """Take everything back."""


@dataclass(frozen=True, slots=True)
class Places:
    """What there is below the best-effort group, parents first."""

    group: Target
    pods: tuple[Target, ...]
    containers: tuple[Target, ...]  # sandboxes too

    @property
    def all(self) -> tuple[Target, ...]:
        return (self.group, *self.pods, *self.containers)


def best_effort_group(layout: Layout) -> Target:
    """Return the cgroup that Kubernetes' best-effort pods are in."""
    return Target.qos_class(layout, KubeQoS.BEST_EFFORT)


async def find_places(kernel: Kernel, pods: Iterable[PodMeta]) -> Places:
    """Return the cgroups that are there now. pods: those that have names."""
    group = best_effort_group(kernel.layout)
    known = {meta.cgroup: meta for meta in pods}
    below: dict[int, list[Target]] = {1: [], 2: []}
    for path in await kernel.groups_below(group.place, DEPTH):
        depth = path.count("/") - group.place.count("/")
        pod = known.get(path if depth == 1 else path.rpartition("/")[0])
        below[depth].append(_target(path, Level.POD if depth == 1 else Level.CONTAINER, pod))
    return Places(group, tuple(below[1]), tuple(below[2]))


def _target(path: str, level: Level, pod: PodMeta | None) -> Target:
    """All that is in the best-effort group counts as such, whatever a label says."""
    if pod is None:
        return Target(level, path, qos=QoSClass.BE)
    name = f"{pod.pod.namespace}/{pod.pod.name}"
    return Target(level, path, qos=QoSClass.BE, pod=name, uid=pod.uid)
