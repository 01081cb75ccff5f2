"""Filter of all plugins: which nodes pass, in whichever form the plugins have.

Source: Kubernetes, framework/runtime/framework.go (RunFilterPlugins).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import numpy as np

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord_scheduler.config.points import Point
from koord_scheduler.framework.answers import StatusFailed, status_of
from koord_scheduler.framework.calls import Loaded, PluginCalls
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.diagnosis import FEASIBLE
from koord_scheduler.framework.interfaces import Filtering, FilterPlugin, VectorFilterPlugin
from koord_scheduler.framework.nodeinfo import NodeInfo
from koord_scheduler.framework.nodes.forms import (
    FEW_ROWS,
    filter_answers,
    filter_nodes,
    filter_rows,
    filter_vector,
)
from koord_scheduler.framework.nodes.kept import KindResults
from koord_scheduler.framework.nodes.walk import Walk
from koord_scheduler.framework.profiles.profile import ProfilePlugins
from koord_scheduler.framework.results import Verdicts
from koord_scheduler.framework.status import SUCCESS, Status

Look = Callable[[Filtering, CycleState, ClusterPod, View, Mask], Verdicts | Mask]

MANY_NODES = 64  # from which on the plain form is sooner done with FEW_ROWS


class Filters:
    """The Filter plugins of one profile. Raises PointFailed where one has failed."""

    def __init__(self, plugins: ProfilePlugins) -> None:
        self._calls: PluginCalls = plugins.calls
        self._filters = plugins.at(Point.FILTER)
        self._skipped: frozenset[str] = frozenset()
        self._active = self._filters

    def active(self, state: CycleState) -> Sequence[Loaded]:
        """The plugins that PreFilter does not skip, in their order."""
        if state.skipped_filters != self._skipped:
            self._skipped = state.skipped_filters
            self._active = tuple(one for one in self._filters if one.name not in self._skipped)
        return self._active

    def walk(
        self,
        walk: Walk,
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        wanted: Mask,
        kept: KindResults | None,
    ) -> None:
        """Note in a walk which of the wanted nodes pass, and why others do not.

        kept: results of earlier cycles; None: everything is computed.
        """
        active = self.active(state)
        count = int(np.count_nonzero(wanted))
        if kept is not None and (count > FEW_ROWS or count == len(nodes)):
            every = count == len(nodes)
            self._filter_kept(walk, active, state, pod, nodes, wanted, kept, every=every)
            return
        alive = wanted.copy()
        walk.numbers[alive] = FEASIBLE
        one_by_one = count <= FEW_ROWS and len(nodes) > MANY_NODES
        for loaded in active:
            plugin = cast(Filtering, loaded.plugin)
            by_rows = one_by_one and isinstance(plugin, FilterPlugin)
            look = cast(Look, filter_rows if by_rows else filter_answers)
            verdicts = self._calls.call(
                loaded, Point.FILTER, state, look, plugin, state, pod, nodes, alive.copy()
            )
            if walk.take(verdicts, loaded, alive) and not alive.any():
                return

    def row(self, state: CycleState, pod: ClusterPod, nodes: View, row: int) -> Status:
        """Call Filter for one node: Success or a rejection."""
        for loaded in self.active(state):
            status = self.row_of(loaded, state, pod, nodes, row)
            if not status.ok:
                return status
        return SUCCESS

    def row_of(
        self, loaded: Loaded, state: CycleState, pod: ClusterPod, nodes: View, row: int
    ) -> Status:
        """Call Filter of one plugin for one node."""
        work = partial(_row_status, loaded, state, pod, nodes, row)
        return self._calls.call(loaded, Point.FILTER, state, work)

    def verdicts(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mapping[str, Verdicts]:
        """Return what each Filter plugin says of every node, also of those that another rejects.

        For explanations: a cycle does not ask so much.
        """
        found, every = {}, np.ones(len(nodes), np.bool_)
        for loaded in self.active(state):
            plugin = cast(Filtering, loaded.plugin)
            found[loaded.name] = self._calls.call(
                loaded, Point.FILTER, state, filter_nodes, plugin, state, pod, nodes, every
            )
        return found

    def _filter_kept(
        self,
        walk: Walk,
        active: Sequence[Loaded],
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        wanted: Mask,
        kept: KindResults,
        *,
        every: bool,
    ) -> None:
        """Filter with what is kept: first by the plugins that are taken together.

        Of the others, one counts on the nodes that pass so far, or that only a plugin after it
        rejects: so each node has the rejection that comes first. every: all nodes are wanted.
        """
        first = kept.together.look(self._calls, active, state, pod, nodes)
        before = walk.count
        joined = kept.together.plugins
        if every and not before and len(joined) == len(active):
            walk.begin_with_all(first.numbers, first.rejections, kept.together.feasible)
            return
        walk.begin(first.numbers, first.rejections, wanted)
        if len(joined) == len(active):
            return
        places = [len(active), *[-1] * before, *kept.together.places]  # by number of a status
        # the place of the plugin that rejects a node; those that none rejects come last
        rejecting = np.array(places, np.int32).take(walk.numbers)
        rejecting[~wanted] = -1
        for place, loaded in enumerate(active):
            if loaded.name in joined:
                continue
            alive = rejecting > place
            if not alive.any():
                continue
            plugin = cast(Filtering, loaded.plugin)
            verdicts = self._calls.call(
                loaded, Point.FILTER, state, kept.filter, plugin, state, pod, nodes, alive.copy()
            )
            if walk.take(verdicts, loaded, alive):
                rejecting[(rejecting > place) > alive] = place


def _row_status(
    loaded: Loaded, state: CycleState, pod: ClusterPod, nodes: View, row: int
) -> Status:
    plugin = loaded.plugin
    if isinstance(plugin, FilterPlugin):
        status = status_of(plugin.filter(state, pod, NodeInfo(nodes, row)), loaded.name)
        if status.ok or status.rejected:
            return status
        raise StatusFailed(loaded.name, status)
    assert isinstance(plugin, VectorFilterPlugin)  # noqa: S101 - it has one of the forms
    found = filter_vector(plugin, state, pod, nodes)
    number = int(found.numbers[row])
    return found.rejections[number - 1] if number else SUCCESS
