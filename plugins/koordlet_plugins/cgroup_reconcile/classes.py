"""What the pods of each Kubernetes QoS class are granted together. Pure."""

from collections.abc import Iterable, Mapping

from koord.api.qos import KubeQoS
from koordlet_plugins.cgroup_reconcile.grants import Shares


def sums(pods: Iterable[tuple[KubeQoS, Shares]]) -> Mapping[KubeQoS, Shares]:
    """Return the sums by class; the cgroup of guaranteed pods holds all others as well."""
    pods = list(pods)
    return {
        qos: Shares(
            _sum(shares.least for kind, shares in pods if _is_below(kind, qos)),
            _sum(shares.low for kind, shares in pods if _is_below(kind, qos)),
        )
        for qos in KubeQoS
    }


def _is_below(kind: KubeQoS, directory: KubeQoS) -> bool:
    return directory in (KubeQoS.GUARANTEED, kind)


def _sum(amounts: Iterable[int | None]) -> int | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None
