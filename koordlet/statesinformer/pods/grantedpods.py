"""The one place where it is decided which allocations in the annotations of pods count here."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from koord.api.pods.pod import Pod
from koordlet.rules.allocations import (
    ALLOCATIONS,
    AllocationClaim,
    RefusedAllocation,
    allocation_claim,
    refused_allocations,
)
from koordlet.statesinformer.model import PodMeta

_NOTHING = AllocationClaim()


class GrantedPods:
    """Takes the annotations from pods that give them more than they can have.

    All readers of resource-status and device-allocated see only pods that went through here: one
    that is refused looks as if the scheduler had given it nothing. refused are those, by UID.
    """

    def __init__(self, trusts: Callable[[], bool]) -> None:
        """trusts: whether everything counts, as it does for Koordinator's agent."""
        self._trusts = trusts
        self._claims: dict[str, tuple[Pod, AllocationClaim]] = {}  # of pods with annotations
        self.refused: Mapping[str, tuple[RefusedAllocation, ...]] = {}

    def of(
        self, pods: tuple[PodMeta, ...], by_kubelet: Mapping[str, frozenset[int]]
    ) -> tuple[PodMeta, ...]:
        """Return the pods with the annotations that count. by_kubelet: as refused_allocations."""
        if self._trusts():
            self.refused = {}
            return pods
        known, self._claims = self._claims, {}
        claims: list[tuple[Pod, AllocationClaim]] = []
        for meta in pods:
            pod = meta.pod
            if has_allocations(pod.annotations):
                earlier = known.get(meta.uid)
                same = earlier is not None and (earlier[0] is pod or earlier[0] == pod)
                claim = earlier[1] if earlier and same else allocation_claim(pod)
                self._claims[meta.uid] = pod, claim
                claims.append((pod, claim))
            elif meta.uid in by_kubelet:
                claims.append((pod, _NOTHING))
        self.refused = refused_allocations(claims, by_kubelet) if claims else {}
        if not self.refused:
            return pods
        return tuple(self._without_refused(meta) for meta in pods)

    def _without_refused(self, meta: PodMeta) -> PodMeta:
        refused = self.refused.get(meta.uid, ())
        return without(meta, {each.annotation for each in refused}) if refused else meta


def has_allocations(annotations: Mapping[str, str]) -> bool:
    """Whether there is something to decide."""
    return any(annotation in annotations for annotation in ALLOCATIONS)


def without(meta: PodMeta, annotations: Collection[str]) -> PodMeta:
    """Return a pod without these annotations."""
    kept = {key: text for key, text in meta.pod.annotations.items() if key not in annotations}
    return replace(meta, pod=replace(meta.pod, annotations=kept))
