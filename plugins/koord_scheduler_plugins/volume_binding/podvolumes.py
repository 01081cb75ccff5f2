"""A pod's claims, by what is to be done about each before the pod can run.

Source: Kubernetes, plugins/volumebinding podHasPVCs, GetPodVolumeClaims.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from koord_scheduler.plugin import ClusterPod, Status, View, in_time
from koord_scheduler.plugin.storage import (
    LOST,
    Claim,
    StorageClass,
    Volume,
    is_ephemeral,
    missing,
)
from koord_scheduler_plugins.volume_binding.assumed import AssumedVolumes

_IMMEDIATE = Status.unresolvable("pod has unbound immediate PersistentVolumeClaims")


@dataclass(frozen=True, slots=True)
class PodClaims:
    """The claims of a pod that nothing but a node is missing for."""

    bound: tuple[tuple[Claim, Volume | None], ...] = ()  # None: the volume is not there
    unbound: tuple[Claim, ...] = ()  # that wait for their first pod


def claims_of(
    pod: ClusterPod, nodes: View, classes: Mapping[str, StorageClass], assumed: AssumedVolumes
) -> PodClaims | Status:
    """The claims of a pod, as they are assumed to be; or why it has to wait, or has failed."""
    bound: list[tuple[Claim, Volume | None]] = []
    unbound: list[Claim] = []
    immediate = False
    for name in in_time(dict.fromkeys(pod.claims)):
        live = nodes.claim(pod.namespace, name)
        wrong = _why_unusable(pod, name, live)
        if live is None or wrong:
            return Status.unresolvable(wrong)
        claim = assumed.claim(live)
        if claim.fully_bound:
            volume = nodes.volume(claim.volume)
            bound.append((claim, None if volume is None else assumed.volume(volume)))
            continue
        found = classes.get(claim.storage_class) if claim.storage_class else None
        if found is not None and found.waits_for_consumer is None:
            return Status.failed(f'VolumeBindingMode not set for StorageClass "{found.name}"')
        if found is not None and found.waits_for_consumer and not claim.volume:
            unbound.append(claim)
        else:
            immediate = True
    return _IMMEDIATE if immediate else PodClaims(tuple(bound), tuple(unbound))


def _why_unusable(pod: ClusterPod, name: str, claim: Claim | None) -> str:
    """What is wrong with a claim, in Kubernetes' words; "": nothing."""
    ephemeral = is_ephemeral(pod, name)
    if claim is None and ephemeral:
        wanted = "waiting for ephemeral volume controller to create the persistentvolumeclaim"
        return f'{wanted} "{name}"'
    if claim is None:
        return missing("persistentvolumeclaim", name)
    if claim.phase == LOST:
        volume = f'bound to non-existent persistentvolume "{claim.volume}"'
        return f'persistentvolumeclaim "{name}" {volume}'
    if claim.deleting:
        return f'persistentvolumeclaim "{name}" is being deleted'
    if ephemeral and not claim.is_for(pod):
        return f"PVC {claim.key} was not created for pod {pod.key} (pod is not owner)"
    return ""
