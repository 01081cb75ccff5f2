"""DefaultPreemption: pods leave a node so that one of higher priority has room there.

Source: Kubernetes, plugins/defaultpreemption and framework/preemption.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from koord_scheduler.plugin import (
    POD_DELETED,
    Candidate,
    ClusterPod,
    Code,
    CycleState,
    EnqueueExtensions,
    Fault,
    Handle,
    HintedEvent,
    Int32,
    KoordError,
    NodeStatuses,
    PostFilterPlugin,
    PostFilterResult,
    PreEnqueuePlugin,
    QueueingHint,
    Status,
    View,
    by_namespace,
    candidates_wanted,
    choose,
    invalid,
    may_preempt,
    takes_args,
)
from koord_scheduler_plugins.default_preemption.acting import Preemption, Preemptions, preempted
from koord_scheduler_plugins.default_preemption.dryrun import DryRun

_PERCENTAGE, _ABSOLUTE = "minCandidateNodesPercentage", "minCandidateNodesAbsolute"


@dataclass(frozen=True, kw_only=True, slots=True)
class DefaultPreemptionArgs:
    """How many candidates are enough: the larger number counts."""

    min_candidate_nodes_percentage: Int32 = 10  # of the nodes that may become one
    min_candidate_nodes_absolute: Int32 = 100

    def validate(self) -> Iterator[Fault]:
        percentage, absolute = (
            self.min_candidate_nodes_percentage,
            self.min_candidate_nodes_absolute,
        )
        if not 0 <= percentage <= 100:
            yield invalid((_PERCENTAGE,), percentage, "not in valid range [0, 100]")
        if absolute < 0:
            yield invalid((_ABSOLUTE,), absolute, "not in valid range [0, inf)")
        if percentage == absolute == 0:
            both = "cannot be zero at the same time as"
            yield invalid((_PERCENTAGE,), percentage, f"{both} {_ABSOLUTE}")
            yield invalid((_ABSOLUTE,), absolute, f"{both} {_PERCENTAGE}")


@takes_args(DefaultPreemptionArgs)
class DefaultPreemption(PostFilterPlugin, PreEnqueuePlugin, EnqueueExtensions):
    """Nominates the pod to the node where room for it costs least, and has room made there.

    The pod waits until its victims are leaving, and for other reasons to try again after that.
    """

    def __init__(self, args: DefaultPreemptionArgs, handle: Handle) -> None:
        self._args = args
        self._handle = handle
        self._services = handle.services
        self._preemptions = Preemptions.of(handle.services)

    def events_to_register(self) -> Iterable[HintedEvent]:
        return (HintedEvent(POD_DELETED, self._pod_deleted),)

    def pre_enqueue(self, pod: ClusterPod) -> Status | None:
        if self._preemptions.under_way(pod.uid):
            text = "waiting for the preemption for this pod to be finished"
            return Status.unresolvable(text)
        return None

    async def post_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View, statuses: NodeStatuses
    ) -> PostFilterResult:
        self._preemptions.metrics.attempts.inc()
        result, chosen = await self._find(state, pod, nodes, statuses)
        if chosen is not None:
            self._preemptions.begin(Preemption(self._handle.profile, self.name, pod, chosen))
        return result

    async def post_filter_dry_run(
        self, state: CycleState, pod: ClusterPod, nodes: View, statuses: NodeStatuses
    ) -> PostFilterResult:
        return (await self._find(state, pod, nodes, statuses))[0]

    async def _find(
        self, state: CycleState, pod: ClusterPod, nodes: View, statuses: NodeStatuses
    ) -> tuple[PostFilterResult, Candidate | None]:
        """The answer, and what is to be done for it."""
        reason = self._not_eligible(pod, nodes, statuses)
        if reason:
            return PostFilterResult(None, _no(reason)), None
        services = self._services
        dry_run = DryRun(
            pod=pod,
            state=state,
            nodes=nodes,
            statuses=statuses,
            filters=self._handle.filters(),
            rivals=services.nominator.rivals(pod),
            budgets=by_namespace(services.cluster.budgets.values()),
        )
        rows = statuses.having(Code.UNSCHEDULABLE)
        enough = candidates_wanted(
            int(rows.sum()),
            self._args.min_candidate_nodes_percentage,
            self._args.min_candidate_nodes_absolute,
        )
        found = await dry_run.run(rows, enough)
        try:
            candidates = await self._left_by_extenders(pod, found.candidates)
        except KoordError as err:
            return PostFilterResult(None, Status.failed(err)), None
        chosen = choose(candidates)
        if chosen is None:
            if found.candidates:
                return PostFilterResult(None, _no("no candidate node for preemption")), None
            if found.failure is not None:
                return PostFilterResult(None, found.failure), None
            return PostFilterResult("", _no(found.message())), None
        return PostFilterResult(chosen.node, victims=chosen.victims), chosen

    async def _left_by_extenders(
        self, pod: ClusterPod, candidates: Sequence[Candidate]
    ) -> Sequence[Candidate]:
        """The candidates that extenders leave, with the victims that they leave."""
        extenders = self._services.extenders
        if extenders is None or not candidates:
            return candidates
        given = {one.node: (one.victims, one.violations) for one in candidates}
        left = await extenders.preempt(pod, given)
        return [Candidate(one.node, *left[one.node]) for one in candidates if one.node in left]

    def _not_eligible(self, pod: ClusterPod, nodes: View, statuses: NodeStatuses) -> str:
        """Why the pod may not preempt others; "": it may."""
        if pod.preemption_policy == "Never":
            return "not eligible due to preemptionPolicy=Never."
        waits = "not eligible due to a terminating pod on the nominated node."
        if self._preemptions.under_way(pod.uid):
            return waits
        nominated = self._services.nominator.node_of(pod.key)
        row = None if nominated is None else nodes.row(nominated)
        if row is None:
            return ""
        status = statuses.status(row)
        if status is not None and status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
            return ""
        leaving = (one for one in nodes.pods(row) if one.deleting and preempted(one))
        return waits if any(may_preempt(pod, one) for one in leaving) else ""

    def _pod_deleted(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        """A pod that was kept from the queue goes there when its victims are leaving."""
        waits = self._preemptions.under_way(pod.uid)
        return QueueingHint.SKIP if waits else QueueingHint.QUEUE


def _no(reason: str) -> Status:
    return Status.unschedulable(f"preemption: {reason}")
