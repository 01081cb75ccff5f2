"""The scheduling cycle and the binding cycle of one pod, and their debug output."""

import asyncio
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any

import numpy as np

from koord.cluster import kinds
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.kube.client import PODS, ApiClient
from koord.kube.errors import TRANSIENT_ERRORS, KubeError
from koord.kube.events import EventType
from koord.util.clock import Clock
from koord.util.errors import KoordError
from koord.util.logs import LimitedLog, get_logger
from koord.util.stop import Stop
from koord.util.timebudget import Backoff
from koord_scheduler.cache import AssumeError, SchedulerCache
from koord_scheduler.extenders import Extenders
from koord_scheduler.framework.calls import ExtensionPointError
from koord_scheduler.framework.interfaces import pod_changes
from koord_scheduler.framework.nodes.filtering import ScoreTable
from koord_scheduler.framework.nodes.search import SearchResult
from koord_scheduler.framework.nominator import Nominator, WaitingPods
from koord_scheduler.framework.status import (
    FEASIBLE,
    SUCCESS,
    Code,
    CycleState,
    NodeStatuses,
    PostFilterResult,
    Status,
)
from koord_scheduler.queue import SchedulingQueue
from koord_scheduler.scheduling.failures import Attempt, Failure, PodEvents, PodStatuses
from koord_scheduler.scheduling.metrics import SCHEDULED, SchedulingMetrics

MAX_NODES = 10  # that a line names

debug_log = get_logger("koord_scheduler.debug")


class Debugging:
    """The debug logs that are on; they can be changed at any time."""

    def __init__(
        self,
        *,
        scores: int = 0,
        filters: bool = False,
        diagnosis: bool = False,
        diagnosis_blocking: bool = False,
    ) -> None:
        self.scores = scores  # so many nodes with the highest totals; 0: none
        self.filters = filters
        self.diagnosis = diagnosis  # of pods that found no node
        self.diagnosis_blocking = diagnosis_blocking  # before the next cycle, and none dropped

    def scored(self, pod: ClusterPod, nodes: View, table: ScoreTable) -> None:
        """Log the highest totals of a cycle, with the part of each plugin."""
        if self.scores:
            text = "\n".join(score_lines(pod, nodes, table, self.scores))
            debug_log.info("scores.table", pod=pod.key, table=text)

    def filtered(self, pod: ClusterPod, nodes: View, statuses: NodeStatuses | None) -> None:
        """Log what plugins have rejected, a line for each reason."""
        if not self.filters or statuses is None:
            return
        for number, status in enumerate(statuses.statuses, FEASIBLE + 1):
            rows = np.flatnonzero(statuses.numbers == number)
            if len(rows):
                named = [nodes.node(int(row)).name for row in rows[:MAX_NODES]]
                debug_log.info(
                    "nodes.rejected",
                    pod=pod.key,
                    plugin=status.plugin,
                    reason=status.message,
                    nodes=len(rows),
                    first=named,
                )


def score_lines(pod: ClusterPod, nodes: View, table: ScoreTable, most: int) -> Iterator[str]:
    """The lines of a Markdown table of the nodes with the highest totals, the best first.

    The scores of plugins are normalized, times their weights.
    """
    columns = table.columns
    yield f"| {' | '.join(['#', 'Pod', 'Node', 'Score', *columns])} |"
    yield f"| {' | '.join(['---'] * (4 + len(columns)))} |"
    best = np.argsort(-table.totals, kind="stable")[:most]
    for place, at in enumerate(best.tolist()):
        node = nodes.node(int(table.rows[at])).name
        scores = [str(int(column[at])) for column in columns.values()]
        cells = [str(place), pod.key, node, str(int(table.totals[at])), *scores]
        yield f"| {' | '.join(cells)} |"


Json = dict[str, Any]

QUEUE = 1000  # diagnoses that wait to be written


class DiagnosisDump:
    """Dumps a diagnosis of each cycle that ends in PostFilter, while debugging says so."""

    def __init__(self, debugging: Debugging, clock: Clock, *, most: int = QUEUE) -> None:
        """most: diagnoses that wait; further ones are dropped."""
        self._debugging = debugging
        self._clock = clock
        self._most = most
        self._waiting: deque[Json] = deque()
        self._changed = asyncio.Event()
        self._drops = LimitedLog(debug_log, clock)

    def note(self, attempt: Attempt, found: SearchResult, result: PostFilterResult | None) -> None:
        """Dump the diagnosis of an attempt. result: of PostFilter; None: it was not called."""
        if not self._debugging.diagnosis:
            return
        diagnosis = diagnosis_report(attempt, found, result, self._clock.wall())
        if self._debugging.diagnosis_blocking:
            _dump(diagnosis)
        elif len(self._waiting) < self._most:
            self._waiting.append(diagnosis)
            self._changed.set()
        else:
            self._drops.warning("diagnosis.dropped", pod=attempt.pod.key, waiting=self._most)

    async def run(self, stop: Stop) -> None:
        """Write those that wait, one at a time with other work in between, until stop."""
        await stop.bound(self._write())

    async def _write(self) -> None:
        while True:
            while self._waiting:
                _dump(self._waiting.popleft())
                await asyncio.sleep(0)
            self._changed.clear()
            await self._changed.wait()


def diagnosis_report(
    attempt: Attempt, found: SearchResult, result: PostFilterResult | None, now: float
) -> Json:
    """Return a diagnosis as JSON values. now: Unix seconds."""
    nominated = None if result is None else result.nominated_node
    preemption = None
    if result is not None:
        preemption = {
            "status": result.status.code.title,
            "message": result.status.message,
            "nominatedNode": nominated or "",
        }
    return {
        "timestamp": datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "questionedKey": attempt.pod.key,
        "nominatedNode": attempt.pod.nominated_node,
        "preFilterMessage": found.diagnosis.pre_filter_message,
        "isRootCausePod": True,
        "scheduleDiagnosis": {
            "alreadyWaitForBound": 0,
            "nodeFailedDetails": _failed_nodes(found),
        },
        "preemptionDiagnosis": {"dryRunFilterDiagnosis": None, "otherDiagnosis": preemption},
    }


def _failed_nodes(found: SearchResult) -> list[Json]:
    """The nodes that were rejected, together by plugin and reason, most nodes first."""
    statuses, nodes = found.diagnosis.node_statuses, found.cycle.nodes
    if statuses is None:
        return []
    details = []
    for number in np.unique(statuses.numbers).tolist():
        status = statuses.of_number(number)
        if number == FEASIBLE or status is None:
            continue
        rows = np.flatnonzero(statuses.numbers == number).tolist()
        details.append(
            {
                "failedNodes": sorted(nodes.node(row).name for row in rows),
                "reason": status.message,
                "failedPlugin": status.plugin,
                "preemptMightHelp": status.code is not Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
            }
        )
    return sorted(details, key=lambda one: (-len(one["failedNodes"]), one["reason"]))


def _dump(diagnosis: Json) -> None:
    debug_log.info(
        "diagnosis.dumped", pod=diagnosis["questionedKey"], diagnosis=json.dumps(diagnosis)
    )


MEASURED = 0.1  # share of the cycles in which the time of each plugin is recorded


class SchedulingCycle:
    """Runs scheduling cycles, one at a time."""

    def __init__(
        self,
        state: SchedulerCache,
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
        # With a nomination it is no cut, though the time is over: victims are being evicted.
        if failure is None or failure.nominated_node or not attempt.budget.is_over:
            return failure
        return replace(failure, cut=True)

    async def _run(self, attempt: Attempt) -> Failure | None:
        began = self._clock.monotonic()
        found = await self._find(attempt)
        if isinstance(found, str):
            self._metrics.algorithm(self._clock.monotonic() - began)
            return self._reserve(attempt, found)
        if isinstance(found, SearchResult):
            return await self._post_filter(attempt, found)
        return Failure(status=found)

    def roll_back(self, attempt: Attempt) -> None:
        """Unreserve an assumed pod in all plugins, and take it off its node."""
        attempt.profile.binding.unreserve(attempt.state, attempt.pod, attempt.node)
        self._state.forget(attempt.uid)

    async def _find(self, attempt: Attempt) -> str | SearchResult | Status:
        """The best node by name; else why no node is feasible, or an error."""
        state, nodes = attempt.state, self._state.view()
        found = attempt.profile.search.search(state, attempt.pod, nodes)
        if found.cycle.pod is not attempt.pod:
            attempt.profile = attempt.profile.whole
        if found.status.ok and self._extenders is not None:
            found = await self._left_by_extenders(self._extenders, attempt, found)
        self._debugging.filtered(found.cycle.pod, found.cycle.nodes, found.statuses)
        if not found.status.ok:
            return found.status if found.status.code is Code.ERROR else found
        if np.count_nonzero(found.feasible) == 1:
            return nodes.node(int(found.feasible.argmax())).name
        seen = found.cycle
        try:
            table = attempt.profile.scoring.scores(seen, found.feasible, found.cached)
        except ExtensionPointError as err:
            return err.status
        if table.pod is not attempt.pod:
            attempt.profile = attempt.profile.whole
        if self._extenders is not None:
            with attempt.budget.paused():
                await self._add_priorities(self._extenders, attempt.pod, nodes, table)
        self._debugging.scored(seen.pod, seen.nodes, table)
        return nodes.node(table.choose(self._draw)).name

    async def _left_by_extenders(
        self, extenders: Extenders, attempt: Attempt, found: SearchResult
    ) -> SearchResult:
        """Return the search result without the nodes that extenders reject.

        Where they reject the only node, a nominated or preferred one, all nodes are searched.
        """
        pod, nodes = attempt.pod, found.cycle.nodes
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

    async def _filtered(
        self, extenders: Extenders, pod: ClusterPod, found: SearchResult
    ) -> SearchResult:
        nodes = found.cycle.nodes
        names = [nodes.node(row).name for row in np.flatnonzero(found.feasible).tolist()]
        try:
            return found.without((await extenders.filter(pod, names)).rejections)
        except KoordError as err:
            return replace(found, status=Status.failed(err))

    async def _add_priorities(
        self, extenders: Extenders, pod: ClusterPod, nodes: View, table: ScoreTable
    ) -> None:
        """Add what extenders give to the totals."""
        totals = table.totals  # before other cycles may run
        names = [nodes.node(row).name for row in table.rows.tolist()]
        extra = await extenders.prioritize(pod, names)
        if extra:
            totals += np.array([extra.get(name, 0) for name in names], np.int64)

    async def _post_filter(self, attempt: Attempt, found: SearchResult) -> Failure:
        """Run PostFilter plugins, if Filter has given the reasons for which no node is feasible."""
        diagnosis, statuses = found.diagnosis, found.diagnosis.node_statuses
        if statuses is None or not attempt.profile.binding.has_post_filters:
            if self._dump is not None:
                self._dump.note(attempt, found, None)
            return Failure.diagnosed(found.status, diagnosis)
        result = await attempt.profile.binding.post_filter(
            attempt.state, attempt.pod, found.cycle.nodes, statuses
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
        binding = attempt.profile.binding
        nominated = binding.nominate(attempt.state, pod, node)
        annotations = dict(pod_changes(attempt.state).annotations)
        try:
            attempt.pod = self._state.assume(pod, node, annotations)
        except AssumeError as err:
            return Failure(status=Status.failed(err))
        attempt.node = node
        self._nominator.forget(attempt.pod.key)
        status = binding.reserve(attempt.state, attempt.pod, node, nominated)
        if status.ok:
            # Others must not choose what Reserve has chosen.
            chosen = pod_changes(attempt.state).annotations
            attempt.pod = self._state.annotate(attempt.uid, chosen) or attempt.pod
            status = binding.permit(attempt.state, attempt.pod, node)
        if status.ok or status.code is Code.WAIT:
            return None
        self.roll_back(attempt)
        return Failure.on_node(status)


MAX_PARALLEL_BINDINGS = 64  # requests for bindings on their way

log = get_logger("koord_scheduler.scheduling")


class BindingCycle:
    """Runs binding cycles, many at a time."""

    def __init__(
        self,
        state: SchedulerCache,
        queue: SchedulingQueue,
        waiting: WaitingPods,
        statuses: PodStatuses,
        events: PodEvents,
        metrics: SchedulingMetrics,
        client: ApiClient,
        clock: Clock,
        draw: Random,
        extenders: Extenders | None = None,
    ) -> None:
        """draw lengthens the pauses before what is asked again."""
        self._client = client
        self._doubts = LimitedLog(log, clock)
        self._state = state
        self._queue = queue
        self._waiting = waiting
        self._statuses = statuses
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._draw = draw
        self._extenders = extenders
        self._slots = asyncio.Semaphore(MAX_PARALLEL_BINDINGS)

    async def run(self, attempt: Attempt) -> Status:
        """Bind the pod; anything but Success: it is not bound, as far as is known, and reserved.

        A rejection comes only from a plugin that rejected it in its time.
        """
        status = await self._prepare(attempt)
        if status.ok:
            status = self._still_wanted(attempt)
        if not status.ok:
            return status
        status = await self._bind(attempt)
        if not status.ok and await self._was_bound(attempt):
            return SUCCESS
        return status

    async def bound(self, attempt: Attempt) -> None:
        """Report that the pod is bound, and call PostBind."""
        self._state.finish_binding(attempt.uid)
        self._note_bound(attempt)
        await attempt.profile.binding.post_bind(attempt.state, attempt.pod, attempt.node)

    async def _prepare(self, attempt: Attempt) -> Status:
        """Wait for the permit, and call PreBind."""
        binding, pod, node = attempt.profile.binding, attempt.pod, attempt.node
        flight = binding.pre_bind_pre_flight(attempt.state, pod, node)
        if not flight.ok and flight.code is not Code.SKIP:
            return flight
        waits = self._waiting.get(pod.uid) is not None
        if (waits or flight.ok) and not self._state.is_own_pod(pod.key):
            await self._statuses.nominate(pod, node)
        if waits:
            status = await binding.wait_on_permit(pod)
            if not status.ok:
                return status
        # PreBind may take minutes, and what fails from here on is tried again after its backoff
        # whatever happens meanwhile: events need not be kept for it any longer.
        self._queue.done(pod.uid)
        if not flight.ok:
            return SUCCESS
        status = self._still_wanted(attempt)
        return await binding.pre_bind(attempt.state, pod, node) if status.ok else status

    async def _bind(self, attempt: Attempt) -> Status:
        async with self._slots:
            status = self._still_wanted(attempt)
            if not status.ok:
                return status
            self._statuses.drop(attempt.pod)
            attempt.asked = True  # before it is sent: from now on the API server may have it
            if self._extenders is not None:
                try:
                    if await self._extenders.bind(attempt.pod, attempt.node):
                        return SUCCESS
                except KoordError as err:
                    return Status.failed(err)
            return await attempt.profile.binding.bind(attempt.state, attempt.pod, attempt.node)

    async def _was_bound(self, attempt: Attempt) -> bool:
        """Whether the API server has the pod on its node, although the binding has failed.

        The response may have been lost. Until that is known the pod keeps its resources, so that
        no other pod is placed where it runs: the watch may say so much later.
        """
        pod, pauses = attempt.pod, Backoff(1.0, 30.0, draw=self._draw.random)
        if self._state.is_own_pod(pod.key):
            return False  # the plugin whose pod it is knows, and puts it anew
        path = PODS.object(pod.name, namespace=pod.namespace)
        while self._state.is_assumed(attempt.uid):
            try:
                found = await self._client.get(path)
            except TRANSIENT_ERRORS as err:
                self._doubts.warning("binding.outcome_unknown", pod=pod.key, error=str(err))
                await self._clock.sleep(pauses.next())
            except KubeError:
                return False
            else:
                there = found.get("metadata", {}), found.get("spec", {})
                return (there[0].get("uid"), there[1].get("nodeName")) == (pod.uid, attempt.node)
        return False

    def _still_wanted(self, attempt: Attempt) -> Status:
        """An error, if the pod or its node have gone meanwhile: nothing needs to be asked."""
        pod = self._state.get(kinds.POD, attempt.pod.key)
        if pod is None or not self._state.is_assumed(attempt.uid):
            return Status.failed("the pod was deleted or bound by another scheduler meanwhile")
        if pod.deleting:
            return Status.failed("pod is being deleted")
        if pod.scheduler_name != attempt.profile.name:
            return Status.failed("schedulerName unmatched")
        if self._state.snapshot.node(attempt.node) is None:
            return Status.failed(f"node {attempt.node} was deleted meanwhile")
        return SUCCESS

    def _note_bound(self, attempt: Attempt) -> None:
        queued, now = attempt.queued, self._clock.monotonic()
        self._metrics.attempted(SCHEDULED, attempt.profile.name, now - attempt.began)
        first = attempt.began if queued.first_attempt is None else queued.first_attempt
        self._metrics.bound(queued.attempts, now - first)
        if self._state.is_own_pod(attempt.pod.key):
            return  # events are about what the API server has
        text = f"Successfully assigned {attempt.pod.key} to {attempt.node}"
        self._events.emit(attempt.pod, EventType.NORMAL, "Scheduled", text)
