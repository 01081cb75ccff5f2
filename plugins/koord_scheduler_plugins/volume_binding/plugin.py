"""VolumeBinding at its extension points.

Source: Kubernetes, plugins/volumebinding/volume_binding.go, binder.go.
"""

from collections.abc import Hashable, Iterable

import numpy as np
from msgspec.structs import replace

from koord_scheduler.plugin import (
    Action,
    ClusterEvent,
    ClusterPod,
    CycleState,
    EnqueueExtensions,
    EventResource,
    FilterPlugin,
    Handle,
    HintedEvent,
    KoordError,
    Mask,
    NodeInfo,
    PreBindPlugin,
    PreFilterPlugin,
    PreScorePlugin,
    QueueingHint,
    ReservePlugin,
    ScorePlugin,
    Scores,
    Status,
    VectorFilterPlugin,
    VectorScorePlugin,
    Verdicts,
    View,
    takes_args,
)
from koord_scheduler.plugin.storage import (
    ClaimReference,
    CsiDriver,
    StorageCapacity,
    StorageClass,
    uses_claim,
)
from koord_scheduler_plugins.volume_binding.args import VolumeBindingArgs
from koord_scheduler_plugins.volume_binding.assumed import AssumedVolumes
from koord_scheduler_plugins.volume_binding.binding import VolumeBinder
from koord_scheduler_plugins.volume_binding.podvolumes import claims_of
from koord_scheduler_plugins.volume_binding.scores import ShapeScorer
from koord_scheduler_plugins.volume_binding.state import Plan, PodVolumes

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
        self.patience = self._seconds
        self._scorer = ShapeScorer(args.shape) if args.shape else None
        self._cluster = services.cluster
        self._assumed = services.shared.get(
            _ASSUMED, lambda: AssumedVolumes(services.cluster, services.changes)
        )
        self._binder = VolumeBinder(services, self._assumed)

    def events_to_register(self) -> Iterable[HintedEvent]:
        came = Action.ADD | Action.UPDATE
        node = ClusterEvent(EventResource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL)
        driver = ClusterEvent(EventResource.CSI_DRIVER, Action.UPDATE)
        capacity = ClusterEvent(EventResource.STORAGE_CAPACITY, came)
        return (
            HintedEvent(ClusterEvent(EventResource.STORAGE_CLASS, came), _class_helps),
            HintedEvent(ClusterEvent(EventResource.CLAIM, came), _claim_helps),
            HintedEvent(ClusterEvent(EventResource.VOLUME, came)),
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
