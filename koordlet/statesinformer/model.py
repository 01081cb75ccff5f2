"""Pods as the rest of the daemon sees them: the API object joined with its cgroups."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from koord.api.pods.pod import Pod
from koord.api.qos import KubeQoS, QoSClass


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
