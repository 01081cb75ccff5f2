"""Pods of this node: the API object, its cgroups, and the allocations that count here."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from koord.api.pod import ContainerStatus, Pod
from koord.api.qos import KubeQoS, QoSClass
from koordlet.host.cgroups.layout import UNKNOWN_RUNTIME, ContainerName, Driver, Layout
from koordlet.host.cgroups.tree import ContainerDir, PodDir
from koordlet.rules.allocations import (
    ALLOCATIONS,
    PodAllocation,
    RefusedAllocation,
    pod_allocation,
    refused_allocations,
)


@dataclass(frozen=True, slots=True)
class ContainerMeta:
    """A container that has a cgroup.

    container_id is "containerd://<64 hex>"; only the directory's name where the runtime is not
    known. absent_at as with PodMeta.
    """

    name: str
    container_id: str
    cgroup: str  # path below the cgroup root or v1 controller root, no leading slash
    absent_at: float | None = None


@dataclass(frozen=True, slots=True)
class PodMeta:
    """A pod of this node with its cgroup.

    absent_at is the monotonic time of the scan just before the one that found the cgroup: its
    counters were zero then, so the first reading gives a rate already. None: unknown.
    """

    pod: Pod
    cgroup: str
    containers: tuple[ContainerMeta, ...]
    qos: QoSClass  # the label's, else the one that follows from the Kubernetes class
    kube_qos: KubeQoS
    absent_at: float | None = None
    sandbox: str = ""  # path of the pause container's cgroup; "" where it is not known

    @property
    def uid(self) -> str:
        return self.pod.uid


@dataclass(frozen=True, slots=True)
class ReportTarget:
    """The NodeMetric object that reports go to.

    reported_at is the time of its present status in Unix seconds; None: it has no valid one.
    others maps each other writer of the status to the time of its latest write.
    """

    uid: str
    reported_at: float | None = None
    others: Mapping[str, str] = field(default_factory=dict)


STATIC_POD_UID = "kubernetes.io/config.hash"  # the UID by which the kubelet names the cgroup
UNKNOWN_NAMESPACE = "unknown"
SHORT_ID = 12  # digits of a container id that people read, as in `docker ps`

_HEX_ID = re.compile(r"[0-9a-f]{64}")


def discovered_pod(pod: PodDir) -> PodMeta:
    """Return a pod that is known by its cgroup alone.

    Its name is its UID. Its namespace is "unknown", as consumers of a NodeMetric need one. QoS is
    that of the path, phase is Running. All children of its cgroup count as containers, named by
    their ids; the sandbox cannot be distinguished from them.
    """
    known = Pod(
        namespace=UNKNOWN_NAMESPACE,
        name=pod.uid,
        uid=pod.uid,
        phase="Running",
        qos=pod.kube_qos,
    )
    containers = tuple(_discovered_container(child, pod.layout) for child in pod.containers)
    return _pod_meta(known, pod.cgroup, containers, pod.absent_at)


def join_pod(pod: Pod, tree: Mapping[str, PodDir], layout: Layout) -> PodMeta:
    """Return a listed pod with its cgroups; tree maps UIDs to pod cgroups.

    A pod that is not in the tree may not have started, or be finished: it gets the path that its
    cgroup would have in the layout, and no containers. Containers without a cgroup (ended) and
    cgroups without a container status (the sandbox) are left out.
    """
    uid = pod.annotations.get(STATIC_POD_UID) or pod.uid
    found = tree.get(uid)
    if found is None:
        return _pod_meta(pod, layout.pod_dir(pod.qos, uid), (), None)
    containers = tuple(_joined_containers(pod.statuses + pod.init_statuses, found))
    return _pod_meta(pod, found.cgroup, containers, found.absent_at, _sandbox(pod, found))


def main_layout(layouts: Iterable[Layout], default: Layout) -> Layout:
    """Return the layout that pods without a cgroup would have.

    Of several kubepods cgroups it is the least nested one, and systemd's of two at one level.
    """
    return min(
        layouts,
        key=lambda layout: (layout.root.count("/"), layout.driver is not Driver.SYSTEMD),
        default=default,
    )


def _pod_meta(
    pod: Pod,
    cgroup: str,
    containers: tuple[ContainerMeta, ...],
    absent_at: float | None,
    sandbox: str = "",
) -> PodMeta:
    return PodMeta(pod, cgroup, containers, pod.qos_class, pod.qos, absent_at, sandbox)


def _sandbox(pod: Pod, found: PodDir) -> str:
    """The one child of the pod's cgroup that is no container's; "" for none or several."""
    ids = {status.container_id.partition("://")[2] for status in pod.statuses + pod.init_statuses}
    others = [
        child.cgroup
        for child in found.containers
        if _container_name(child.name, found.layout).id not in ids
    ]
    return others[0] if len(others) == 1 and any(ids) else ""


def _joined_containers(statuses: Iterable[ContainerStatus], pod: PodDir) -> Iterator[ContainerMeta]:
    children = {_container_name(child.name, pod.layout).id: child for child in pod.containers}
    for status in statuses:
        child = children.pop(status.container_id.partition("://")[2], None)
        if child is not None:
            yield ContainerMeta(status.name, status.container_id, child.cgroup, child.absent_at)


def _discovered_container(child: ContainerDir, layout: Layout) -> ContainerMeta:
    found = _container_name(child.name, layout)
    name = found.id[:SHORT_ID] if _HEX_ID.fullmatch(found.id) else found.id
    container_id = found.id if found.runtime == UNKNOWN_RUNTIME else str(found)
    return ContainerMeta(name, container_id, child.cgroup, child.absent_at)


def _container_name(directory: str, layout: Layout) -> ContainerName:
    """The runtime and id in a directory's name; CRI-O has its prefix with cgroupfs, too."""
    if layout.driver is Driver.CGROUPFS and directory.startswith("crio-"):
        return ContainerName("cri-o", directory.removeprefix("crio-"))
    try:
        return layout.parse_container_dir(directory)
    except ValueError:
        return ContainerName(UNKNOWN_RUNTIME, directory.removesuffix(".scope"))


_NO_ALLOCATION = PodAllocation()


class PodAllocations:
    """Takes the annotations from pods that give them more than they can have.

    All readers of resource-status and device-allocated see only pods that went through here: one
    that is rejected looks as if the scheduler had given it nothing. refused has those, by UID.
    """

    def __init__(self, trusts: Callable[[], bool]) -> None:
        """trusts: whether everything counts, as it does for Koordinator's agent."""
        self._trusts = trusts
        self._claims: dict[str, tuple[Pod, PodAllocation]] = {}  # of pods with annotations
        self.refused: Mapping[str, tuple[RefusedAllocation, ...]] = {}

    def of(
        self, pods: tuple[PodMeta, ...], by_kubelet: Mapping[str, frozenset[int]]
    ) -> tuple[PodMeta, ...]:
        """Return the pods with the annotations that count. by_kubelet: as refused_allocations."""
        if self._trusts():
            self.refused = {}
            return pods
        known, self._claims = self._claims, {}
        claims: list[tuple[Pod, PodAllocation]] = []
        for meta in pods:
            pod = meta.pod
            if has_allocations(pod.annotations):
                earlier = known.get(meta.uid)
                same = earlier is not None and (earlier[0] is pod or earlier[0] == pod)
                claim = earlier[1] if earlier and same else pod_allocation(pod)
                self._claims[meta.uid] = pod, claim
                claims.append((pod, claim))
            elif meta.uid in by_kubelet:
                claims.append((pod, _NO_ALLOCATION))
        self.refused = refused_allocations(claims, by_kubelet) if claims else {}
        if not self.refused:
            return pods
        return tuple(self._without_refused(meta) for meta in pods)

    def _without_refused(self, meta: PodMeta) -> PodMeta:
        refused = self.refused.get(meta.uid, ())
        return without_annotations(meta, {each.annotation for each in refused}) if refused else meta


def has_allocations(annotations: Mapping[str, str]) -> bool:
    """Whether there is something to decide."""
    return any(annotation in annotations for annotation in ALLOCATIONS)


def without_annotations(meta: PodMeta, annotations: Collection[str]) -> PodMeta:
    """Return a pod without these annotations."""
    kept = {key: text for key, text in meta.pod.annotations.items() if key not in annotations}
    return replace(meta, pod=replace(meta.pod, annotations=kept))
