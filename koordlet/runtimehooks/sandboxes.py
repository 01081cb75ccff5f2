"""Pods and containers as the runtime names them, as the rules of plugins see them.

What comes from the runtime is checked before it becomes the path of a cgroup.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import replace

from koord.api.pod import EXTENDED_RESOURCES, Pod
from koord.api.pod import Container as PodContainer
from koordlet.executor.claims.target import Target
from koordlet.host.cgroups.cgroupfiles import QUOTA_PERIOD_US
from koordlet.host.cgroups.layout import Layout, qos_of
from koordlet.host.resource import Level
from koordlet.rules.allocations import ALLOCATIONS
from koordlet.runtimehooks.wire.messages import Container, LinuxResources, PodSandbox
from koordlet.statesinformer.podmeta import (
    STATIC_POD_UID,
    ContainerMeta,
    PodMeta,
    without_annotations,
)

MAX_CONTAINERS = 256  # of a pod
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_CRIO = "cri-o"


def listed_pod(sandbox: PodSandbox, pods: Iterable[PodMeta]) -> PodMeta | None:
    """Return the pod of a sandbox among those that are known; None: it is not."""
    for meta in pods:
        if sandbox.uid and sandbox.uid in (meta.uid, meta.pod.annotations.get(STATIC_POD_UID)):
            return meta
    return None


def pod_meta(sandbox: PodSandbox, listed: PodMeta | None, layout: Layout) -> PodMeta | None:
    """Return a pod without its containers, as it is listed or else as the runtime describes it.

    What the latter says was given to it does not count: its requests are not known. None: it is
    not a pod of the kubelet.
    """
    group = _pod_group(sandbox, layout)
    if not group or not sandbox.uid:
        return None
    if listed is not None:
        return replace(listed, cgroup=group, containers=(), sandbox="")
    pod = Pod(
        namespace=sandbox.namespace,
        name=sandbox.name,
        uid=sandbox.uid,
        labels=sandbox.labels,
        annotations=sandbox.annotations,
        phase="Pending",
        qos=qos_of(group),
        containers=tuple(map(PodContainer, _annotated(sandbox))),
    )
    return without_annotations(PodMeta(pod, group, (), pod.qos_class, pod.qos), ALLOCATIONS)


def with_container(
    meta: PodMeta, container: Container, layout: Layout, runtime: str
) -> PodMeta | None:
    """Return a pod with this one container; None: its id or name cannot be used.

    runtime: of the ids, as Kubernetes writes them.
    """
    if not _ID.fullmatch(container.id) or not container.name:
        return None
    container_id = f"{_CRIO if _CRIO in runtime else runtime}://{container.id}"
    group = layout.container_dir(meta.cgroup, container_id)
    pod = meta.pod
    if container.name not in {one.name for one in pod.containers + pod.init_containers}:
        pod = replace(pod, containers=(*pod.containers, _described(container)))
    return replace(meta, pod=pod, containers=(ContainerMeta(container.name, container_id, group),))


def _pod_group(sandbox: PodSandbox, layout: Layout) -> str:
    """The cgroup of a pod; "" where it is none below that of all pods."""
    group = sandbox.linux.cgroup_parent.strip("/") if sandbox.linux else ""
    if "/" not in group and group.endswith(".slice"):  # as systemd alone knows it
        group = layout.pod_dir(qos_of(group), sandbox.uid)
    below = group.startswith(f"{layout.root}/")
    return group if below and Target(Level.POD, group).is_valid else ""


def _annotated(sandbox: PodSandbox) -> list[str]:
    """The containers that the annotation of batch resources names; what is wrong there comes up
    where it is used."""
    try:
        found = json.loads(sandbox.annotations.get(EXTENDED_RESOURCES, "{}"))
        return [str(name) for name in found.get("containers") or ()][:MAX_CONTAINERS]
    except (ValueError, AttributeError, TypeError, RecursionError):
        return []


def _described(container: Container) -> PodContainer:
    """A container whose spec is not known: its CPU limit as the runtime has it."""
    resources = container.linux.resources if container.linux else None
    cpu = (resources or LinuxResources()).cpu
    if cpu is None or not cpu.quota or cpu.quota < 0:
        return PodContainer(container.name)
    milli = cpu.quota * 1000 // (cpu.period or QUOTA_PERIOD_US)
    return PodContainer(container.name, limits={"cpu": f"{milli}m"})
