"""The scheduling cycle: a node for a pod, and the pod assumed, reserved and permitted there.

Source: Kubernetes, pkg/scheduler/schedule_one.go (schedulingCycle).
"""

from dataclasses import replace
from random import Random

import numpy as np

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.util.clock import Clock
from koord.util.errors import KoordError
from koord_scheduler.cache.assumed import AssumeError, SchedulerState
from koord_scheduler.extenders.chain import Extenders
from koord_scheduler.framework.calls import PointFailed
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.debugging import Debugging
from koord_scheduler.framework.nodes.scoring import ScoreTable
from koord_scheduler.framework.nodes.search import Found
from koord_scheduler.framework.nominator import Nominator
from koord_scheduler.framework.status import Code, Status
from koord_scheduler.scheduling.attempt import Attempt, Failure
from koord_scheduler.scheduling.diagnosisdump import DiagnosisDump
from koord_scheduler.scheduling.metrics import SchedulingMetrics

MEASURED = 0.1  # share of the cycles in which the time of each plugin is recorded


class SchedulingCycle:
    """Runs scheduling cycles, one at a time."""

    def __init__(
        self,
        state: SchedulerState,
        nominator: Nominator,
        metrics: SchedulingMetrics,
        clock: Clock,
        draw: Random,
        *,
        resizes: bool = False,
        extenders: Extenders | None = None,
        debugging: Debugging | None = None,
        dump: DiagnosisDump | None = None,
    ) -> None:
        """draw chooses among the nodes that are equally good. resizes: plugins may resize pods.

        extenders: services that are asked as well; None: there are none. dump: learns of each
        failed search.
        """
        self._dump = dump
        self._debugging = debugging or Debugging()
        self._resizes = resizes
        self._state = state
        self._nominator = nominator
        self._metrics = metrics
        self._clock = clock
        self._draw = draw
        self._extenders = extenders

    async def run(self, attempt: Attempt) -> Failure | None:
        """Choose a node and reserve it, or return why that is not possible.

        In the end the pod is assumed to be on attempt.node, or everything is as it was before.
        """
        attempt.state.measured = self._draw.random() < MEASURED
        with attempt.budget:
            failure = await self._run(attempt)
        if failure is None or failure.nominated_node or not attempt.budget.is_over:
            return failure
        return replace(failure, cut=True)

    async def _run(self, attempt: Attempt) -> Failure | None:
        began = self._clock.monotonic()
        found = await self._find(attempt)
        if isinstance(found, str):
            self._metrics.algorithm(self._clock.monotonic() - began)
            return self._reserve(attempt, found)
        if isinstance(found, Found):
            return await self._post_filter(attempt, found)
        return Failure(status=found)

    def roll_back(self, attempt: Attempt) -> None:
        """Unreserve an assumed pod in all plugins, and take it off its node."""
        attempt.profile.binding.unreserve(attempt.state, attempt.pod, attempt.node)
        self._state.forget(attempt.uid)

    async def _find(self, attempt: Attempt) -> str | Found | Status:
        """The best node by name; else why no node is feasible, or an error."""
        profile, state, nodes = attempt.profile, attempt.state, self._state.view()
        found = profile.search.search(state, attempt.pod, nodes)
        if found.status.ok and self._extenders is not None:
            found = await self._left_by_extenders(self._extenders, attempt, found)
        self._debugging.filtered(found.subject.pod, found.subject.nodes, found.statuses)
        if not found.status.ok:
            return found.status if found.status.code is Code.ERROR else found
        if np.count_nonzero(found.feasible) == 1:
            return nodes.node(int(found.feasible.argmax())).name
        seen = found.subject
        try:
            table = profile.scoring.scores(state, seen.pod, seen.nodes, found.feasible, found.kept)
        except PointFailed as err:
            return err.status
        if self._extenders is not None:
            with attempt.budget.paused():
                await self._add_priorities(self._extenders, attempt.pod, nodes, table)
        self._debugging.scored(seen.pod, seen.nodes, table)
        return nodes.node(table.choose(self._draw)).name

    async def _left_by_extenders(
        self, extenders: Extenders, attempt: Attempt, found: Found
    ) -> Found:
        """What extenders leave of the feasible nodes.

        Where they leave nothing of a node that was nominated or preferred, all nodes have a chance.
        """
        pod, nodes = attempt.pod, found.subject.nodes
        if not extenders.filters(pod):
            return found
        with attempt.budget.paused():
            left = await self._filtered(extenders, pod, found)
        if not left.status.rejected or np.count_nonzero(found.feasible) > 1:
            return left
        attempt.state = CycleState()
        again = attempt.profile.search.search(attempt.state, pod, nodes, everywhere=True)
        if not again.status.ok:
            return again
        with attempt.budget.paused():
            return await self._filtered(extenders, pod, again)

    async def _filtered(self, extenders: Extenders, pod: ClusterPod, found: Found) -> Found:
        nodes = found.subject.nodes
        names = [nodes.node(row).name for row in np.flatnonzero(found.feasible).tolist()]
        try:
            return found.without((await extenders.filter(pod, names)).rejections)
        except KoordError as err:
            return replace(found, status=Status.failed(err))

    async def _add_priorities(
        self, extenders: Extenders, pod: ClusterPod, nodes: View, table: ScoreTable
    ) -> None:
        """Add what extenders give to the totals."""
        names = [nodes.node(row).name for row in table.rows.tolist()]
        extra = await extenders.prioritize(pod, names)
        if extra:
            table.totals[:] += np.array([extra.get(name, 0) for name in names], np.int64)

    async def _post_filter(self, attempt: Attempt, found: Found) -> Failure:
        """Have plugins make room, where Filter has said why there is none."""
        diagnosis, statuses = found.diagnosis, found.diagnosis.node_statuses
        if statuses is None or not attempt.profile.binding.has_post_filters:
            if self._dump is not None:
                self._dump.note(attempt, found, None)
            return Failure.diagnosed(found.status, diagnosis)
        result = await attempt.profile.binding.post_filter(
            attempt.state, attempt.pod, self._state.view(), statuses
        )
        if self._dump is not None:
            self._dump.note(attempt, found, result)
        diagnosis.post_filter_message = result.status.message
        return Failure.diagnosed(found.status, diagnosis, result.nominated_node)

    def _reserve(self, attempt: Attempt, node: str) -> Failure | None:
        """Assume the pod to be on the node, call Reserve and Permit."""
        pod = attempt.pod
        if self._resizes:
            resized = attempt.profile.binding.resize(attempt.state, pod, node)
            if isinstance(resized, Status):
                return Failure.on_node(resized)
            pod = resized
        try:
            attempt.pod = self._state.assume(pod, node)
        except AssumeError as err:
            return Failure(status=Status.failed(err))
        attempt.node = node
        self._nominator.forget(attempt.pod.key)
        binding = attempt.profile.binding
        status = binding.reserve(attempt.state, attempt.pod, node)
        if status.ok:
            status = binding.permit(attempt.state, attempt.pod, node)
        if status.ok or status.code is Code.WAIT:
            return None
        self.roll_back(attempt)
        return Failure.on_node(status)
