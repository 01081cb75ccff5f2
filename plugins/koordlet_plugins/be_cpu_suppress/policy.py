"""The interface of the suppression policies, their inputs, and the cgroups that they act on."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from koord.api.qos import KubeQoS, QoSClass
from koordlet.plugin import Level, PodMeta, Target
from koordlet.plugin.kernel import Kernel, Layout
from koordlet_plugins.be_cpu_suppress.cpus import NodeCpus
from koordlet_plugins.be_cpu_suppress.evidence import Evidence, Room

DEPTH = 2  # pods, and containers with their sandboxes


class NodeFindings(NamedTuple):
    """Findings of a round about the node, beside usage."""

    cores: int  # the node's capacity
    pods: tuple[PodMeta, ...]
    cpus: NodeCpus | None  # None: too little is known to touch a cpuset


class Policy(Protocol):
    """One way to limit best-effort pods.

    round and look return the cores that best-effort pods are limited to from now on. None means no
    limit for round, and an unchanged limit for look.
    """

    looks: bool  # whether fast looks matter to it

    async def round(self, evidence: Evidence, seen: NodeFindings) -> float | None:
        """Apply the evidence of a round."""

    def must_give_way(self, room: Room) -> bool:
        """Whether fast looks require less than is in force now. Pure, for any thread."""

    async def look(self, evidence: Evidence) -> float | None:
        """Apply the evidence of fast looks, before the next round."""

    async def end(self) -> None:
        """Withdraw all claims of the policy."""


@dataclass(frozen=True, slots=True)
class Places:
    """The cgroups below the best-effort group, parents first."""

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
    """Return the present cgroups. pods: the listed ones, for their names."""
    group = best_effort_group(kernel.layout)
    known = {meta.cgroup: meta for meta in pods}
    below: dict[int, list[Target]] = {1: [], 2: []}
    for path in await kernel.groups_below(group.place, DEPTH):
        depth = path.count("/") - group.place.count("/")
        pod = known.get(path if depth == 1 else path.rpartition("/")[0])
        below[depth].append(_target(path, Level.POD if depth == 1 else Level.CONTAINER, pod))
    return Places(group, tuple(below[1]), tuple(below[2]))


def _target(path: str, level: Level, pod: PodMeta | None) -> Target:
    """A cgroup in the best-effort group counts as best-effort, whatever its pod's label is."""
    if pod is None:
        return Target(level, path, qos=QoSClass.BE)
    name = f"{pod.pod.namespace}/{pod.pod.name}"
    return Target(level, path, qos=QoSClass.BE, pod=name, uid=pod.uid)
