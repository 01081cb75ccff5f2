"""PreFilter of all plugins: what they need for Filter, which nodes are worth a look.

Source: Kubernetes, framework/runtime/framework.go (RunPreFilterPlugins and its extensions).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord_scheduler.config.points import Point
from koord_scheduler.framework.answers import StatusFailed, status_of
from koord_scheduler.framework.calls import CallsInARow, Loaded, PluginCalls, PointFailed
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.interfaces import PreFilterExtensions, PreFilterPlugin
from koord_scheduler.framework.nodeinfo import NodeInfo
from koord_scheduler.framework.nodes.prepared import Prepared
from koord_scheduler.framework.profiles.profile import ProfilePlugins
from koord_scheduler.framework.results import PreFilterResult
from koord_scheduler.framework.status import SUCCESS, UNREAD, Code, Status


@dataclass(frozen=True, slots=True)
class PreFiltered:
    """What PreFilter says of all plugins together."""

    status: Status
    node_names: frozenset[str] | None = None  # None: all nodes
    plugins: tuple[str, ...] = ()  # that named nodes


PreFilterAnswer = PreFilterResult | Status

KindPreFiltered = Prepared[PreFilterAnswer, tuple[PreFiltered, frozenset[str]]]
"""Of equal pods the answers of the plugins, and what came of them: also who skips Filter."""


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
        ask = [cast(PreFilterPlugin, one.plugin).pre_filter_reuse_key for one in self._pre_filters]
        self._keys = CallsInARow(plugins.calls, Point.PRE_FILTER, self._pre_filters, ask)

    def pre_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View, kept: KindPreFiltered | None = None
    ) -> PreFiltered:
        """Call PreFilter of all plugins; note in the state which of them skip Filter.

        kept: answers of earlier cycles; None, in a what-if above all: all plugins are called.
        """
        with self._calls.timed(Point.PRE_FILTER.label) as ended:
            result = self._pre_filter(state, pod, nodes, kept)
            ended(result.status.code)
            return result

    def count_pods(self, state: CycleState) -> bool:
        """Whether a plugin counts pods that are added and removed, in a cycle with this state."""
        return any(
            isinstance(loaded.plugin, PreFilterExtensions)
            and loaded.name not in state.skipped_filters
            for loaded in self._pre_filters
        )

    def add_pod(
        self, state: CycleState, pod: ClusterPod, added: ClusterPod, nodes: View, row: int
    ) -> None:
        """Have plugins count a pod that the view has on a node, in a what-if's clone of the state.

        Raises:
            PointFailed: a plugin has failed.
        """
        self._extend(state, pod, added, NodeInfo(nodes, row), "add_pod")

    def remove_pod(
        self, state: CycleState, pod: ClusterPod, removed: ClusterPod, nodes: View, row: int
    ) -> None:
        """Have plugins count off a pod that the view does not have on a node any more; as add_pod.

        Raises:
            PointFailed: a plugin has failed.
        """
        self._extend(state, pod, removed, NodeInfo(nodes, row), "remove_pod")

    def _pre_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View, kept: KindPreFiltered | None
    ) -> PreFiltered:
        if pod.spec.unread:
            return PreFiltered(unread_status(pod))
        try:
            if kept is not None:
                known = kept.result(self._keys.ask(pod, nodes), state)
                if known is not None:
                    result, state.skipped_filters = known
                    return result
            return self._ask_all(state, pod, nodes, kept)
        except PointFailed as err:
            return PreFiltered(err.status)

    def _ask_all(
        self, state: CycleState, pod: ClusterPod, nodes: View, kept: KindPreFiltered | None
    ) -> PreFiltered:
        """Raises PointFailed where a plugin has failed."""
        names: frozenset[str] | None = None
        restricting: list[str] = []
        skipped: set[str] = set()
        rejection: Status | None = None
        for place, loaded in enumerate(self._pre_filters):
            prepare = partial(self._answer, loaded, state, pod, nodes)
            answer = prepare() if kept is None else kept.answer(place, state, prepare)
            if isinstance(answer, PreFilterResult):
                restricting.append(loaded.name)
                names = answer.node_names if names is None else names & answer.node_names
                if not names:
                    return PreFiltered(_nowhere(restricting), names, tuple(restricting))
            elif answer.code is Code.SKIP:
                skipped.add(loaded.name)
            elif answer.code is Code.UNSCHEDULABLE:
                rejection = answer
            elif answer.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
                return PreFiltered(answer)
        state.skipped_filters = frozenset(skipped)
        found = PreFiltered(rejection or SUCCESS, names, tuple(restricting))
        if kept is not None:
            kept.keep((found, state.skipped_filters))
        return found

    def _answer(
        self, loaded: Loaded, state: CycleState, pod: ClusterPod, nodes: View
    ) -> PreFilterAnswer:
        plugin = cast(PreFilterPlugin, loaded.plugin)
        return self._calls.call(
            loaded, Point.PRE_FILTER, state, _pre_filter_of, plugin, state, pod, nodes
        )

    def _extend(
        self, state: CycleState, pod: ClusterPod, other: ClusterPod, node: NodeInfo, way: str
    ) -> None:
        for loaded in self._pre_filters:
            plugin = loaded.plugin
            if isinstance(plugin, PreFilterExtensions) and loaded.name not in state.skipped_filters:
                work = plugin.add_pod if way == "add_pod" else plugin.remove_pod
                answer = self._calls.call(
                    loaded, Point.PRE_FILTER, state, work, state, pod, other, node
                )
                status = status_of(answer, loaded.name)
                if not status.ok:
                    failed = PointFailed(status)
                    raise PointFailed(self._calls.failed(loaded, Point.PRE_FILTER, failed))


def _pre_filter_of(
    plugin: PreFilterPlugin, state: CycleState, pod: ClusterPod, nodes: View
) -> PreFilterAnswer:
    answer = plugin.pre_filter(state, pod, nodes)
    if isinstance(answer, PreFilterResult):
        return answer
    status = status_of(answer, plugin.name, Code.SKIP)
    if status.code in (Code.ERROR, Code.PENDING):
        raise StatusFailed(plugin.name, status)
    return status


def _nowhere(plugins: Sequence[str]) -> Status:
    if len(plugins) == 1:
        return Status.unresolvable(f"node(s) didn't satisfy plugin {plugins[0]}")
    named = " ".join(plugins)
    return Status.unresolvable(f"node(s) didn't satisfy plugin(s) [{named}] simultaneously")
