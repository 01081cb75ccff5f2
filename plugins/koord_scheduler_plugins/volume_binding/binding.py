"""Does what was planned: patches volumes and claims, and waits until all claims are bound.

Source: Kubernetes, plugins/volumebinding bindAPIUpdate, checkBindings.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from koord_scheduler.plugin import (
    Clock,
    ClusterNode,
    ClusterPod,
    ClusterState,
    KoordError,
    Services,
)
from koord_scheduler.plugin.storage import (
    BOUND_BY_CONTROLLER,
    CLAIM,
    PERSISTENT_CLAIMS,
    PERSISTENT_VOLUMES,
    SELECTED_NODE,
    VOLUME,
    Claim,
    Volume,
)
from koord_scheduler_plugins.volume_binding.assumed import AssumedVolumes
from koord_scheduler_plugins.volume_binding.matching import reaches
from koord_scheduler_plugins.volume_binding.state import Plan


class BindingFailed(KoordError):
    """A pod's volumes cannot be bound as it was planned: the pod is tried again."""


class VolumeBinder:
    """Binds the volumes of pods. Belongs to the event loop."""

    def __init__(self, services: Services, assumed: AssumedVolumes) -> None:
        self._client = services.client
        self._cluster: ClusterState = services.cluster
        self._clock: Clock = services.clock
        self._assumed = assumed

    async def bind(self, pod: ClusterPod, plan: Plan, seconds: float) -> None:
        """Return when all claims of a plan, which is assumed, are bound.

        Raises:
            BindingFailed: that will not come, or has not come in so many seconds.
            KoordError: the API server refused a change, or did not answer.
        """
        for claim, volume in plan.static:
            await self._keep_for(claim, volume)
        for claim in plan.made:
            await self._choose(claim, plan.node)
        await self._wait(pod, plan, seconds)

    async def _keep_for(self, claim: Claim, volume: Volume) -> None:
        """Have a volume be this claim's; the volume controller binds the two."""
        if volume.claim is not None and volume.claim.uid == claim.uid:
            return
        path = PERSISTENT_VOLUMES.object(volume.name)
        stored = await self._client.merge_patch(path, claim_reference(claim, volume))
        self._assumed.stored_volume(volume.name, _version_of(stored))

    async def _choose(self, claim: Claim, node: str) -> None:
        """Have a volume be made for a claim where a node can reach it."""
        if claim.selected_node == node:
            return
        path = PERSISTENT_CLAIMS.object(claim.name, namespace=claim.namespace)
        stored = await self._client.merge_patch(path, selected_node(claim, node))
        self._assumed.stored_claim(claim.key, _version_of(stored))

    async def _wait(self, pod: ClusterPod, plan: Plan, seconds: float) -> None:
        names = [f"pod {pod.key}", f"node {plan.node}"]
        for claim, volume in plan.static:
            names += [f"claim {claim.key}", f"volume {volume.name}"]
        names += [f"claim {claim.key}" for claim in plan.made]
        ends = self._clock.monotonic() + seconds
        while True:
            awaited, made = self._awaited(pod, plan)
            if not awaited:
                return
            left = ends - self._clock.monotonic()
            if left <= 0:
                wanted = f"wanted its claims bound within {seconds:g} s"
                what = f"found that {awaited} is not; see the events of that claim"
                raise BindingFailed(f"binding volumes: {wanted}, {what}")
            timer = self._clock.timer(left)
            watched = [*names, *made]
            self._assumed.watch(timer, watched)
            try:
                await timer
            finally:
                self._assumed.unwatch(timer, watched)
                timer.cancel()

    def _awaited(self, pod: ClusterPod, plan: Plan) -> tuple[str, list[str]]:
        """A claim that is not bound yet, "" if all are; and volumes whose coming is awaited."""
        known = self._cluster.pod(pod.key)
        if known is None or known.uid != pod.uid:
            raise BindingFailed("binding volumes: pod does not exist any more")
        view = self._cluster.view()
        row = view.row(plan.node)
        if row is None:
            raise BindingFailed(f'binding volumes: node "{plan.node}" does not exist any more')
        node = view.node(row)
        unbound = [*self._unbound_static(plan, node)]
        made: list[str] = []
        for wanted in plan.made:
            claim = self._claim(wanted)
            _check_choice(claim, plan.node)
            volume = self._volume(claim.volume) if claim.volume else None
            if claim.volume and volume is None:
                made.append(f"volume {claim.volume}")
                unbound.append(claim.key)  # it has not come to us yet
                continue
            if volume is not None:
                _check_reach(volume, node)
            if not claim.fully_bound:
                unbound.append(claim.key)
        return (unbound[0] if unbound else ""), made

    def _unbound_static(self, plan: Plan, node: ClusterNode) -> Iterator[str]:
        for wanted, chosen in plan.static:
            volume = self._volume(chosen.name)
            if volume is None:
                raise BindingFailed(f'binding volumes: pv "{chosen.name}" does not exist any more')
            claim = self._claim(wanted)
            _check_reach(volume, node)
            if volume.claim is None or not volume.claim.uid:
                raise BindingFailed(f'binding volumes: ClaimRef got reset for pv "{volume.name}"')
            if not claim.fully_bound:
                yield claim.key

    def _volume(self, name: str) -> Volume | None:
        live = self._cluster.get(VOLUME, name)
        return None if live is None else self._assumed.volume(live)

    def _claim(self, wanted: Claim) -> Claim:
        live = self._cluster.get(CLAIM, wanted.key)
        if live is None or live.uid != wanted.uid:
            raise BindingFailed(f'binding volumes: pvc "{wanted.key}" does not exist any more')
        return self._assumed.claim(live)


def claim_reference(claim: Claim, volume: Volume) -> dict[str, Any]:
    """The patch that keeps a volume for a claim, if the volume is as it was.

    Source: Kubernetes, component-helpers volume.GetBindVolumeToClaim.
    """
    meta: dict[str, Any] = {"uid": volume.uid, "resourceVersion": volume.resource_version}
    if volume.claim is None:  # else a person has kept it, and it stays so
        meta["annotations"] = {BOUND_BY_CONTROLLER: "yes"}
    reference = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim.namespace,
        "name": claim.name,
        "uid": claim.uid,
        "resourceVersion": claim.resource_version,
    }
    return {"metadata": meta, "spec": {"claimRef": reference}}


def selected_node(claim: Claim, node: str) -> dict[str, Any]:
    """The patch by which a volume is made for a claim, if the claim is as it was."""
    meta = {"uid": claim.uid, "resourceVersion": claim.resource_version}
    return {"metadata": {**meta, "annotations": {SELECTED_NODE: node}}}


def _check_choice(claim: Claim, node: str) -> None:
    """A provisioner that has failed takes the annotation away."""
    if not claim.selected_node:
        text = f'binding volumes: selectedNode annotation reset for PVC "{claim.key}"'
        raise BindingFailed(text)
    if claim.selected_node != node:
        raise BindingFailed(f'binding volumes: provisioning failed for PVC "{claim.key}"')


def _check_reach(volume: Volume, node: ClusterNode) -> None:
    if not reaches(volume, node):
        text = f'pv "{volume.name}" node affinity doesn\'t match node "{node.name}"'
        raise BindingFailed(f"binding volumes: {text}")


def _version_of(stored: Mapping[str, Any]) -> str:
    meta = stored.get("metadata")
    version = meta.get("resourceVersion") if isinstance(meta, Mapping) else None
    return version if isinstance(version, str) else ""
