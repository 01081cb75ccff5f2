"""Scripted states: pods as the states informer would know them."""

from collections.abc import Mapping

from koord.api.pods.pod import Container, ContainerStatus, Pod
from koord.api.qos import KubeQoS
from koordlet.host.cgroups.layout import Driver, Layout
from koordlet.statesinformer.model import ContainerMeta, PodMeta

_LAYOUT = Layout.default(Driver.CGROUPFS)


def make_pod(
    name: str,
    *,
    namespace: str = "default",
    uid: str = "",
    qos: KubeQoS = KubeQoS.BURSTABLE,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    containers: tuple[Container, ...] = (Container("main"),),
    init_containers: tuple[Container, ...] = (),
    sandbox: bool = False,
    priority: int | None = None,
    grace_seconds: int = 30,
) -> PodMeta:
    """A running pod with its cgroups (cgroupfs driver); the uid is the name unless given.

    A container's id is containerd://<uid>-<name>. Init containers have no cgroup: they have ended.
    sandbox: whether the cgroup of the sandbox, sandbox-<uid>, is known.
    """
    uid = uid or name
    ids = {container.name: f"containerd://{uid}-{container.name}" for container in containers}
    pod = Pod(
        namespace=namespace,
        name=name,
        uid=uid,
        labels=labels or {},
        annotations=annotations or {},
        phase="Running",
        qos=qos,
        priority=priority,
        grace_seconds=grace_seconds,
        containers=containers,
        init_containers=init_containers,
        statuses=tuple(ContainerStatus(name, id, running=True) for name, id in ids.items()),
    )
    group = _LAYOUT.pod_dir(qos, uid)
    metas = tuple(
        ContainerMeta(name, id, _LAYOUT.container_dir(group, id)) for name, id in ids.items()
    )
    pause = f"{group}/sandbox-{uid}" if sandbox else ""
    return PodMeta(pod, group, metas, pod.qos_class, qos, sandbox=pause)
