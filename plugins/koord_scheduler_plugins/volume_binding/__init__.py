"""VolumeBinding: pods go where their volumes are, can be bound, or can be made."""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from koord.plugin import Clock, KoordError
from koord.plugin.args import takes_args
from koord.plugin.kube import PERSISTENT_CLAIMS, PERSISTENT_VOLUMES
from koord_scheduler.plugin import (
    Action,
    ClusterEvent,
    ClusterNode,
    ClusterPod,
    ClusterState,
    CycleState,
    EnqueueExtensions,
    EventResource,
    FilterPlugin,
    Handle,
    HintedEvent,
    NodeInfo,
    PreBindPlugin,
    PreFilterPlugin,
    PreScorePlugin,
    QueueingHint,
    ReservePlugin,
    ScorePlugin,
    Services,
    Status,
    View,
)
from koord_scheduler.plugin.storage import (
    BOUND_BY_CONTROLLER,
    CLAIM,
    SELECTED_NODE,
    VOLUME,
    Claim,
    ClaimReference,
    CsiDriver,
    StorageCapacity,
    StorageClass,
    Volume,
    uses_claim,
)
from koord_scheduler.plugin.vector import (
    Mask,
    Scores,
    VectorFilterPlugin,
    VectorScorePlugin,
    Verdicts,
)
from koord_scheduler_plugins.volume_binding.podvolumes import (
    Plan,
    PodVolumes,
    ShapeScorer,
    VolumeBindingArgs,
    claims_of,
)
from koord_scheduler_plugins.volume_binding.tables import AssumedVolumes, reaches


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
            KoordError: the API server rejected a change, or did not answer.
        """
        for claim, volume in plan.static:
            await self._keep_for(claim, volume)
        for claim in plan.made:
            await self._choose(claim, plan.node)
        await self._wait(pod, plan, seconds)

    async def _keep_for(self, claim: Claim, volume: Volume) -> None:
        """Reserve a volume for a claim; the volume controller binds the two."""
        if volume.claim is not None and volume.claim.uid == claim.uid:
            return
        path = PERSISTENT_VOLUMES.object(volume.name)
        stored = await self._client.merge_patch(path, claim_reference(claim, volume))
        self._assumed.stored_volume(volume.name, _version_of(stored))

    async def _choose(self, claim: Claim, node: str) -> None:
        """Let the provisioner make a volume for a claim where a node can reach it."""
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


_STATE = "VolumeBinding"
_ASSUMED = "VolumeBinding assumed volumes"


@takes_args(VolumeBindingArgs)
class VolumeBinding(
    PreFilterPlugin,
    FilterPlugin,
    VectorFilterPlugin,
    PreScorePlugin,
    ScorePlugin,
    VectorScorePlugin,
    ReservePlugin,
    PreBindPlugin,
    EnqueueExtensions,
):
    """Rejects nodes that cannot have the pod's volumes; binds claims that waited for the pod."""

    def __init__(self, args: VolumeBindingArgs, handle: Handle) -> None:
        services = handle.services
        self._seconds = float(args.bind_timeout_seconds)
        self.pre_bind_timeout = self._seconds
        self._scorer = ShapeScorer(args.shape) if args.shape else None
        self._cluster = services.cluster
        self._assumed = services.shared.get(
            _ASSUMED, lambda: AssumedVolumes(services.cluster, services.changes)
        )
        self._binder = VolumeBinder(services, self._assumed)

    def events_to_register(self) -> Iterable[HintedEvent]:
        added_or_updated = Action.ADD | Action.UPDATE
        node = ClusterEvent(EventResource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL)
        driver = ClusterEvent(EventResource.CSI_DRIVER, Action.UPDATE)
        capacity = ClusterEvent(EventResource.STORAGE_CAPACITY, added_or_updated)
        return (
            HintedEvent(ClusterEvent(EventResource.STORAGE_CLASS, added_or_updated), _class_helps),
            HintedEvent(ClusterEvent(EventResource.CLAIM, added_or_updated), _claim_helps),
            HintedEvent(ClusterEvent(EventResource.VOLUME, added_or_updated)),
            HintedEvent(node),
            HintedEvent(driver, _driver_helps),
            HintedEvent(capacity, _capacity_helps),
        )

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        if not pod.claims:
            return Status.skip()
        found = self._look(pod, nodes)
        if isinstance(found, Status):
            return found
        state.write(_STATE, found)
        return None

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return None if pod.claims else ()

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        volumes = state.read(_STATE, PodVolumes)
        number = volumes.number_on(node.node)
        return volumes.rejection_of(number) if number else None

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Verdicts:
        return state.read(_STATE, PodVolumes).verdicts(nodes)

    def pre_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Status | None:
        """Only volumes that are there have a score, and only by the shape of the arguments."""
        volumes = state.find(_STATE, PodVolumes)
        if self._scorer is None or volumes is None or not volumes.wanted:
            return Status.skip()
        there = any(np.any(match.there[feasible]) for match in volumes.matched(nodes))
        return None if there else Status.skip()

    def pre_score_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return None if pod.claims else ()

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        assert self._scorer is not None  # noqa: S101 - else PreScore has skipped it
        return state.read(_STATE, PodVolumes).score_on(node.node, self._scorer)

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        assert self._scorer is not None  # noqa: S101 - else PreScore has skipped it
        return state.read(_STATE, PodVolumes).score_all(nodes, self._scorer)

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        """Assume what is planned, from what is known now."""
        before = state.find(_STATE, PodVolumes)
        if before is None or not before.claims.unbound:
            return None
        nodes = self._cluster.view()
        found, row = self._look(pod, nodes), nodes.row(node_name)
        if isinstance(found, Status):
            return found
        if row is None:
            return Status.failed(f'node "{node_name}" does not exist any more')
        number = int(found.verdicts(nodes).numbers[row])
        if number:
            return found.rejection_of(number)
        found.plan = found.plan_on(nodes, row)
        state.write(_STATE, found)
        self._assume(pod, found.plan)
        return None

    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        volumes = state.find(_STATE, PodVolumes)
        if volumes is None or not volumes.plan:
            return
        plan, volumes.plan = volumes.plan, Plan()
        self._assumed.revert(
            pod.uid,
            [volume.name for _, volume in plan.static],
            [claim.key for claim in plan.made],
        )

    def pre_bind_pre_flight(
        self, state: CycleState, pod: ClusterPod, node_name: str
    ) -> Status | None:
        volumes = state.find(_STATE, PodVolumes)
        return None if volumes is not None and volumes.plan else Status.skip()

    async def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        volumes = state.find(_STATE, PodVolumes)
        if volumes is None or not volumes.plan:
            return None
        try:
            await self._binder.bind(pod, volumes.plan, self._seconds)
        except KoordError as err:
            return Status.failed(err)
        return None

    def _look(self, pod: ClusterPod, nodes: View) -> PodVolumes | Status:
        storage = self._cluster.storage
        claims = claims_of(pod, nodes, storage.classes, self._assumed)
        if isinstance(claims, Status):
            return claims
        wanted = [claim for claim in claims.unbound if not claim.selected_node]
        return PodVolumes(
            claims=claims,
            chosen=tuple(claim for claim in claims.unbound if claim.selected_node),
            wanted=tuple(sorted(wanted, key=lambda claim: claim.request or 0)),
            storage=storage,
            tables=self._assumed.tables,
            capacities=self._assumed.capacities,
            assumed=self._assumed.volumes_of(nodes),
        )

    def _assume(self, pod: ClusterPod, plan: Plan) -> None:
        for claim, volume in plan.static:
            if volume.claim is None or volume.claim.uid != claim.uid:
                reference = ClaimReference(claim.namespace, claim.name, claim.uid)
                self._assumed.assume_volume(pod.uid, replace(volume, claim=reference))
        for claim in plan.made:
            if claim.selected_node != plan.node:
                self._assumed.assume_claim(pod.uid, replace(claim, selected_node=plan.node))


def _class_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    """One that is new, or whose volumes can be made for other nodes now."""
    assert isinstance(new, StorageClass)  # noqa: S101 - it was added or changed
    if isinstance(old, StorageClass) and old.topologies == new.topologies:
        return QueueingHint.SKIP
    return QueueingHint.QUEUE


def _claim_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    return QueueingHint.QUEUE if uses_claim(pod, new) else QueueingHint.SKIP


def _driver_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    """One that does not report any more what it has left."""
    before = isinstance(old, CsiDriver) and old.tracks_capacity
    after = isinstance(new, CsiDriver) and new.tracks_capacity
    return QueueingHint.QUEUE if before and not after else QueueingHint.SKIP


def _capacity_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    """One that is new, or is for larger volumes now."""
    assert isinstance(new, StorageCapacity)  # noqa: S101 - it was added or changed
    if not isinstance(old, StorageCapacity):
        return QueueingHint.QUEUE
    limit = -1 if new.limit is None else new.limit
    return QueueingHint.QUEUE if limit > (old.limit or 0) else QueueingHint.SKIP
