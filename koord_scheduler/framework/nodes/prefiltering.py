"""PreFilter of all plugins."""

from collections.abc import Sequence
from functools import partial
from typing import cast

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.calls import (
    ExtensionPointError,
    Loaded,
    PluginCalls,
    SequentialCalls,
)
from koord_scheduler.framework.cyclestate import CycleInput, CycleState
from koord_scheduler.framework.interfaces import PreFilterExtensions, PreFilterPlugin
from koord_scheduler.framework.nodes.resultcache import PluginPreFilterResult, PreFilterCache
from koord_scheduler.framework.profile import ProfilePlugins
from koord_scheduler.framework.status import (
    SUCCESS,
    UNREAD,
    Code,
    PluginStatusError,
    PreFilterOutcome,
    PreFilterResult,
    Status,
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
        self._counting = tuple(
            one for one in self._pre_filters if isinstance(one.plugin, PreFilterExtensions)
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
        skipped: set[str] = set()
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
