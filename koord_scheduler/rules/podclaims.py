"""Claims of pods: which are made for the pod itself, and what is said of those that are missing."""

from koord.cluster.facts import ClusterPod
from koord.cluster.storage.facts import Claim


def is_ephemeral(pod: ClusterPod, name: str) -> bool:
    """Whether a claim is that of an ephemeral volume, which is made for this pod.

    Source: Kubernetes, component-helpers ephemeral.VolumeClaimName.
    """
    return any(name == f"{pod.name}-{volume}" for volume in pod.spec.ephemeral_volumes)


def named_claims(pod: ClusterPod) -> tuple[str, ...]:
    """The claims that the pod names, without those that are made for it."""
    if not pod.spec.ephemeral_volumes:
        return pod.claims
    return tuple(name for name in pod.claims if not is_ephemeral(pod, name))


def uses_claim(pod: ClusterPod, claim: object) -> bool:
    """Whether it is one of the pod's claims."""
    return (
        isinstance(claim, Claim) and claim.namespace == pod.namespace and claim.name in pod.claims
    )


def missing(kind: str, name: str) -> str:
    """What Kubernetes says of an object that is not there; kind is its resource."""
    return f'{kind} "{name}" not found'
