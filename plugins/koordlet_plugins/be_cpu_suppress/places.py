"""The cgroups of best-effort pods, as targets of claims."""

from collections.abc import Iterable
from dataclasses import dataclass

from koord.api.qos import KubeQoS, QoSClass
from koordlet.plugin import Kernel, Layout, Level, PodMeta, Target

DEPTH = 2  # pods, and containers with their sandboxes


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
