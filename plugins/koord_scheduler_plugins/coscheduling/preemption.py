"""Gang preemption: which pods leave so that all members of a gang have nodes.

Nobody is evicted unless all of the members have nodes without the victims: they are planned on
what-ifs, and the final choice is tried once more as a whole. Source: Koordinator,
pkg/scheduler/plugins/coscheduling/core (preemption).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from koord.api.elasticquota import is_preemptible
from koord.api.reservation import DISABLE_PREEMPTIBLE
from koord_scheduler.plugin import (
    ClusterPod,
    Code,
    Handle,
    PostFilterResult,
    Status,
    View,
    is_time_over,
    remaining_time,
)
from koord_scheduler.plugin.koordinator import (
    FeasibleNodes,
    GroupPlan,
    HypotheticalCluster,
    NodeOrder,
    NoGroupPlan,
)
from koord_scheduler.plugin.preemption import (
    BudgetsByNamespace,
    Candidate,
    ExtensionPointError,
    NodeStatuses,
    Preemption,
    Preemptions,
    by_namespace,
    not_reprieved,
    preempted,
    violated_budgets,
)
from koord_scheduler.plugin.vector import Mask, resource_requests_of
from koord_scheduler_plugins.coscheduling.gangs import Gangs, gang_id
from koord_scheduler_plugins.coscheduling.rounds import PLUGIN, Members, Rounds

NO_PENDING = "no pending pods"
NEVER = "not eligible due to preemptionPolicy=Never."
TERMINATING = "not eligible due to terminating pod on the nominated node."
NO_VICTIMS = "no potential victims"
NO_HELP = "Preemption is not helpful for scheduling"

ENOUGH = 100  # nodes whose pods may leave in a first look; then four times as many, and so on
WIDER = 4

Planner = Callable[[Sequence[ClusterPod], View, NodeOrder | None], GroupPlan | NoGroupPlan | object]
"""Plans members on the nodes of a view; anything but a GroupPlan: they have none."""
Replay = Callable[[Sequence[ClusterPod], View, Mapping[str, str]], bool]
"""Whether members fit one after the other on the nodes that they are planned on."""


@dataclass(frozen=True, slots=True)
class GangOnNodes:
    """Another gang group whose members may be victims."""

    pods: tuple[ClusterPod, ...]  # those on nodes
    spare: Mapping[str, int]  # by gang: members above its minimum


@dataclass(frozen=True, slots=True)
class GangVictims:
    """Victims whose eviction makes room for a gang."""

    nodes: Mapping[str, str]  # by namespace/name of its members
    victims: tuple[ClusterPod, ...]  # the most important first; those that leave already are none
    violations: int  # victims whose eviction a PodDisruptionBudget does not allow


def may_be_victim(pod: ClusterPod, priority: int) -> bool:
    """Whether a pod may leave for one of this priority."""
    if pod.finished or pod.deleting or (pod.priority or 0) >= priority:
        return False
    return pod.labels.get(DISABLE_PREEMPTIBLE) != "true" and is_preemptible(pod.labels)


def not_eligible(
    trigger: ClusterPod,
    pending: Sequence[ClusterPod],
    nominated: Mapping[str, str],
    nodes: View,
    exempt: bool,
) -> str:
    """Return why members may not preempt others now; "": they may.

    nominated: nodes by namespace/name. exempt: the trigger's node is of no use whoever leaves it.
    """
    if not pending:
        return NO_PENDING
    if trigger.preemption_policy == "Never":
        return NEVER
    for pod in pending:
        row = nodes.row(nominated.get(pod.key, ""))
        if row is None or (exempt and pod.key == trigger.key):
            continue
        for other in nodes.pods(row):
            lower = (other.priority or 0) < (trigger.priority or 0)
            if lower and other.deleting and preempted(other):
                return TERMINATING
    return ""


def ranks_of(pods: Iterable[ClusterPod]) -> dict[int, int]:
    """The rank of each priority among those of pods: 0 for the lowest one."""
    found = sorted({pod.priority or 0 for pod in pods})
    return {priority: rank for rank, priority in enumerate(found)}


def cost_of(pods: Iterable[ClusterPod], ranks: Mapping[int, int], job: Callable[..., str]) -> int:
    """Return the cost of evicting pods of a node: the rank of each job's priority."""
    jobs: dict[str, int] = {}
    for pod in pods:
        jobs.setdefault(job(pod), ranks[pod.priority or 0])
    return sum(jobs.values())


@dataclass(kw_only=True)
class GangPreemption:
    """Members that have no nodes, and the cluster in their cycle. None of it is changed."""

    members: Sequence[ClusterPod]
    nodes: View
    rows: Mask  # nodes on which the departure of others may help; shape (nodes,)
    plan: Planner
    replay: Replay
    job: Callable[[ClusterPod], str]  # names the gang of a pod, or the pod
    gang_group: Callable[[ClusterPod], GangOnNodes | None]  # None: it has none, or is one of ours
    own: frozenset[str]  # namespace/name of all members, also of those that have nodes
    budgets: BudgetsByNamespace
    _leaving: dict[str, ClusterPod] = field(default_factory=dict)  # by namespace/name

    async def find(self) -> GangVictims | str:
        """Return nodes for all members and the victims, or why there are none, for people.

        First members of other gangs leave only as far as these keep their minimum; if that does
        not suffice, whole gang groups may leave.

        Raises:
            ExtensionPointError: a plugin has failed.
        """
        priority = min(pod.priority or 0 for pod in self.members)
        lower = self.nodes.placed.priority < priority
        counts = self.nodes.pods_per_node(lower)
        rows = np.flatnonzero(self.rows & (counts > 0))
        rows = rows[np.argsort(counts[rows], kind="stable")]
        some = set[int]()  # rows that somebody may leave
        for whole in (False, True):
            count = ENOUGH
            while len(rows):
                await remaining_time()
                looked_at = rows[:count].tolist()
                self._note_leaving(looked_at, priority)
                by_row = self._potential(looked_at, priority, whole=whole)
                some |= by_row.keys()
                if by_row or self._leaving:
                    found = await self._on(by_row)
                    if found is not None:
                        return self._whole(found) if whole else found
                if count >= len(rows) or is_time_over():
                    break
                count *= WIDER
        return self._no_help(len(some))

    def _no_help(self, with_victims: int) -> str:
        """Say of how many nodes the departure of others does not help, in Koordinator's words."""
        without = int(np.count_nonzero(self.rows)) - with_victims
        reasons = {NO_HELP: len(self.nodes) - without, NO_VICTIMS: without}
        counted = sorted(f"{count} {reason}" for reason, count in reasons.items() if count)
        return f"0/{len(self.nodes)} nodes are available: {', '.join(counted)}."

    def _note_leaving(self, rows: Sequence[int], priority: int) -> None:
        """Take the pods off their nodes that a pod of this priority need not have deleted."""
        for row in rows:
            for pod in self.nodes.pods(row):
                there = pod.node == self.nodes.node(row).name and not pod.finished
                if there and pod.deleting and (pod.priority or 0) < priority:
                    self._leaving[pod.key] = pod

    def _potential(
        self, rows: Sequence[int], priority: int, *, whole: bool
    ) -> dict[int, list[ClusterPod]]:
        """The pods that may leave, by row.

        whole: also all members of a gang group, if each of them may leave.
        """
        spare: dict[str, int] = {}
        groups: dict[str, bool] = {}  # whether all of a group may leave, by job
        found: dict[int, list[ClusterPod]] = {}
        pods = [
            (row, pod)
            for row in rows
            for pod in self.nodes.pods(row)
            if pod.key not in self.own
            and pod.node == self.nodes.node(row).name
            and may_be_victim(pod, priority)
        ]
        pods.sort(key=lambda one: _importance(one[1]), reverse=True)
        for row, pod in pods:
            group, job = self.gang_group(pod), self.job(pod)
            if group is not None:
                if whole and job not in groups:
                    groups[job] = all(may_be_victim(one, priority) for one in group.pods)
                if not groups.get(job, False):
                    left = spare.setdefault(job, group.spare.get(job, 0))
                    if left <= 0:
                        continue
                    spare[job] = left - 1
            found.setdefault(row, []).append(pod)
        return found

    async def _on(self, by_row: Mapping[int, list[ClusterPod]]) -> GangVictims | None:
        """Place the members without these pods, and have return who need not leave."""
        all_pods = [pod for pods in by_row.values() for pod in pods]
        protected = violated_budgets(sorted(all_pods, key=_importance), self.budgets)
        cluster = HypotheticalCluster(self.nodes)
        for pod in (*all_pods, *self._leaving.values()):
            cluster.remove(pod.key, pod.node)
        await remaining_time()
        view = cluster.view()
        order = _CheapestFirst(self, by_row, protected, view)
        plan = self.plan(self.members, view, order.order)
        if not isinstance(plan, GroupPlan):
            return None
        await remaining_time()
        victims = await self._victims(plan.nodes, all_pods, protected)
        if victims is None:
            return None
        victims.sort(key=_importance)
        violations = sum(pod.key in protected for pod in victims)
        return GangVictims(plan.nodes, tuple(victims), violations)

    async def _victims(
        self, planned: Mapping[str, str], pods: Sequence[ClusterPod], protected: set[str]
    ) -> list[ClusterPod] | None:
        """Return the victims that the plan needs; None: time was over before that was known."""

        def first_back(some: Iterable[ClusterPod]) -> list[ClusterPod]:
            return sorted(some, key=lambda one: (one.key not in protected, *_importance(one)))

        victims: list[ClusterPod] = []
        for node in dict.fromkeys(planned.values()):
            there = [pod for pod in self.members if planned[pod.key] == node]
            mine = [pod for pod in pods if pod.node == node]
            trial = _GroupTrial(self, there, planned, mine)
            victims += not_reprieved(first_back(mine), trial)
            await remaining_time()
        if _GroupTrial(self, self.members, planned, victims).fits():
            return victims
        # What one member needs of another node, as for a quota or spread: try them all at once.
        trial = _GroupTrial(self, self.members, planned, pods)
        found = not_reprieved(first_back(pods), trial)
        if is_time_over() or not trial.fits():
            return None
        return found

    @property
    def leaving(self) -> Iterable[ClusterPod]:
        """Pods that are being deleted, of which none comes back."""
        return self._leaving.values()

    def _whole(self, found: GangVictims) -> GangVictims:
        """Evict gang groups whole of which more leave than they can spare."""
        victims = {pod.key: pod for pod in found.victims}
        for pod in found.victims:
            group = self.gang_group(pod)
            if group is None:
                continue
            leaving: dict[str, int] = {}
            for one in group.pods:
                if one.key in victims:
                    leaving[self.job(one)] = leaving.get(self.job(one), 0) + 1
            if any(count > group.spare.get(job, 0) for job, count in leaving.items()):
                victims.update((one.key, one) for one in group.pods)
        pods = sorted(victims.values(), key=_importance)
        violations = len(violated_budgets(pods, self.budgets))
        return GangVictims(found.nodes, tuple(pods), violations)


class _GroupTrial:
    """Members on their planned nodes, while other pods leave and come back."""

    def __init__(
        self,
        of: GangPreemption,
        members: Sequence[ClusterPod],
        planned: Mapping[str, str],
        gone: Sequence[ClusterPod],
    ) -> None:
        self._of = of
        self._members = members
        self._planned = planned
        self._cluster = HypotheticalCluster(of.nodes)
        self.remove([*gone, *of.leaving])

    def remove(self, pods: Sequence[ClusterPod]) -> None:
        for pod in pods:
            self._cluster.remove(pod.key, pod.node)

    def add(self, pods: Sequence[ClusterPod]) -> None:
        for pod in pods:
            self._cluster.add(pod, pod.node)

    def fits(self) -> bool:
        return self._of.replay(self._members, self._cluster.view(), self._planned)


class _CheapestFirst:
    """The order of nodes for members: where nobody need leave, then where it costs least."""

    def __init__(
        self,
        of: GangPreemption,
        by_row: Mapping[int, list[ClusterPod]],
        protected: set[str],
        without: View,
    ) -> None:
        """without: the nodes without all the pods of by_row."""
        self._nodes, self._without = of.nodes, without
        ranks = ranks_of(pod for pods in by_row.values() for pod in pods)
        count = len(of.nodes)
        self._violations = np.zeros(count, np.int64)
        self._costs = np.zeros(count, np.int64)
        self._victims = np.zeros(count, np.int64)
        for row, pods in by_row.items():
            self._violations[row] = sum(pod.key in protected for pod in pods)
            self._costs[row] = cost_of(pods, ranks, of.job)
            self._victims[row] = len(pods)
        names = [of.nodes.node(row).name for row in range(count)]
        self._names = np.empty(count, np.int64)
        self._names[sorted(range(count), key=names.__getitem__)] = np.arange(count)

    def order(self, pod: ClusterPod, feasible: FeasibleNodes) -> Iterator[str]:
        """See NodeOrder."""
        rows = np.flatnonzero(feasible.mask)
        needs = self._someone_must_leave(pod, feasible.nodes)[rows]
        order = np.lexsort(
            (
                self._names[rows],
                self._victims[rows] * needs,
                self._costs[rows] * needs,
                self._violations[rows] * needs,
                needs,
            )
        )
        for row in rows[order].tolist():
            yield feasible.nodes.node(row).name

    def _someone_must_leave(self, pod: ClusterPod, now: View) -> NDArray[np.bool_]:
        """Nodes without room for the pod, the members before it, and all that are there."""
        found = np.zeros(len(now), np.bool_)
        for name, amount in resource_requests_of(pod.spec, lambda _: False):
            column = self._nodes.resources.get(name)
            if column is None or amount <= 0:
                continue
            before = now.requested[:, column] - self._without.requested[:, column]
            free = self._nodes.allocatable[:, column] - self._nodes.requested[:, column]
            found |= free - before < amount
        return found


def _importance(pod: ClusterPod) -> tuple[int, float, str]:
    """Sorts the most important pod first: highest priority, then earliest start."""
    return -(pod.priority or 0), float("inf") if pod.started is None else pod.started, pod.key


SUCCESS_PLUGIN, FAILURE_PLUGIN = "JobPreemptionSuccessPlugin", "JobPreemptionFailurePlugin"
"""In their names members are rejected that wait; that says what becomes of their nominations."""


class GangPreemptor:
    """Evicts pods of lower priority for gangs, and for pods without one. One event loop."""

    def __init__(self, handle: Handle, gangs: Gangs, rounds: Rounds) -> None:
        self._handle = handle
        self._services = handle.services
        self._gangs = gangs
        self._rounds = rounds
        self._preemptions = Preemptions.of(handle.services)

    def gate(self, pod: ClusterPod) -> Status | None:
        """Keep a preemptor from the queue until its victims are leaving."""
        if self._preemptions.under_way(pod.uid):
            return Status.unresolvable("waiting for the preemption for this pod to be finished")
        return None

    def may_help(self, pod: ClusterPod) -> bool:
        """Whether a pod that was deleted may have been in the way of a preemptor."""
        nominated = self._services.nominator.node_of(pod.key) is not None
        return nominated and not self._preemptions.under_way(pod.uid)

    async def run(
        self, pod: ClusterPod, nodes: View, statuses: NodeStatuses, *, dry_run: bool = False
    ) -> PostFilterResult | Status:
        """Find nodes and victims for a pod and the members that are placed with it.

        dry_run: nothing is done, and nobody is nominated.
        """
        members = self._rounds.members_of(pod)
        if isinstance(members, Status):
            return Status.unschedulable(f"preemption: {members.message}")
        reason = self._not_eligible(pod, members, nodes, statuses)
        if reason:
            return Status.unschedulable(f"preemption: {reason}")
        if not dry_run:
            self._preemptions.metrics.attempts.inc()
        try:
            found = await self._work(members, nodes, statuses).find()
        except ExtensionPointError as err:
            return err.status
        if isinstance(found, str):
            if is_time_over():
                text = "preemption: the search for victims was ended for time"
                return Status.unschedulable(text)
            if not dry_run:
                self._drop(pod, members)
            return PostFilterResult("", Status.unschedulable(f"preemption: {found}"))
        node = found.nodes[pod.key]
        count = len(members.pending) + members.waiting
        text = f"preempt success, alreadyWaitingForBound: {members.waiting}/{count}"
        if not dry_run:
            self._carry_out(pod, members, found, text)
        return PostFilterResult(node, Status(Code.SUCCESS, (text,)), found.victims)

    def _not_eligible(
        self, pod: ClusterPod, members: Members, nodes: View, statuses: NodeStatuses
    ) -> str:
        if self._preemptions.under_way(pod.uid):
            return TERMINATING
        nominator = self._services.nominator
        nominated = {
            one.key: node
            for one in members.pending
            if (node := nominator.node_of(one.key)) is not None
        }
        row = nodes.row(nominated.get(pod.key, ""))
        status = None if row is None or len(members.pending) > 1 else statuses.status(row)
        exempt = status is not None and status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
        return not_eligible(pod, members.pending, nominated, nodes, exempt)

    def _work(self, members: Members, nodes: View, statuses: NodeStatuses) -> GangPreemption:
        def plan(
            pods: Sequence[ClusterPod], view: View, order: NodeOrder | None
        ) -> GroupPlan | NoGroupPlan | Status:
            return self._rounds.try_plan(members, view, order)

        return GangPreemption(
            members=members.needed,
            nodes=nodes,
            rows=_rows(members, nodes, statuses),
            plan=plan,
            replay=self._rounds.holds,
            job=_job,
            gang_group=self._group_on_nodes,
            own=members.own,
            budgets=by_namespace(self._services.cluster.budgets.values()),
        )

    def _group_on_nodes(self, pod: ClusterPod) -> GangOnNodes | None:
        """The gang group of a possible victim; None: it may leave like a single pod."""
        gang = self._rounds.gang(pod)
        if gang is None or gang.spec is None:
            return None
        group = [one for one in self._gangs.group(gang).values() if one is not None]
        pods = tuple(one for one in self._gangs.pods(group) if one.node and not one.finished)
        spare = {one.id: one.placed - one.spec.min_members for one in group if one.spec is not None}
        return GangOnNodes(pods, spare)

    def _carry_out(self, pod: ClusterPod, members: Members, found: GangVictims, text: str) -> None:
        self._rounds.reject_waiting(members.gangs, text, SUCCESS_PLUGIN)
        chosen = Candidate(found.nodes[pod.key], found.victims, found.violations)
        others = tuple(
            (one, found.nodes[one.key])
            for one in members.pending
            if one.key != pod.key and one.key in found.nodes
        )
        self._preemptions.begin(Preemption(self._handle.profile, PLUGIN, pod, chosen, others))

    def _drop(self, pod: ClusterPod, members: Members) -> None:
        """Nothing helps: members keep no node that is not of use for all of them."""
        if all(one.strict for one in members.gangs):
            text = "preemption is not helpful for the members that have no nodes"
            self._rounds.reject_waiting(members.gangs, text, FAILURE_PLUGIN)
        self._preemptions.drop_nominations(one for one in members.pending if one.key != pod.key)


def _job(pod: ClusterPod) -> str:
    return gang_id(pod) or pod.key


def _rows(members: Members, nodes: View, statuses: NodeStatuses) -> Mask:
    """Nodes on which it may help if pods leave."""
    everywhere = np.ones(len(nodes), np.bool_)
    if members.alone:
        return statuses.having(Code.UNSCHEDULABLE)
    failure = members.failure
    if failure is None:
        return everywhere
    if failure.statuses is None:  # of no node: PreFilter has rejected a member
        helps = failure.status.code is Code.UNSCHEDULABLE
        return everywhere if helps else ~everywhere
    if len({id(pod.spec) for pod in members.needed}) > 1:
        return everywhere
    return failure.statuses.having(Code.UNSCHEDULABLE) | failure.statuses.feasible
