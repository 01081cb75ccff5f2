"""Joins a listed pod (file, kubelet, API server) with its cgroups."""

import re
from collections.abc import Iterable, Iterator, Mapping

from koord.api.pods.pod import ContainerStatus, Pod
from koordlet.host.cgroups.layout import UNKNOWN_RUNTIME, ContainerName, Driver, Layout
from koordlet.host.cgroups.podtracks import ContainerDir, PodDir
from koordlet.statesinformer.model import ContainerMeta, PodMeta

STATIC_POD_UID = "kubernetes.io/config.hash"  # the UID by which the kubelet names the cgroup
UNKNOWN_NAMESPACE = "unknown"
SHORT_ID = 12  # digits of a container id that people read, as in `docker ps`

_HEX_ID = re.compile(r"[0-9a-f]{64}")


def discovered(pod: PodDir) -> PodMeta:
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
    return _meta(known, pod.cgroup, containers, pod.absent_at)


def joined(pod: Pod, tree: Mapping[str, PodDir], layout: Layout) -> PodMeta:
    """Return a listed pod with its cgroups; tree maps UIDs to pod cgroups.

    A pod that is not in the tree may not have started, or be finished: it gets the path that its
    cgroup would have in the layout, and no containers. Containers without a cgroup (ended) and
    cgroups without a container status (the sandbox) are left out.
    """
    uid = pod.annotations.get(STATIC_POD_UID) or pod.uid
    found = tree.get(uid)
    if found is None:
        return _meta(pod, layout.pod_dir(pod.qos, uid), (), None)
    containers = tuple(_joined_containers(pod.statuses + pod.init_statuses, found))
    return _meta(pod, found.cgroup, containers, found.absent_at, _sandbox(pod, found))


def main_layout(layouts: Iterable[Layout], default: Layout) -> Layout:
    """Return the layout that pods without a cgroup would have.

    Of several kubepods cgroups it is the least nested one, and systemd's of two at one level.
    """
    return min(
        layouts,
        key=lambda layout: (layout.root.count("/"), layout.driver is not Driver.SYSTEMD),
        default=default,
    )


def _meta(
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
