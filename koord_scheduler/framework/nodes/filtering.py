"""Filter and Score of all plugins: which nodes pass, why others do not, and which is the best."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from random import Random
from typing import cast

import numpy as np

from koord.cluster.columns import BlockMaxima, Mask, read_only
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.calls import (
    ExtensionPointError,
    Loaded,
    PluginCalls,
    SequentialCalls,
)
from koord_scheduler.framework.extension.transformers import Transformers
from koord_scheduler.framework.interfaces import (
    MAX_VICTIM_GROUPS,
    Filtering,
    FilterPlugin,
    PreFilterExtensions,
    PreFilterPlugin,
    PreScorePlugin,
    Scoring,
    VectorFilterPlugin,
)
from koord_scheduler.framework.nodes.adapters import (
    FEW_ROWS,
    Rows,
    filter_nodes,
    filter_results,
    filter_rows,
    filter_vector,
    is_scaling,
    normalized,
    score_nodes,
)
from koord_scheduler.framework.nodes.resultcache import (
    EquivalenceClass,
    PluginPreFilterResult,
    PreFilterCache,
    PreResultCache,
)
from koord_scheduler.framework.profile import ProfilePlugins
from koord_scheduler.framework.status import (
    ABSENT,
    FEASIBLE,
    NO_STATUS,
    SUCCESS,
    UNREAD,
    Code,
    CycleInput,
    CycleState,
    NodeStatuses,
    Numbers,
    PluginStatusError,
    PreFilterOutcome,
    PreFilterResult,
    Scores,
    Status,
    Verdicts,
    status_of,
)
from koord_scheduler.framework.types import NodeInfo


def unread_status(pod: ClusterPod) -> Status:
    """Why such a pod fits no node: with what is missing it might fit fewer than it seems."""
    parts = "; ".join(pod.spec.unread)
    return Status(
        Code.UNSCHEDULABLE_AND_UNRESOLVABLE, (f"the pod cannot be read in full: {parts}",), UNREAD
    )


class PreFiltering:
    """The PreFilter plugins of one profile."""

    def __init__(self, plugins: ProfilePlugins) -> None:
        self._calls: PluginCalls = plugins.calls
        self._pre_filters = plugins.at(Point.PRE_FILTER)
        self._idle = plugins.idle_at(Point.FILTER)
        self._counting = tuple(
            one
            for one in plugins.at(Point.PRE_FILTER, idle=True)
            if isinstance(one.plugin, PreFilterExtensions)
        )
        ask = [cast(PreFilterPlugin, one.plugin).pre_filter_reuse_key for one in self._pre_filters]
        self._keys = SequentialCalls(plugins.calls, Point.PRE_FILTER, self._pre_filters, ask)

    def pre_filter(
        self, cycle: CycleInput, cached: PreFilterCache | None = None
    ) -> PreFilterOutcome:
        """Call PreFilter of all plugins; note in the state which of them skip Filter.

        cached: answers of earlier cycles; None, in a what-if above all: all plugins are called.
        """
        with self._calls.timed(Point.PRE_FILTER.label) as ended:
            result = self._pre_filter(cycle, cached)
            ended(result.status.code)
            return result

    def count_pods(self, state: CycleState) -> bool:
        """Whether a plugin counts pods that are added and removed, in a cycle with this state."""
        return any(loaded.name not in state.skipped_filters for loaded in self._counting)

    def add_pod(
        self, state: CycleState, pod: ClusterPod, added: ClusterPod, nodes: View, row: int
    ) -> None:
        """Make plugins count a pod that the view has on a node, in a what-if's clone of the state.

        Raises:
            ExtensionPointError: a plugin has failed.
        """
        self._extend(state, pod, added, NodeInfo(nodes, row), "add_pod")

    def remove_pod(
        self, state: CycleState, pod: ClusterPod, removed: ClusterPod, nodes: View, row: int
    ) -> None:
        """Make plugins stop counting a pod that has left a node of the view; see add_pod.

        Raises:
            ExtensionPointError: a plugin has failed.
        """
        self._extend(state, pod, removed, NodeInfo(nodes, row), "remove_pod")

    def _pre_filter(self, cycle: CycleInput, cached: PreFilterCache | None) -> PreFilterOutcome:
        state, pod = cycle.state, cycle.pod
        if pod.spec.unread:
            return PreFilterOutcome(unread_status(pod))
        try:
            if cached is not None:
                known = cached.result(self._keys.ask(pod, cycle.nodes), state)
                if known is not None:
                    result, state.skipped_filters = known
                    return result
            return self._ask_all(cycle, cached)
        except ExtensionPointError as err:
            return PreFilterOutcome(err.status)

    def _ask_all(self, cycle: CycleInput, cached: PreFilterCache | None) -> PreFilterOutcome:
        """Raises ExtensionPointError where a plugin has failed."""
        names: frozenset[str] | None = None
        restricting: list[str] = []
        skipped = set(self._idle)
        rejection: Status | None = None
        for place, loaded in enumerate(self._pre_filters):
            prepare = partial(self._answer, loaded, cycle)
            answer = prepare() if cached is None else cached.answer(place, cycle.state, prepare)
            if isinstance(answer, PreFilterResult):
                restricting.append(loaded.name)
                names = answer.node_names if names is None else names & answer.node_names
                if not names:
                    return PreFilterOutcome(_nowhere(restricting), names, tuple(restricting))
            elif answer.code is Code.SKIP:
                skipped.add(loaded.name)
            elif answer.code is Code.UNSCHEDULABLE:
                rejection = answer
            elif answer.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
                return PreFilterOutcome(answer)
        cycle.state.skipped_filters = frozenset(skipped)
        found = PreFilterOutcome(rejection or SUCCESS, names, tuple(restricting))
        if cached is not None:
            cached.keep((found, cycle.state.skipped_filters))
        return found

    def _answer(self, loaded: Loaded, cycle: CycleInput) -> PluginPreFilterResult:
        plugin = cast(PreFilterPlugin, loaded.plugin)
        return self._calls.call(
            loaded, Point.PRE_FILTER, cycle.state, _pre_filter_of, plugin, cycle
        )

    def _extend(
        self, state: CycleState, pod: ClusterPod, other: ClusterPod, node: NodeInfo, way: str
    ) -> None:
        for loaded in self._counting:
            plugin = cast(PreFilterExtensions, loaded.plugin)
            if loaded.name not in state.skipped_filters:
                work = plugin.add_pod if way == "add_pod" else plugin.remove_pod
                answer = self._calls.call(
                    loaded, Point.PRE_FILTER, state, work, state, pod, other, node
                )
                status = status_of(answer, loaded.name)
                if not status.ok:
                    failed = ExtensionPointError(status)
                    raise ExtensionPointError(self._calls.failed(loaded, Point.PRE_FILTER, failed))


def _pre_filter_of(plugin: PreFilterPlugin, cycle: CycleInput) -> PluginPreFilterResult:
    answer = plugin.pre_filter(cycle.state, cycle.pod, cycle.nodes)
    if isinstance(answer, PreFilterResult):
        return answer
    status = status_of(answer, plugin.name, Code.SKIP)
    if status.code in (Code.ERROR, Code.PENDING):
        raise PluginStatusError(plugin.name, status)
    return status


def _nowhere(plugins: Sequence[str]) -> Status:
    if len(plugins) == 1:
        return Status.unresolvable(f"node(s) didn't satisfy plugin {plugins[0]}")
    named = " ".join(plugins)
    return Status.unresolvable(f"node(s) didn't satisfy plugin(s) [{named}] simultaneously")


class FilterStatuses:
    """Statuses of nodes while Filter goes over them."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._numbers: Numbers | None = None  # None: no node was looked at
        self._feasible: Mask | None = None  # where it is known beside the numbers
        self._statuses: list[Status] = []

    @property
    def numbers(self) -> Numbers:
        """The status of each node, as in NodeStatuses, to be changed."""
        if self._numbers is None:
            self._numbers = np.full(self._nodes, ABSENT, np.int32)
        elif not self._numbers.flags.writeable:
            self._numbers = self._numbers.copy()
        return self._numbers

    @property
    def count(self) -> int:
        """How many statuses there are."""
        return len(self._statuses)

    @property
    def rejections(self) -> Sequence[Status]:
        """The statuses, by number."""
        return self._statuses

    def begin_with_all(self, first: Numbers, statuses: Sequence[Status], feasible: Mask) -> None:
        """Begin with all nodes, while there is no status.

        first: never written. feasible: those that none rejects; it is never written.
        """
        self._numbers, self._feasible = first, feasible
        self._statuses += statuses

    def begin(self, first: Numbers, statuses: Sequence[Status], wanted: Mask) -> None:
        """Take over the first rejections of the nodes that are wanted."""
        before = len(self._statuses)
        numbers = first if not before else np.where(first, first + before, 0)
        np.copyto(self.numbers, numbers, where=wanted, casting="same_kind")
        self._statuses += statuses

    def take(self, verdicts: Verdicts | Mask, loaded: Loaded, alive: Mask) -> bool:
        """Note a plugin's verdicts about nodes that are alive; return whether it rejected some."""
        self._feasible = None
        if not isinstance(verdicts, Verdicts):
            rejected = alive > verdicts
            if not rejected.any():
                return False
            plugin = cast(Filtering, loaded.plugin)
            self.reject(rejected, plugin.rejection.of(loaded.name))
            alive ^= rejected
            return True
        rejected = verdicts.numbers != 0
        rejected &= alive
        if not rejected.any():
            return False
        numbers = verdicts.numbers + len(self._statuses)
        np.copyto(self.numbers, numbers, where=rejected, casting="same_kind")
        self._statuses += verdicts.rejections
        alive ^= rejected
        return True

    def reject(self, row: int | Mask, status: Status) -> None:
        self._feasible = None
        self._statuses.append(status)
        self.numbers[row] = len(self._statuses)

    def leave_out_beyond(self, order: Rows, need: int) -> int:
        """Leave out all feasible nodes but the first ones in this order, as many as needed.

        Returns the number of nodes up to the last of them; all, if there are not enough.
        """
        self._feasible = None
        places = np.flatnonzero(self.numbers[order] == FEASIBLE)
        if len(places) < need:
            return len(order)
        self.numbers[order[places[need:]]] = ABSENT
        return int(places[need - 1]) + 1

    def statuses(self, absent: Status = NO_STATUS) -> NodeStatuses:
        numbers = self.numbers if self._numbers is None else self._numbers
        return NodeStatuses(numbers, tuple(self._statuses), absent, self._feasible)


def _is_rejection(status: Status) -> bool:
    return not status.ok


Look = Callable[[Filtering, CycleInput, Mask], Verdicts | Mask]

MANY_NODES = 64  # from which on the plain form is sooner done with FEW_ROWS


class Filters:
    """The Filter plugins of one profile. Raises ExtensionPointError where one has failed."""

    def __init__(self, plugins: ProfilePlugins) -> None:
        self._calls: PluginCalls = plugins.calls
        self._filters = plugins.at(Point.FILTER)
        self._skipped: frozenset[str] = frozenset()
        self._active = self._filters
        self._are_plain = all(isinstance(one.plugin, FilterPlugin) for one in self._filters)
        self._ask_row: SequentialCalls[[CycleInput, int], Status] | None = None  # the active ones

    def active(self, state: CycleState) -> Sequence[Loaded]:
        """The plugins that PreFilter does not skip, in their order."""
        if state.skipped_filters != self._skipped:
            self._skipped = state.skipped_filters
            self._active = tuple(one for one in self._filters if one.name not in self._skipped)
            self._ask_row = None
        return self._active

    def victim_groups(self, cycle: CycleInput, row: int) -> Sequence[Collection[str]]:
        """Pods of a node that hold what lies together, as plugins say: each group once."""
        node, found = NodeInfo(cycle.nodes, row), dict[frozenset[str], None]()
        for loaded in self.active(cycle.state):
            plugin = cast(Filtering, loaded.plugin)

            def groups(plugin: Filtering = plugin) -> list[frozenset[str]]:
                every = plugin.victim_groups(cycle.state, cycle.pod, node)
                return [frozenset(one) for one in islice(every, MAX_VICTIM_GROUPS)]

            found.update(dict.fromkeys(self._calls.ask(loaded, Point.FILTER, groups)))
        return list(found)[:MAX_VICTIM_GROUPS]

    def filter(
        self,
        filter_statuses: FilterStatuses,
        cycle: CycleInput,
        wanted: Mask,
        cached: EquivalenceClass | None,
    ) -> None:
        """Note in a walk which of the wanted nodes pass, and why others do not.

        cached: results of earlier cycles; None: everything is computed.
        """
        active = self.active(cycle.state)
        count = int(np.count_nonzero(wanted))
        if cached is not None and (count > FEW_ROWS or count == len(cycle.nodes)):
            every = count == len(cycle.nodes)
            self._filter_cached(filter_statuses, active, cycle, wanted, cached, every=every)
            return
        one_by_one = count <= FEW_ROWS and len(cycle.nodes) > MANY_NODES
        if one_by_one and count == 1 and self._are_plain:  # as of a planned or nominated pod
            row = int(wanted.argmax())
            status = self.row(cycle, row)
            filter_statuses.numbers[row] = FEASIBLE
            if not status.ok:
                filter_statuses.reject(row, status)
            return
        alive = wanted.copy()
        filter_statuses.numbers[alive] = FEASIBLE
        for loaded in active:
            plugin = cast(Filtering, loaded.plugin)
            by_rows = one_by_one and isinstance(plugin, FilterPlugin)
            look = cast(Look, filter_rows if by_rows else filter_results)
            verdicts = self._calls.call(
                loaded, Point.FILTER, cycle.state, look, plugin, cycle, alive.copy()
            )
            if filter_statuses.take(verdicts, loaded, alive) and not alive.any():
                return

    def row(self, cycle: CycleInput, row: int) -> Status:
        """Call Filter for one node: Success or a rejection."""
        active = self.active(cycle.state)
        if self._ask_row is None:
            works = [partial(_row_status, one) for one in active]
            self._ask_row = SequentialCalls(self._calls, Point.FILTER, active, works)
        found = self._ask_row.until(_is_rejection, cycle.state, cycle, row)
        return found[-1] if found else SUCCESS

    def row_of(self, loaded: Loaded, cycle: CycleInput, row: int) -> Status:
        """Call Filter of one plugin for one node."""
        work = partial(_row_status, loaded, cycle, row)
        return self._calls.call(loaded, Point.FILTER, cycle.state, work)

    def verdicts(self, cycle: CycleInput) -> Mapping[str, Verdicts]:
        """Return what each Filter plugin says of every node, also of those that another rejects.

        For explanations: a cycle does not ask so much.
        """
        found, every = {}, np.ones(len(cycle.nodes), np.bool_)
        for loaded in self.active(cycle.state):
            plugin = cast(Filtering, loaded.plugin)
            found[loaded.name] = self._calls.call(
                loaded, Point.FILTER, cycle.state, filter_nodes, plugin, cycle, every
            )
        return found

    def _filter_cached(
        self,
        filter_statuses: FilterStatuses,
        active: Sequence[Loaded],
        cycle: CycleInput,
        wanted: Mask,
        cached: EquivalenceClass,
        *,
        every: bool,
    ) -> None:
        """Filter with cached results: first by the fused plugins.

        Of the others, one counts on the nodes that pass so far, or that only a plugin after it
        rejects: so each node has the rejection that comes first. every: all nodes are wanted.
        """
        first = cached.fused_filters.look(self._calls, active, cycle)
        before = filter_statuses.count
        joined = cached.fused_filters.plugins
        if every and not before and len(joined) == len(active):
            filter_statuses.begin_with_all(
                first.numbers, first.rejections, cached.fused_filters.feasible
            )
            return
        filter_statuses.begin(first.numbers, first.rejections, wanted)
        if len(joined) == len(active):
            return
        places = [
            len(active),
            *[-1] * before,
            *cached.fused_filters.places,
        ]  # by number of a status
        # the place of the plugin that rejects a node; those that none rejects come last
        rejecting = np.array(places, np.int32).take(filter_statuses.numbers)
        rejecting[~wanted] = -1
        for place, loaded in enumerate(active):
            if loaded.name in joined:
                continue
            alive = rejecting > place
            if not alive.any():
                continue
            plugin = cast(Filtering, loaded.plugin)
            verdicts = self._calls.call(
                loaded, Point.FILTER, cycle.state, cached.filter, plugin, cycle, alive.copy()
            )
            if filter_statuses.take(verdicts, loaded, alive):
                rejecting[(rejecting > place) > alive] = place


def _row_status(loaded: Loaded, cycle: CycleInput, row: int) -> Status:
    plugin = loaded.plugin
    if isinstance(plugin, FilterPlugin):
        status = status_of(
            plugin.filter(cycle.state, cycle.pod, NodeInfo(cycle.nodes, row)), loaded.name
        )
        if status.ok or status.rejected:
            return status
        raise PluginStatusError(loaded.name, status)
    assert isinstance(plugin, VectorFilterPlugin)  # noqa: S101 - it has one of the forms
    found = filter_vector(plugin, cycle)
    number = int(found.numbers[row])
    return found.rejections[number - 1] if number else SUCCESS


class ScoreTable:
    """Scores of the feasible nodes; each column has shape (feasible nodes,).

    Valid until the next cycle begins; the totals, once asked for, for ever.
    """

    def __init__(
        self,
        rows: Rows,
        totals: Scores,
        make_columns: Callable[[], Mapping[str, Scores]],
        maxima: BlockMaxima | None = None,
        pod: ClusterPod | None = None,
    ) -> None:
        """maxima: of the totals, which are the cache's then; None: the totals are its own.

        pod: as Score has seen it.
        """
        self.rows = rows
        self.pod = pod
        self._totals = totals
        self._make_columns = make_columns
        self._maxima = maxima

    @property
    def totals(self) -> Scores:
        """Sums of the columns. A caller that changes them changes what is chosen."""
        if self._maxima is not None:
            self._totals, self._maxima = self._totals.copy(), None
        return self._totals

    @property
    def columns(self) -> Mapping[str, Scores]:
        """Scores by plugin, normalized, times its weight."""
        return self._make_columns()

    def choose(self, draw: Random) -> int:
        """The row with the highest total; one of them, if there are several."""
        if self._maxima is not None:
            return int(self.rows[self._maxima.draw(draw)])
        totals = self._totals
        (best,) = (totals == totals[totals.argmax()]).nonzero()  # faster than max()
        return int(self.rows[best[draw.randrange(len(best))]])


class NodeScoring:
    """Scores nodes by the plugins of one profile."""

    def __init__(self, plugins: ProfilePlugins, *, whole: "NodeScoring | None" = None) -> None:
        """whole: that of the whole profile, where plugins are a part of it."""
        self._whole = whole
        self._idle = plugins.idle_at(Point.SCORE)
        self._calls = plugins.calls
        self._transformers = Transformers(plugins)
        self._pre_scores = plugins.at(Point.PRE_SCORE)
        ask = [cast(PreScorePlugin, one.plugin).pre_score_reuse_key for one in self._pre_scores]
        self._keys = SequentialCalls(plugins.calls, Point.PRE_SCORE, self._pre_scores, ask)
        weights = {one.name: one.weight or 1 for one in plugins.settings.enabled(Point.SCORE)}
        self._scores = tuple((one, weights[one.name]) for one in plugins.at(Point.SCORE))
        self._choosy = [  # those that may have nothing to say about a pod
            one
            for one, _ in self._scores
            if cast(type[Scoring], type(one.plugin)).scores_pod is not Scoring.scores_pod
        ]
        self._skipped: frozenset[str] = frozenset()
        self._active = self._scores

    def scores(
        self,
        cycle: CycleInput,
        feasible: Mask,
        cached: EquivalenceClass | None = None,
    ) -> ScoreTable:
        """Return the scores of the feasible nodes, of which there is at least one.

        cached: results of earlier cycles; None: everything is computed.

        Raises:
            ExtensionPointError: a plugin has failed, or a transformer has ended the cycle.
        """
        if feasible.flags.writeable:
            feasible = read_only(feasible.copy())
        with self._calls.limits:
            seen, feasible = self._transformers.before_score(cycle, feasible)
            if seen.is_altered or seen.pod is not cycle.pod:
                cached = None
            if self._whole is not None and seen.pod is not cycle.pod:
                return self._whole._score(seen, feasible, cached)
            return self._score(seen, feasible, cached)

    def _score(
        self,
        cycle: CycleInput,
        feasible: Mask,
        cached: EquivalenceClass | None,
    ) -> ScoreTable:
        with self._calls.timed(Point.PRE_SCORE.label):
            kept_answers = None if cached is None else cached.pre_scored
            self._pre_score(cycle, feasible, kept_answers)
        active = self._active_in(cycle)
        columns: dict[str, Scores] = {}
        fused: Mapping[str, Scores] = {}
        maxima: BlockMaxima | None = None
        with self._calls.timed(Point.SCORE.label):
            if cached is None:
                (rows,) = feasible.nonzero()
                totals = np.zeros(len(rows), np.int64)
            else:
                look = cached.fused_scores.look
                rows, totals, maxima = look(self._calls, active, cycle, feasible)
                fused = cached.fused_scores.columns
                if maxima is None or len(fused) < len(active):
                    # The totals are the cache's own: what is added below is of this cycle alone.
                    totals, maxima = totals.copy(), None
            for loaded, weight in active:
                if loaded.name not in fused:
                    found = self._weighted(loaded, weight, cycle, feasible, rows, cached)
                    columns[loaded.name] = found
                    totals += found

        def make_columns() -> Mapping[str, Scores]:
            return {
                one.name: fused[one.name][rows] * weight if one.name in fused else columns[one.name]
                for one, weight in active
            }

        return ScoreTable(rows, totals, make_columns, maxima, cycle.pod)

    def _active_in(self, cycle: CycleInput) -> Sequence[tuple[Loaded, int]]:
        """The plugins that score in a cycle, with their weights."""
        state = cycle.state
        idle = [
            one.name
            for one in self._choosy
            if one.name not in state.skipped_scores
            and not self._calls.ask(
                one, Point.SCORE, cast(Scoring, one.plugin).scores_pod, state, cycle.pod
            )
        ]
        if idle:
            state.skipped_scores = state.skipped_scores.union(idle)
        if state.skipped_scores != self._skipped:
            self._skipped = state.skipped_scores
            self._active = tuple(one for one in self._scores if one[0].name not in self._skipped)
        return self._active

    def _pre_score(
        self,
        cycle: CycleInput,
        feasible: Mask,
        cached: PreResultCache[bool, frozenset[str]] | None,
    ) -> None:
        """Call PreScore of all plugins; note in the state which of them skip Score."""
        state = cycle.state
        if cached is not None:
            known = cached.result(self._keys.ask(cycle.pod, cycle.nodes), state)
            if known is not None:
                state.skipped_scores = known
                return
        skipped = set(self._idle)
        for place, loaded in enumerate(self._pre_scores):
            plugin = cast(PreScorePlugin, loaded.plugin)
            work = partial(_skips, plugin, cycle, feasible)
            prepare = partial(self._calls.call, loaded, Point.PRE_SCORE, state, work)
            if prepare() if cached is None else cached.answer(place, state, prepare):
                skipped.add(loaded.name)
        state.skipped_scores = frozenset(skipped)
        if cached is not None:
            cached.keep(state.skipped_scores)

    def _weighted(
        self,
        loaded: Loaded,
        weight: int,
        cycle: CycleInput,
        feasible: Mask,
        rows: Rows,
        cached: EquivalenceClass | None,
    ) -> Scores:
        plugin = cast(Scoring, loaded.plugin)
        look = score_nodes if cached is None else cached.score

        def scored() -> Scores:
            if cached is not None and is_scaling(plugin):
                return cached.scaled_scores[loaded.name].look(plugin, cycle, feasible, rows)
            raw = look(plugin, cycle, feasible)
            if len(rows) < len(raw):
                raw = raw[rows]
            return normalized(plugin, cycle, rows, raw)

        found = self._calls.call(loaded, Point.SCORE, cycle.state, scored)
        return found if weight == 1 else found * weight


def _skips(plugin: PreScorePlugin, cycle: CycleInput, feasible: Mask) -> bool:
    """Call PreScore; return whether the plugin's Score is to be skipped."""
    status = status_of(
        plugin.pre_score(cycle.state, cycle.pod, cycle.nodes, feasible), plugin.name, Code.SKIP
    )
    if not status.ok and status.code is not Code.SKIP:
        raise PluginStatusError(plugin.name, status)
    return not status.ok
