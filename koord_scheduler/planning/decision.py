"""Where a pod would go now: the search and the scores of a cycle, which change nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord_scheduler.framework.binding import PodBinding
from koord_scheduler.framework.calls import PointFailed
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.nodes.scoring import NodeScoring, ScoreTable
from koord_scheduler.framework.nodes.search import Found, NodeSearch
from koord_scheduler.framework.results import PostFilterResult
from koord_scheduler.framework.status import SUCCESS, Status
from koord_scheduler.planning.blockers import Blockers, blockers_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What a cycle would decide about a pod."""

    pod: ClusterPod
    profile: str
    nodes: View
    found: Found
    table: ScoreTable | None  # None: no node is feasible, or only one, or a plugin failed
    status: Status  # Success: there is a best node; a rejection; Error: a plugin failed
    state: CycleState

    @property
    def best(self) -> Sequence[int]:
        """Rows of the nodes with the highest total, by name; one of them is chosen."""
        if not self.status.ok:
            return ()
        if self.table is None:
            rows = np.flatnonzero(self.found.feasible)
        else:
            rows = self.table.rows[self.table.totals == self.table.totals.max()]
        return sorted(rows.tolist(), key=lambda row: self.nodes.node(row).name)

    @property
    def message(self) -> str:
        """As in the event FailedScheduling; "" when there is a node."""
        if self.status.rejected and self.found.diagnosis.node_statuses is not None:
            return self.found.diagnosis.message()  # with what PostFilter has said since
        return "" if self.status.ok else self.status.message

    def choose(self, draw: Random | None = None) -> str | None:
        """The name of the node that is chosen; without draw the first one by name; None: none."""
        best = self.best
        if not best:
            return None
        return self.nodes.node(best[0] if draw is None else draw.choice(best)).name


class Decider:
    """Decides by the plugins of one profile."""

    def __init__(
        self, profile: str, search: NodeSearch, scoring: NodeScoring, binding: PodBinding
    ) -> None:
        self.profile = profile
        self._binding = binding
        self._search = search
        self._scoring = scoring

    def decide(self, pod: ClusterPod, nodes: View) -> Decision:
        """Return where a pod would go. Raises nothing that a plugin raises."""
        state = CycleState()
        found = self._search.search(state, pod, nodes)
        table, status = None, found.status
        if status.ok and np.count_nonzero(found.feasible) > 1:
            try:
                seen = found.subject
                table = self._scoring.scores(state, seen.pod, seen.nodes, found.feasible)
            except PointFailed as err:
                status = err.status
        return Decision(
            pod=pod,
            profile=self.profile,
            nodes=nodes,
            found=found,
            table=table,
            status=SUCCESS if status.ok else status,
            state=state,
        )

    async def preemption(self, decision: Decision) -> PostFilterResult | None:
        """What PostFilter would do for a pod that no node is feasible for; nothing of it is done.

        None: there is a node, or PostFilter is not called, or no plugin says what it would do.
        """
        statuses = decision.found.diagnosis.node_statuses
        if not decision.status.rejected or statuses is None or not self._binding.has_post_filters:
            return None
        result = await self._binding.post_filter_dry_run(
            decision.state, decision.pod, decision.nodes, statuses
        )
        decision.found.diagnosis.post_filter_message = result.status.message
        return result

    def blockers(self, decision: Decision) -> Blockers:
        """Which plugins reject nodes, each asked about all of them; see blockers_of."""
        found, state = decision.found, decision.state
        if found.statuses is None:  # Filter was not reached: the decision says why
            return Blockers()
        pod, nodes = found.subject.pod, found.subject.nodes
        try:
            return blockers_of(self._search.verdicts(state, pod, nodes), pod, nodes)
        except PointFailed:
            return Blockers()  # it is logged
