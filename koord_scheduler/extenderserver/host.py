"""Answers to a kube-scheduler by the plugins of profiles.

Nodes and pods come from watches; a request is about names. A node that is not known passes, and
scores 0.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from koord.cluster.decoder import Decoder
from koord.cluster.decoding import POD
from koord.cluster.facts import ClusterPod
from koord.cluster.parts import Faults
from koord.cluster.view import View
from koord.util.clock import Clock
from koord.util.logs import LimitedLog, get_logger
from koord.util.ttlcache import TtlCache
from koord_scheduler.cache.assumed import AssumeError, SchedulerState
from koord_scheduler.config.points import Point
from koord_scheduler.extenders.messages import (
    MAX_SCORE,
    MIN_SCORE,
    Arguments,
    BindArguments,
    FilterAnswer,
)
from koord_scheduler.framework.calls import PointFailed
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.diagnosis import FEASIBLE, NodeStatuses
from koord_scheduler.framework.nodes.forms import Rows
from koord_scheduler.framework.nodes.search import Found
from koord_scheduler.framework.profiles.profile import ProfilePlugins
from koord_scheduler.framework.results import Scores
from koord_scheduler.framework.status import SUCCESS, Code, Status
from koord_scheduler.scheduling.attempt import ProfileCycle

STATE_SECONDS = 60.0  # that what filter has computed is kept for prioritize and bind
MOST_STATES = 1024

log = get_logger("koord_scheduler.extender")


@dataclass(frozen=True, slots=True)
class Kept:
    """What filter has computed for a pod, over the nodes as they were then."""

    state: CycleState
    view: View


class PluginHost:
    """Runs the plugins of profiles. One event loop."""

    def __init__(
        self,
        profiles: Sequence[ProfilePlugins],
        state: SchedulerState,
        clock: Clock,
        *,
        fail_open: bool = False,
    ) -> None:
        """fail_open: where a plugin fails all nodes pass; else the pod's attempt fails."""
        nominator = profiles[0].services.nominator
        cycles = [ProfileCycle(one, nominator, choosing=True) for one in profiles]
        self._profiles = {one.name: one for one in cycles}
        self._first = cycles[0]
        self._state = state
        self._decoder = Decoder()
        self._kept: TtlCache[str, Kept] = TtlCache(clock, MOST_STATES)
        self._under_way: set[str] = set()  # uids of pods that are being bound
        self._fail_open = fail_open
        self._failures = LimitedLog(log, clock)

    def filter(self, asked: Arguments) -> FilterAnswer:
        """Return which of the nodes pass, in their order.

        Raises:
            InvalidObject: the pod is malformed.
        """
        pod = self._pod(asked.pod)
        cycle, state, view = self._cycle(pod), _measured(), self._state.view()
        found = cycle.search.search(state, pod, view, everywhere=True)
        if found.status.code is Code.ERROR:
            return self._failed(pod, asked.names, found.status)
        self._kept.put(pod.uid, Kept(state, view), STATE_SECONDS)
        answer, plugins = _answer(asked.names, view, found)
        if plugins:
            log.debug("nodes.rejected", pod=pod.key, plugins=dict(plugins))
        return answer

    def prioritize(self, asked: Arguments) -> Mapping[str, int]:
        """Return scores of the nodes, from 0 to 10; 0 of all where a plugin fails.

        Raises:
            InvalidObject: the pod is malformed.
        """
        pod = self._pod(asked.pod)
        cycle, nothing = self._cycle(pod), dict.fromkeys(asked.names, 0)
        try:
            kept = self._known(cycle, pod)
            rows = _rows(asked.names, kept.view)
            feasible = np.zeros(len(kept.view), np.bool_)
            feasible[rows[rows >= 0]] = True
            if not feasible.any():
                return nothing
            table = cycle.scoring.scores(kept.state, pod, kept.view, feasible)
        except PointFailed as err:
            self._failures.warning("prioritize.failed", pod=pod.key, error=str(err))
            return nothing
        weights = {one.name: one.weight or 1 for one in cycle.plugins.settings.enabled(Point.SCORE)}
        total = sum(weights[name] for name in table.columns)
        if not total:
            return nothing
        scores = np.zeros(len(kept.view) + 1, np.int64)  # the last one is for unknown nodes
        scores[table.rows] = wire_scores(table.totals // total)
        return dict(zip(asked.names, scores[rows].tolist(), strict=True))

    async def bind(self, asked: BindArguments) -> str:
        """Bind a pod by the plugins; return what went wrong, "": it is bound.

        A pod that is bound to that node already is.
        """
        pod = self._state.pod(f"{asked.namespace}/{asked.name}")
        if pod is None or pod.uid != asked.uid:
            return f"pod {asked.namespace}/{asked.name} of uid {asked.uid} is not known"
        if pod.uid in self._under_way:
            return f"pod {pod.key} is being bound to node {pod.node} already"
        if pod.node:
            return "" if pod.node == asked.node else f"pod {pod.key} is bound to node {pod.node}"
        try:
            status = await self._bind(pod, asked.node)
        except (AssumeError, PointFailed) as err:
            return str(err)
        return "" if status.ok else status.message or status.code.title

    async def _bind(self, pod: ClusterPod, node: str) -> Status:
        cycle = self._cycle(pod)
        kept = self._known(cycle, pod)
        binding, state, uid = cycle.binding, kept.state, pod.uid
        pod = self._state.assume(pod, node)
        self._under_way.add(uid)
        status = Status.failed("the binding was given up")
        try:
            status = binding.reserve(state, pod, node)
            if status.ok:
                flight = binding.pre_bind_pre_flight(state, pod, node)
                status = SUCCESS if flight.code is Code.SKIP else flight
                if flight.ok:
                    status = await binding.pre_bind(state, pod, node)
            if status.ok:
                status = await binding.bind(state, pod, node)
        finally:
            self._under_way.discard(uid)
            if status.ok:
                self._state.finish_binding(uid)
            else:
                binding.unreserve(state, pod, node)
                self._state.forget(uid)
        if status.ok:
            await binding.post_bind(state, pod, node)
        return status

    def _pod(self, data: bytes) -> ClusterPod:
        return self._decoder.object(POD, data, Faults())

    def _cycle(self, pod: ClusterPod) -> ProfileCycle:
        """The profile that has the pod's scheduler name, or else the first one."""
        return self._profiles.get(pod.scheduler_name, self._first)

    def _known(self, cycle: ProfileCycle, pod: ClusterPod) -> Kept:
        """What filter has computed; else it is computed now. Raises PointFailed."""
        try:
            return self._kept[pod.uid]
        except KeyError:
            made = Kept(_measured(), self._state.view())
        status = cycle.search.pre_filter(made.state, pod, made.view).status
        if status.code is Code.ERROR:
            raise PointFailed(status)
        return made

    def _failed(self, pod: ClusterPod, names: tuple[str, ...], status: Status) -> FilterAnswer:
        facts = {"pod": pod.key, "error": status.message}
        if self._fail_open:
            self._failures.warning("filter.skipped", **facts)
            return FilterAnswer(names)
        self._failures.warning("filter.failed", **facts)
        return FilterAnswer((), error=status.message)


def wire_scores(scores: Scores) -> Scores:
    """Scores from 0 to 100 as ones from 0 to 10, rounded."""
    found: Scores = np.clip((scores + 5) // 10, MIN_SCORE, MAX_SCORE)
    return found


def _measured() -> CycleState:
    state = CycleState()
    state.measured = True
    return state


def _rows(names: Sequence[str], view: View) -> Rows:
    """The rows of nodes; -1 of those that are not known."""
    get = view.traits.rows.get
    return np.fromiter((get(name, -1) for name in names), np.intp, len(names))


def _answer(names: Sequence[str], view: View, found: Found) -> tuple[FilterAnswer, Counter[str]]:
    """The answer, and how many nodes each plugin rejects."""
    statuses = _statuses(found)
    if statuses is None:
        return FilterAnswer(tuple(names)), Counter()
    rows = _rows(names, view)
    numbers = np.append(statuses.numbers, FEASIBLE)[rows]  # a node that is not known passes
    of_number = {number: statuses.of_number(number) for number in np.unique(numbers).tolist()}
    passed: list[str] = []
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    for name, number in zip(names, numbers.tolist(), strict=True):
        status = of_number[number]
        if status is None:
            passed.append(name)
        elif status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
            unresolvable[name] = status.message
        else:
            failed[name] = status.message
    plugins = Counter(one.plugin for n in numbers.tolist() if (one := of_number[n]) is not None)
    return FilterAnswer(tuple(passed), failed, unresolvable), plugins


def _statuses(found: Found) -> NodeStatuses | None:
    """The statuses of nodes; None: there are no nodes at all."""
    return found.statuses or found.diagnosis.node_statuses
