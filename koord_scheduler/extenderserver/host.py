"""Run the plugins of profiles for a kube-scheduler, and say which plugins can be served."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from koord.cluster.decoder import Decoder
from koord.cluster.facts import ClusterPod
from koord.cluster.keptfields import NO_FIELDS, KeptFields
from koord.cluster.kinds import POD
from koord.cluster.lenient_decoding import DecodingFaults
from koord.cluster.view import View
from koord.util.clock import Clock
from koord.util.errors import KoordError
from koord.util.logs import LimitedLog, get_logger
from koord.util.ttlcache import TtlCache
from koord_scheduler.cache import AssumeError, SchedulerCache
from koord_scheduler.config.profiles import (
    DEFAULT_POINTS,
    DEFAULT_PRE_BIND,
    MISSING_PLUGINS,
    EnabledPlugin,
    Point,
    Profile,
)
from koord_scheduler.extenders.messages import (
    MAX_SCORE,
    MIN_SCORE,
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderFilterResult,
)
from koord_scheduler.framework.calls import ExtensionPointError
from koord_scheduler.framework.cyclestate import CycleInput, CycleState
from koord_scheduler.framework.diagnosis import FEASIBLE, NodeStatuses
from koord_scheduler.framework.nodes.adapters import Rows
from koord_scheduler.framework.nodes.search import SearchResult
from koord_scheduler.framework.profile import ProfilePlugins
from koord_scheduler.framework.status import SUCCESS, Code, Scores, Status
from koord_scheduler.scheduling.attempt import ProfileCycle

CACHED_CYCLE_SECONDS = 60.0  # that what filter has computed is kept for prioritize and bind
MAX_CACHED_CYCLES = 1024

log = get_logger("koord_scheduler.extender")


@dataclass(frozen=True, slots=True)
class CachedCycle:
    """The result of filter for a pod, over the nodes at that time."""

    state: CycleState
    view: View


class PluginHost:
    """Runs the plugins of profiles. One event loop."""

    def __init__(
        self,
        profiles: Sequence[ProfilePlugins],
        state: SchedulerCache,
        clock: Clock,
        *,
        fail_open: bool = False,
        kept: KeptFields = NO_FIELDS,
    ) -> None:
        """fail_open: where a plugin fails all nodes pass; else the pod's attempt fails.

        kept: what plugins read of pods beyond what is always kept.
        """
        nominator = profiles[0].services.nominator
        cycles = [ProfileCycle(one, nominator, choosing=True) for one in profiles]
        self._profiles = {one.name: one for one in cycles}
        self._first = cycles[0]
        self._state = state
        self._decoder = Decoder(kept)
        self._kept: TtlCache[str, CachedCycle] = TtlCache(clock, MAX_CACHED_CYCLES)
        self._under_way: set[str] = set()  # uids of pods that are being bound
        self._fail_open = fail_open
        self._failures = LimitedLog(log, clock)

    def filter(self, asked: ExtenderArgs) -> ExtenderFilterResult:
        """Return which of the nodes pass, in their order.

        Raises:
            InvalidObject: the pod is malformed.
        """
        pod = self._pod(asked.pod)
        cycle, state, view = self._cycle(pod), _measured(), self._state.view()
        found = cycle.search.search(state, pod, view, everywhere=True)
        if found.status.code is Code.ERROR:
            return self._failed(pod, asked.names, found.status)
        self._kept.put(pod.uid, CachedCycle(state, view), CACHED_CYCLE_SECONDS)
        response, plugins = _filter_result(asked.names, view, found)
        if plugins:
            log.debug("nodes.rejected", pod=pod.key, plugins=dict(plugins))
        return response

    def prioritize(self, asked: ExtenderArgs) -> Mapping[str, int]:
        """Return scores of the nodes, from 0 to 10; 0 of all where a plugin fails.

        Raises:
            InvalidObject: the pod is malformed.
        """
        pod = self._pod(asked.pod)
        cycle, nothing = self._cycle(pod), dict.fromkeys(asked.names, 0)
        try:
            cached_cycle = self._known(cycle, pod)
            rows = _rows(asked.names, cached_cycle.view)
            feasible = np.zeros(len(cached_cycle.view), np.bool_)
            feasible[rows[rows >= 0]] = True
            if not feasible.any():
                return nothing
            seen = CycleInput(cached_cycle.state, pod, cached_cycle.view)
            table = cycle.scoring.scores(seen, feasible)
        except ExtensionPointError as err:
            self._failures.warning("prioritize.failed", pod=pod.key, error=str(err))
            return nothing
        weights = {one.name: one.weight or 1 for one in cycle.plugins.settings.enabled(Point.SCORE)}
        total = sum(weights[name] for name in table.columns)
        if not total:
            return nothing
        scores = np.zeros(len(cached_cycle.view) + 1, np.int64)  # the last one is for unknown nodes
        scores[table.rows] = wire_scores(table.totals // total)
        return dict(zip(asked.names, scores[rows].tolist(), strict=True))

    async def bind(self, asked: ExtenderBindingArgs) -> str:
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
        except (AssumeError, ExtensionPointError) as err:
            return str(err)
        return "" if status.ok else status.message or status.code.title

    async def _bind(self, pod: ClusterPod, node: str) -> Status:
        cycle = self._cycle(pod)
        cached_cycle = self._known(cycle, pod)
        binding, state, uid = cycle.binding, cached_cycle.state, pod.uid
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
        return self._decoder.object(POD, data, DecodingFaults())

    def _cycle(self, pod: ClusterPod) -> ProfileCycle:
        """The profile that has the pod's scheduler name, or else the first one."""
        return self._profiles.get(pod.scheduler_name, self._first)

    def _known(self, cycle: ProfileCycle, pod: ClusterPod) -> CachedCycle:
        """Return the cached result of filter, or compute it now. Raises ExtensionPointError."""
        try:
            return self._kept[pod.uid]
        except KeyError:
            made = CachedCycle(_measured(), self._state.view())
        status = cycle.search.pre_filter(made.state, pod, made.view).status
        if status.code is Code.ERROR:
            raise ExtensionPointError(status)
        return made

    def _failed(
        self, pod: ClusterPod, names: tuple[str, ...], status: Status
    ) -> ExtenderFilterResult:
        facts = {"pod": pod.key, "error": status.message}
        if self._fail_open:
            self._failures.warning("filter.skipped", **facts)
            return ExtenderFilterResult(names)
        self._failures.warning("filter.failed", **facts)
        return ExtenderFilterResult((), error=status.message)


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


def _filter_result(
    names: Sequence[str], view: View, found: SearchResult
) -> tuple[ExtenderFilterResult, Counter[str]]:
    """The answer, and how many nodes each plugin rejects."""
    statuses = _statuses(found)
    if statuses is None:
        return ExtenderFilterResult(tuple(names)), Counter()
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
    return ExtenderFilterResult(tuple(passed), failed, unresolvable), plugins


def _statuses(found: SearchResult) -> NodeStatuses | None:
    """The statuses of nodes; None: there are no nodes at all."""
    return found.statuses or found.diagnosis.node_statuses


FILTER, PRIORITIZE, BIND = "filter", "prioritize", "bind"
"""Verbs, as the extender's configuration names them."""

VERBS = {
    FILTER: (Point.PRE_FILTER, Point.FILTER),
    PRIORITIZE: (Point.PRE_SCORE, Point.SCORE),
    BIND: (Point.RESERVE, Point.PRE_BIND, Point.BIND, Point.POST_BIND),
}
"""Verbs, and the extension points whose plugins need them."""

_REFUSED = {
    Point.PRE_ENQUEUE: "set spec.schedulingGates, which a controller removes",
    Point.QUEUE_SORT: "the queue is kube-scheduler's",
    Point.POST_FILTER: "preemption is kube-scheduler's",
    Point.PERMIT: "a pod cannot be made to wait after its node was chosen",
}
_KUBE_SCHEDULER_POINTS = frozenset((*DEFAULT_POINTS, DEFAULT_PRE_BIND, MISSING_PLUGINS))
"""Plugins that kube-scheduler runs itself, and what is only there for others."""


class NotServable(KoordError):
    """A profile has what the protocol cannot do, or nothing to serve."""


def served_profile(profile: Profile) -> Profile:
    """The profile without what kube-scheduler does itself.

    Kubernetes' default plugins are left out but where a binding needs them, and for the order of a
    queue that is never asked.

    Raises:
        NotServable: with each plugin and point that cannot be served.
    """
    errors = list(_errors(profile))
    if errors:
        raise NotServable(f"profile {profile.scheduler_name}: {'; '.join(errors)}")
    served = {Point.QUEUE_SORT, Point.BIND}
    if BIND in verbs_of(profile):
        served.add(Point.PRE_BIND)
    plugins = {
        point: profile.enabled(point) if point in served else _own(profile, point)
        for point in Point
    }
    return replace(profile, plugins=plugins, percentage_of_nodes_to_score=None)


def verbs_of(profile: Profile) -> tuple[str, ...]:
    """The verbs that a profile's plugins need."""
    return tuple(
        verb for verb, points in VERBS.items() if any(_own(profile, point) for point in points)
    )


def _errors(profile: Profile) -> Iterator[str]:
    for point, hint in _REFUSED.items():
        for one in _own(profile, point):
            yield f'plugin "{one.name}" cannot be served at {point}: {hint}; disable it there'
    if not verbs_of(profile):
        yield "wanted a plugin to serve, found only those that kube-scheduler has itself"


def _own(profile: Profile, point: Point) -> tuple[EnabledPlugin, ...]:
    """The plugins at a point that kube-scheduler does not have."""
    return tuple(one for one in profile.enabled(point) if one.name not in _KUBE_SCHEDULER_POINTS)
