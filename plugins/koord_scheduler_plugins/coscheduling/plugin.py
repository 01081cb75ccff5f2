"""Coscheduling: the pods of a gang are placed together, or not at all.

The whole gang group is planned before its first member is reserved. Then one member after the
other is tried on its planned node, waits in Permit, and the last one lets all of them be bound.

Source: Koordinator, pkg/scheduler/plugins/coscheduling; docs/coscheduling.md for what differs.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from koord.api.podgroup import (
    ANNOTATIONS,
    GROUP_ID_KEYS,
    GROUP_LABEL,
    GROUPS,
    LIGHTWEIGHT_NAME_LABEL,
    MAX_SPEC_BYTES,
    MEMBER_COUNT_KEYS,
    NAME,
    NETWORK_TOPOLOGY_SELECTOR,
    NETWORK_TOPOLOGY_SPEC,
    MatchPolicy,
    PodGroup,
)
from koord.plugin import get_logger
from koord.plugin.args import FieldError, Seconds, invalid, takes_args
from koord_scheduler.plugin import (
    POD,
    POD_DELETED,
    Action,
    ClusterEvent,
    ClusterPod,
    CycleState,
    EnqueueExtensions,
    EventResource,
    Handle,
    HintedEvent,
    NodeInfo,
    PermitPlugin,
    PostBindPlugin,
    PostFilterPlugin,
    PostFilterResult,
    PreBindPlugin,
    PreEnqueuePlugin,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    QueueingHint,
    ReservePlugin,
    ScorePlugin,
    SharedPart,
    Status,
    View,
    Wait,
    claims_pods_with,
    pod_changes,
    reads,
)
from koord_scheduler.plugin.koordinator import (
    APIServiceProvider,
    ControllerProvider,
    Endpoint,
    FailedPod,
    FindOneNodePlugin,
    GroupPlan,
    NextPodPlugin,
    NoGroupPlan,
    PendingAdvice,
    PodGroupPlugin,
    PostFilterTransformer,
    PreFilterTransformer,
)
from koord_scheduler.plugin.preemption import Diagnosis, NodeStatuses
from koord_scheduler.plugin.vector import Mask, Scores, VectorScorePlugin
from koord_scheduler_plugins.coscheduling.gangs import (
    GANG_LABELS,
    GangDefaults,
    Gangs,
    Workloads,
    gang_id,
)
from koord_scheduler_plugins.coscheduling.preemption import GangPreemptor
from koord_scheduler_plugins.coscheduling.rounds import GangMetrics, Rounds
from koord_scheduler_plugins.coscheduling.serving import (
    POD_GROUPS,
    GangServing,
    PodGroupReader,
)
from koord_scheduler_plugins.coscheduling.topology import (
    Gathering,
    is_attracted,
)

WITHOUT = "gangs are those that pods declare by annotations"

_SCORES = f"{NAME}/scores"
_NODE_CHANGES = (
    Action.ADD
    | Action.UPDATE_NODE_ALLOCATABLE
    | Action.UPDATE_NODE_LABEL
    | Action.UPDATE_NODE_TAINT
)

log = get_logger("koord_scheduler.coscheduling")


@dataclass(frozen=True, kw_only=True, slots=True)
class CoschedulingArgs:
    """Defaults of gangs."""

    default_timeout: Seconds = 600.0  # in which all members of a gang must have a node
    controller_workers: int = 1  # accepted; one is enough here
    skip_check_schedule_cycle: bool = False  # accepted; it has no meaning any more
    enable_preemption: bool = False
    aware_network_topology: bool = False
    default_match_policy: str = MatchPolicy.ONCE_SATISFIED

    def validate(self) -> Iterator[FieldError]:
        if self.default_timeout < 0:
            text = "coeSchedulingArgs DefaultTimeoutSeconds invalid"
            yield invalid(("defaultTimeout",), self.default_timeout, text)
        if self.controller_workers < 1:
            text = "coeSchedulingArgs ControllerWorkers invalid"
            yield invalid(("controllerWorkers",), self.controller_workers, text)
        if self.default_match_policy not in list(MatchPolicy):
            wanted = f"wanted {', '.join(MatchPolicy)}"
            yield invalid(("defaultMatchPolicy",), self.default_match_policy, wanted)


@dataclass(frozen=True, slots=True)
class NodeScores:
    """Scores of a cycle; shape (nodes,)."""

    scores: Scores

    def clone(self) -> "NodeScores":
        return self


@takes_args(CoschedulingArgs)
@claims_pods_with(NAME, GROUP_LABEL, LIGHTWEIGHT_NAME_LABEL)
@reads(
    pod_annotations={
        **dict.fromkeys((*ANNOTATIONS, NETWORK_TOPOLOGY_SELECTOR), 1024),
        NETWORK_TOPOLOGY_SPEC: MAX_SPEC_BYTES,
        **dict.fromkeys((GROUPS, *GROUP_ID_KEYS), 64 << 10),  # they list gangs
    }
)
class Coscheduling(
    PreEnqueuePlugin,
    NextPodPlugin,
    PreFilterTransformer,
    PreFilterPlugin,
    FindOneNodePlugin,
    PostFilterPlugin,
    PostFilterTransformer,
    PreScorePlugin,
    VectorScorePlugin,
    ReservePlugin,
    PermitPlugin,
    PreBindPlugin,
    ScorePlugin,
    PostBindPlugin,
    EnqueueExtensions,
    ControllerProvider,
    APIServiceProvider,
    PendingAdvice,
    PodGroupPlugin,
):
    """Holds the members of a gang until all of them can be placed."""

    named_only_at = frozenset({"postBind"})

    def __init__(self, args: CoschedulingArgs, handle: Handle) -> None:
        services = handle.services
        defaults = GangDefaults(MatchPolicy(args.default_match_policy), args.default_timeout)
        self._gathering = Gathering(handle) if args.aware_network_topology else None
        metrics = services.metrics.own(GangMetrics)
        gangs = Gangs(services.cluster, defaults)
        self._gangs = gangs
        self._handle = handle
        self._rounds = Rounds(handle, gangs, self._gathering, metrics)
        self._preemptor = (
            GangPreemptor(handle, gangs, self._rounds) if args.enable_preemption else None
        )
        self._serving = GangServing(handle, gangs, self._rounds)
        followed = services.custom_resources.follow(
            POD_GROUPS, PodGroupReader(handle).read, self._pod_group_changed, without=WITHOUT
        )
        gangs.pod_groups = followed.objects
        self._workloads = Workloads(services, self._rounds.gang_changed)
        gangs.workload_spec = self._workloads.spec
        metrics.count_waiting_by(handle.profile, self._rounds.count_waiting)
        if self._gathering is not None and services.network is not None:
            services.network.subscribe(self._rounds.network_changed)
        services.changes.subscribe(POD, self._pod_changed, labels=GANG_LABELS)
        if services.gates("GangPendingPodsConditionPatch"):
            services.failures.register(after=self._attempt_failed)

    def active_at(self, pod: ClusterPod) -> Collection[str] | None:
        """Nowhere for a pod of no gang, unless preemption keeps it or others attract it."""
        if gang_id(pod) or (self._gathering is not None and is_attracted(pod)):
            return None
        return () if self._preemptor is None else ("preEnqueue",)

    # The queue.

    def events_to_register(self) -> Iterable[HintedEvent]:
        """Return the events that may free a place in the network, or say that victims have gone.

        Otherwise a representative waits for what its gang lacks; others are activated with it.
        """
        if self._gathering is not None or self._preemptor is not None:
            yield HintedEvent(POD_DELETED, self._pod_deleted)
        if self._gathering is not None:
            yield HintedEvent(ClusterEvent(EventResource.NODE, _NODE_CHANGES), self._may_help)

    def _may_help(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        return QueueingHint.QUEUE if self._rounds.is_gathered(pod) else QueueingHint.SKIP

    def _pod_deleted(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        if self._preemptor is not None and self._preemptor.may_help(pod):
            return QueueingHint.QUEUE
        return self._may_help(pod, old, new)

    def pre_enqueue(self, pod: ClusterPod) -> Status | None:
        rejection = self._rounds.gate(pod)
        if rejection is None and self._preemptor is not None:
            return self._preemptor.gate(pod)
        return rejection

    @property
    def has_next(self) -> bool:
        return self._rounds.current is not None

    def next_pod(self) -> str | None:
        return self._rounds.next_pod()

    # A cycle.

    def before_pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        return self._rounds.check(pod, dry_run=state.dry_run)

    def pre_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View
    ) -> PreFilterResult | Status | None:
        """Keep a member that follows others in their place of the network, if it must be."""
        if not gang_id(pod):
            return Status.skip()
        names = self._rounds.nodes_of_bound_members(pod)
        return None if names is None else PreFilterResult(names)

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        """The answer is always the same, but for members that follow others in the network."""
        if not gang_id(pod):
            return False
        return True if self._rounds.nodes_of_bound_members(pod) is None else None

    def find_one_node(
        self, state: CycleState, pod: ClusterPod, nodes: View, result: PreFilterResult | None
    ) -> str | Status:
        return self._rounds.node_for(pod, nodes, dry_run=state.dry_run)

    async def post_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View, statuses: NodeStatuses
    ) -> PostFilterResult | Status | None:
        """Preempt pods of lower priority, if all members of a gang have nodes then."""
        if self._preemptor is None:
            return Status.unschedulable()
        return await self._preemptor.run(pod, nodes, statuses)

    async def post_filter_dry_run(
        self, state: CycleState, pod: ClusterPod, nodes: View, statuses: NodeStatuses
    ) -> PostFilterResult | Status | None:
        if self._preemptor is None:
            return Status.unschedulable()
        return await self._preemptor.run(pod, nodes, statuses, dry_run=True)

    def after_post_filter(
        self, state: CycleState, pod: ClusterPod, statuses: NodeStatuses, result: PostFilterResult
    ) -> None:
        diagnosis = Diagnosis(nodes=len(statuses.numbers), node_statuses=statuses)
        diagnosis.post_filter_message = result.status.message
        self._rounds.failed(pod, diagnosis.message())

    def _attempt_failed(self, failed: FailedPod) -> bool:
        """Write into members that were not tried why not: who adds nodes counts pods by that."""
        if failed.status.rejected and not failed.nominated_node:
            for pod in self._rounds.untried(failed.pod):
                self._handle.scheduler().report_unschedulable(pod, failed.status.message)
        return False

    def group_members(self, pod: ClusterPod) -> Sequence[ClusterPod] | Status:
        found = self._rounds.members_of(pod)
        return found if isinstance(found, Status) else found.needed

    def plan_group(self, pod: ClusterPod, nodes: View) -> GroupPlan | NoGroupPlan | Status:
        found = self._rounds.members_of(pod)
        return found if isinstance(found, Status) else self._rounds.try_plan(found, nodes, None)

    def pre_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Status | None:
        """Prefer nodes near pods with the same network-topology-selector."""
        found = None if self._gathering is None else self._gathering.scores(pod, nodes, feasible)
        if found is None:
            return Status.skip()
        state.write(_SCORES, NodeScores(found))
        return None

    def pre_score_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        attracted = self._gathering is not None and is_attracted(pod)
        return None if attracted else ()

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        return state.read(_SCORES, NodeScores).scores.item(node.row)

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        return state.read(_SCORES, NodeScores).scores

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        return None

    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        self._rounds.unreserve(pod)

    def permit(self, state: CycleState, pod: ClusterPod, node_name: str) -> Wait | Status | None:
        return self._rounds.permit(pod)

    def pre_bind_pre_flight(
        self, state: CycleState, pod: ClusterPod, node_name: str
    ) -> Status | None:
        """Skip a pod of no gang: its node need not be announced, which is a request."""
        gang = self._rounds.gang(pod)
        return Status.skip() if gang is None or gang.spec is None else None

    async def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        """Write in the pod's annotations with how many others it was placed."""
        gang = self._rounds.gang(pod)
        if gang is None or gang.spec is None:
            return None
        admitted = self._rounds.admitted_members(gang.spec.group_id)
        is_one = len(admitted) > 1 and pod.uid in admitted
        values = (gang.spec.group_id, str(len(admitted)))
        old, changes = dict(pod.annotations), pod_changes(state).annotations
        for keys, value in zip((GROUP_ID_KEYS, MEMBER_COUNT_KEYS), values, strict=True):
            for key in keys:
                if is_one:
                    changes[key] = value
                elif key in old:
                    changes[key] = None
        return None

    async def post_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        """Do nothing: the account has the pod."""

    # What changes.

    def _pod_changed(self, old: ClusterPod | None, new: ClusterPod | None) -> None:
        pod = old if new is None else new
        name = gang_id(pod) if pod is not None else ""
        if not name or pod is None:
            return
        if pod.workload_group:
            self._workloads.pod_changed(name, pod, known=bool(self._gangs.members(name)))
        self._serving.pod_changed(name, pod, gone=new is None)
        self._rounds.pod_changed(name, old, new)

    def _pod_group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        group = old if new is None else new
        if group is not None:
            self._serving.pod_group_changed(group.key)
            self._rounds.gang_changed(group.key)

    # Services.

    def new_controllers(self) -> Mapping[str, SharedPart]:
        return {"PodGroupController": self._serving.new_statuses()}

    def pending_advice(self, pod: ClusterPod) -> Iterable[str]:
        """Say what its gang group lacks, and which members are held back or wait on their nodes."""
        return self._serving.advice(pod)

    def endpoints(self) -> Iterable[Endpoint]:
        yield Endpoint("GET", "/gang/{namespace}/{name}", self._serving.answer_gang)
        yield Endpoint("GET", "/gangs", self._serving.answer_gangs)
