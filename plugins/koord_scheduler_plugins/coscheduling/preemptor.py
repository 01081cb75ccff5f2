"""Gang preemption in PostFilter: who may preempt, and what is done with what was found."""

from collections.abc import Sequence

import numpy as np

from koord_scheduler.plugin import (
    ClusterPod,
    Code,
    Handle,
    PostFilterResult,
    Status,
    View,
    is_time_over,
)
from koord_scheduler.plugin.koordinator import GroupPlan, NodeOrder, NoGroupPlan
from koord_scheduler.plugin.preemption import (
    Candidate,
    ExtensionPointError,
    NodeStatuses,
    Preemption,
    Preemptions,
    by_namespace,
)
from koord_scheduler.plugin.vector import Mask
from koord_scheduler_plugins.coscheduling.gangs import Gangs, gang_id
from koord_scheduler_plugins.coscheduling.preemption import (
    TERMINATING,
    GangOnNodes,
    GangPreemption,
    GangVictims,
    not_eligible,
)
from koord_scheduler_plugins.coscheduling.rounds import PLUGIN, Members, Rounds

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
