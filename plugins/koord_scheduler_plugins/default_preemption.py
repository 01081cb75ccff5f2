"""DefaultPreemption: pods leave a node so that one of higher priority fits there."""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from koord.plugin import KoordError
from koord.plugin.args import FieldError, Int32, invalid, takes_args
from koord_scheduler.plugin import (
    POD_DELETED,
    ClusterPod,
    Code,
    CycleState,
    EnqueueExtensions,
    Handle,
    HintedEvent,
    PostFilterPlugin,
    PostFilterResult,
    PreEnqueuePlugin,
    QueueingHint,
    Status,
    View,
    is_time_over,
    remaining_time,
)
from koord_scheduler.plugin.preemption import (
    ABSENT,
    BudgetsByNamespace,
    Candidate,
    Diagnosis,
    ExtensionPointError,
    LowerPriorityPods,
    NodeFilters,
    NodeStatuses,
    Preemption,
    Preemptions,
    PreemptionTrial,
    by_namespace,
    candidates_wanted,
    choose,
    find_victims,
    may_preempt,
    preempted,
)
from koord_scheduler.plugin.vector import Mask

NO_HELP = Status.unresolvable("Preemption is not helpful for scheduling")
NO_VICTIMS = Status.unresolvable("No preemption victims found for incoming pod")

_FIT = "NodeResourcesFit"
_PODS = "pods"  # the resource of which each pod takes one
_INSUFFICIENT, _TOO_MANY = "Insufficient ", "Too many pods"  # the reasons of that plugin


class DryRunResult:
    """Candidates, and why the other nodes that were tried are none."""

    def __init__(self, nodes: int) -> None:
        self.candidates: list[Candidate] = []
        self.failure: Status | None = None  # of a plugin, on the first node where one has failed
        self._numbers = np.full(nodes, ABSENT, np.int32)
        self._statuses: list[Status] = []

    @property
    def harmless(self) -> bool:
        """Whether some candidate violates no budget."""
        return any(not one.violations for one in self.candidates)

    def reject(self, rows: Mask | int, status: Status) -> None:
        """Note why nodes are no candidates."""
        self._statuses.append(status)
        self._numbers[rows] = len(self._statuses)

    def message(self) -> str:
        """Why there is no candidate, in kube-scheduler's words."""
        statuses = NodeStatuses(self._numbers, tuple(self._statuses), NO_HELP)
        return Diagnosis(nodes=len(self._numbers), node_statuses=statuses).message()


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """A pod that no node is feasible for, and the cluster in its cycle. None of it is changed.

    The same one finds the same candidates.
    """

    pod: ClusterPod
    state: CycleState  # after PreFilter
    nodes: View
    statuses: NodeStatuses  # of Filter
    filters: NodeFilters
    nominated_pods: Mapping[str, Sequence[ClusterPod]]  # by node: nominated pods that go first
    budgets: BudgetsByNamespace

    async def run(self, rows: Mask, enough: int) -> DryRunResult:
        """Try nodes one by one, with the event loop's other work in between all steps.

        rows: those that may become a candidate. They are tried from a place on that the pod's uid
        decides, so that not all pods take their victims from the same nodes. It ends with enough
        candidates, of which one at least violates no budget.
        """
        found = DryRunResult(len(self.nodes))
        promising, lower = rows.copy(), LowerPriorityPods(self.pod, self.nodes)
        await remaining_time()
        for hopeless, status in self._hopeless(lower):
            given_up = hopeless & promising
            if given_up.any():
                found.reject(given_up, status)
                promising ^= given_up
            await remaining_time()
        order = np.flatnonzero(rows)
        order = np.roll(order, -(zlib.crc32(self.pod.uid.encode()) % max(len(order), 1)))
        for row in order[promising[order]].tolist():
            self._try(row, found)
            if (len(found.candidates) >= enough and found.harmless) or is_time_over():
                break  # the candidates that there are have to do
            await remaining_time()
        return found

    def _try(self, row: int, found: DryRunResult) -> None:
        name = self.nodes.node(row).name
        try:
            nominated_pods = self.nominated_pods.get(name, ())
            trial = PreemptionTrial(
                self.filters, self.state, self.pod, self.nodes, row, nominated_pods
            )
            victims = find_victims(
                self.pod,
                self.nodes.pods(row),
                trial,
                self.budgets,
                self._lacking(row),
                lambda: self.filters.victim_groups(self.state, self.pod, self.nodes, row),
            )
        except ExtensionPointError as err:
            found.failure = found.failure or err.status
            found.reject(row, err.status)
            return
        if victims is None:
            found.reject(row, trial.status)
        elif victims[0]:
            found.candidates.append(Candidate(name, tuple(victims[0]), victims[1]))
        else:  # it fits as the node is: some plugin has changed its mind since Filter
            found.reject(row, Status.failed(f'expected at least one victim pod on node "{name}"'))

    def _hopeless(self, lower: LowerPriorityPods) -> Iterator[tuple[Mask, Status]]:
        """Nodes that need not be tried, as columns say it.

        No pod could leave them, or what NodeResourcesFit found missing is so even without those.
        """
        yield lower.count == 0, NO_VICTIMS
        for number, status in enumerate(self.statuses.statuses, 1):
            if status.plugin == _FIT and status.code is Code.UNSCHEDULABLE:
                yield from self._still_short(self.statuses.numbers == number, status, lower)

    def _still_short(
        self, mine: Mask, status: Status, lower: LowerPriorityPods
    ) -> Iterator[tuple[Mask, Status]]:
        missing = np.zeros(len(self.nodes), np.int64)  # one bit for each of the reasons
        for bit, reason in enumerate(status.reasons):
            resource = _resource_of(reason)
            if resource:
                short = lower.short_of(resource, self._wanted(resource))
                missing |= (short & mine).astype(np.int64) << bit
        for bits in np.unique(missing[missing != 0]).tolist():
            reasons = (each for bit, each in enumerate(status.reasons) if bits >> bit & 1)
            yield missing == bits, Status.unschedulable(*reasons)

    def _lacking(self, row: int) -> Mapping[str, int]:
        """Return the missing amounts of the resources that NodeResourcesFit found too small there.

        Empty for a pod with affinity, which in Kubernetes may need pods that would leave.
        """
        status = self.statuses.status(row)
        if status is None or status.plugin != _FIT or self.pod.spec.affinity:
            return {}
        return {
            resource: self._wanted(resource) - self._free(row, resource)
            for reason in status.reasons
            if (resource := _resource_of(reason))
        }

    def _wanted(self, resource: str) -> int:
        return 1 if resource == _PODS else dict(self.pod.spec.requests).get(resource, 0)

    def _free(self, row: int, resource: str) -> int:
        column = self.nodes.resources.get(resource)
        if column is None:
            return 0
        nodes = self.nodes
        return nodes.allocatable_of(row, column) - nodes.requested_of(row, column)


def _resource_of(reason: str) -> str:
    """The resource that a reason of NodeResourcesFit is about; "": none."""
    if reason == _TOO_MANY:
        return _PODS
    return reason.removeprefix(_INSUFFICIENT) if reason.startswith(_INSUFFICIENT) else ""


_PERCENTAGE, _ABSOLUTE = "minCandidateNodesPercentage", "minCandidateNodesAbsolute"


@dataclass(frozen=True, kw_only=True, slots=True)
class DefaultPreemptionArgs:
    """How many candidates are enough: the larger number counts."""

    min_candidate_nodes_percentage: Int32 = 10  # of the nodes that may become one
    min_candidate_nodes_absolute: Int32 = 100

    def validate(self) -> Iterator[FieldError]:
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
    """Nominates the pod to the node where preemption costs least, and preempts pods there.

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
            nominated_pods=services.nominator.nominated_pods(pod),
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
