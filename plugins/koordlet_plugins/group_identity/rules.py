"""The group identity of a QoS class, of a pod and of its containers. Pure.

Source: Koordinator, the groupidentity hook.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from koord.api.decoding.annotation import pod_annotation
from koord.api.decoding.jsonvalues import between
from koord.api.decoding.wire import shape_of, wire
from koord.api.pods.pod import Pod
from koord.api.qos import KubeQoS, QoSClass
from koord.api.slo.resourceqos import CPUPolicy, CPUQoS, ResourceQoS

CPU_QOS = "koordinator.sh/cpuQOS"  # annotation of an LS pod


@dataclass(frozen=True, slots=True)
class Identities:
    """Identities by class; None: CPU QoS of that class is not enabled, which counts as 0."""

    lsr: int | None = None  # of LSE and LSR pods
    ls: int | None = None
    be: int | None = None

    @property
    def enabled(self) -> bool:
        """Whether any class has one."""
        return (self.lsr, self.ls, self.be) != (None, None, None)

    def of_class(self, qos: KubeQoS) -> int:
        """Of the cgroup of a Kubernetes QoS class; that of Guaranteed holds all others."""
        return {KubeQoS.BURSTABLE: self.ls, KubeQoS.BEST_EFFORT: self.be}.get(qos) or 0

    def of_pod(self, qos: QoSClass, kube_qos: KubeQoS) -> int:
        """Of a pod, given the class of its label, and Kubernetes' for the others."""
        if qos in self._by_label:
            return self._by_label[qos] or 0
        if kube_qos is KubeQoS.GUARANTEED:
            return (self.ls if self.lsr is None else self.lsr) or 0
        return self.of_class(kube_qos)

    def of_application(self, qos: str) -> int:
        """Of a host application, given its class in the NodeSLO."""
        return self._by_label.get(qos) or 0

    @property
    def _by_label(self) -> Mapping[str, int | None]:
        lsr, ls, be = self.lsr, self.ls, self.be
        return {QoSClass.LSE: lsr, QoSClass.LSR: lsr, QoSClass.LS: ls, QoSClass.BE: be}


def identities(settings: ResourceQoS) -> Identities:
    """Return the identities in a NodeSLO; with another CPU policy there are none."""
    if settings.policies.cpu is not CPUPolicy.GROUP_IDENTITY:
        return Identities()
    return Identities(*(_identity(one.cpu) for one in (settings.lsr, settings.ls, settings.be)))


def _identity(settings: CPUQoS) -> int | None:
    return settings.group_identity if settings.enable else None


@dataclass(frozen=True, slots=True)
class _PodCPUQoS:
    """The annotation. None: not set."""

    enable: bool | None = wire("enable")
    group_identity: int | None = wire("groupIdentity", limit=between(-1, 2))


class PodIdentity(NamedTuple):
    """The class and identity in a pod's label and annotation."""

    qos: QoSClass  # of its label; may be NONE
    own: int | None = None  # instead of that of its class
    forgotten: bool = False  # the annotation has an identity without enable, which makes it 0


_STRUCT = shape_of(_PodCPUQoS)


def pod_identity(pod: Pod) -> PodIdentity:
    """Return the identity in a pod's label and annotation; only LS pods may have an annotation.

    Raises:
        InvalidObject: the annotation is malformed, or its identity is not within -1 to 2.
    """
    qos = pod.raw_qos_class
    found = pod_annotation(pod, CPU_QOS, _STRUCT)
    if found is None or qos is not QoSClass.LS:
        return PodIdentity(qos)
    if not found.enable:
        return PodIdentity(qos, 0, found.enable is None and found.group_identity is not None)
    return PodIdentity(qos, found.group_identity)
