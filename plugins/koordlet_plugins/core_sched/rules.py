"""Which group of core scheduling a pod is in, and which cookie the group has. Pure.

Source: Koordinator, the coresched hook.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from koord.api.pods.pod import Pod
from koord.api.qos import KubeQoS, QoSClass
from koord.api.slo.resourceqos import CPUPolicy, CPUQoS, ResourceQoS

GROUP_ID, POLICY = "koordinator.sh/core-sched-group-id", "koordinator.sh/core-sched-policy"
NONE, EXCLUSIVE = "none", "exclusive"  # policies; any other is the default, a group by its id
EXPELLER = "-expeller"  # ends the group of classes that keep others off


class ClassRule(NamedTuple):
    """The rule of one QoS class."""

    enabled: bool = False
    expeller: bool = False
    idle: bool = False  # runs when nothing else is runnable (cpu.idle)


_OFF = ClassRule()


@dataclass(frozen=True, slots=True)
class CoreSchedRule:
    """The rules of the classes."""

    lsr: ClassRule = _OFF  # of LSE and LSR pods
    ls: ClassRule = _OFF
    be: ClassRule = _OFF

    @property
    def enabled(self) -> bool:
        """Whether any class is core scheduled."""
        return self.lsr.enabled or self.ls.enabled or self.be.enabled

    def of_class(self, qos: KubeQoS) -> ClassRule:
        """Of a Kubernetes QoS class."""
        if qos is KubeQoS.GUARANTEED:
            return self.lsr if self.lsr.enabled else self.ls
        return self.ls if qos is KubeQoS.BURSTABLE else self.be

    def of_pod(self, qos: QoSClass, kube_qos: KubeQoS) -> ClassRule:
        """Of a pod by the class of its label, and Kubernetes' for the others."""
        by_label = {QoSClass.LSE: self.lsr, QoSClass.LSR: self.lsr}
        by_label |= {QoSClass.LS: self.ls, QoSClass.BE: self.be}
        return by_label.get(qos) or self.of_class(kube_qos)


class PodGroup(NamedTuple):
    """The group of a pod. Groups are known by their names, on one node."""

    enabled: bool
    name: str


def core_sched_rule(settings: ResourceQoS) -> CoreSchedRule:
    """Return the rule in a NodeSLO; with another CPU policy nothing is core scheduled."""
    if settings.policies.cpu is not CPUPolicy.CORE_SCHED:
        return CoreSchedRule()
    return CoreSchedRule(*(_rule(one.cpu) for one in (settings.lsr, settings.ls, settings.be)))


def _rule(settings: CPUQoS) -> ClassRule:
    return ClassRule(settings.enable, settings.core_expeller, settings.sched_idle == 1)


def group_of(pod: Pod, kube_qos: KubeQoS, rule: CoreSchedRule) -> PodGroup:
    """Return the group of a pod by its labels and class. Pods of the class SYSTEM have none."""
    name, policy = pod.labels.get(GROUP_ID, ""), pod.labels.get(POLICY, "")
    if policy == EXCLUSIVE:
        name = pod.uid
    if not rule.enabled or pod.raw_qos_class is QoSClass.SYSTEM:
        return PodGroup(False, name)
    own = rule.of_pod(pod.raw_qos_class, kube_qos)
    return PodGroup(own.enabled and policy != NONE, name + EXPELLER if own.expeller else name)


def cookie_of(known: int, found: Iterable[int], taken: Collection[int]) -> int:
    """Return the cookie that a group has, 0 if it needs a new one.

    That which it is known to have (0: none) while a process has it; else, after a restart, that of
    most of its processes. found: the cookies of its processes; taken: those of other groups.
    """
    counts = Counter(cookie for cookie in found if cookie and cookie not in taken)
    if known in counts:
        return known
    return max(counts, key=lambda cookie: (counts[cookie], -cookie), default=0)


def is_left_alone(found: int, group: int, ours: bool, cookies: Mapping[str, int]) -> bool:
    """Whether a process has a cookie of its own, or of another agent, which keeps it apart anyhow.

    group: the cookie of its group; ours: whether it is claimed; cookies: of all groups.
    """
    return not ours and found not in (0, group, *cookies.values())
