"""What pods hold of quotas: an account that knows no quota, only what pods say of themselves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from koord.api.elasticquota import DEPRECATED, MAX_AMOUNT, NAME, Amounts, is_preemptible
from koord_scheduler.plugin import ClusterPod
from koord_scheduler.plugin.koordinator import AccountKind, Holding

_FIXED, _PREEMPTIBLE = "fixed", "preemptible"


@dataclass(frozen=True, slots=True)
class PodGroup:
    """Pods that have the same quota, whichever it is. They are one pool of the account."""

    namespace: str
    quota: str  # that their label names; "": none
    preemptible: bool

    @property
    def labels(self) -> Mapping[str, str]:
        return {NAME: self.quota} if self.quota else {}


def pool_name(pod: ClusterPod) -> str:
    """Return the pool of a pod. Neither a namespace nor the value of a label has a slash."""
    kind = _PREEMPTIBLE if is_preemptible(pod.labels) else _FIXED
    return f"{pod.namespace}/{pod.labels.get(NAME, '')}/{kind}"


def pod_group(pool: str) -> PodGroup:
    """Return the pods of a pool."""
    namespace, _, rest = pool.partition("/")
    quota, _, kind = rest.rpartition("/")
    return PodGroup(namespace, quota, kind == _PREEMPTIBLE)


def pod_request(pod: ClusterPod) -> Amounts:
    """Return what a pod requests, with its overhead: cpu in millicores, all else in units.

    Deprecated names of batch resources stand for those that quotas have.
    """
    return dict(_amounts(pod))


def _amounts(pod: ClusterPod) -> Sequence[tuple[str, int]]:
    requests = pod.spec.requests
    if not any(name in DEPRECATED or amount > MAX_AMOUNT for name, amount in requests):
        return requests
    found: dict[str, int] = {}
    for said, amount in requests:
        name = DEPRECATED.get(said, said)
        found[name] = min(found.get(name, 0) + amount, MAX_AMOUNT)
    return tuple(found.items())


def _holdings(pod: ClusterPod) -> Sequence[Holding]:
    return (Holding(pool_name(pod), tuple(_amounts(pod))),)


def _staying(pod: ClusterPod) -> Sequence[Holding]:
    return () if pod.deleting else _holdings(pod)


QUOTA_PODS = AccountKind("quota", _holdings)
"""Pods by namespace, the quota that their label names, and whether they may be preempted."""
STAYING_QUOTA_PODS = AccountKind("quota", _staying)
"""The same without those that are being deleted."""
