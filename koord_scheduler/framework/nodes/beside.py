"""Filter on nodes that other pods are nominated to: a node must pass with those pods, too.

Source: Kubernetes, framework/runtime/framework.go (RunFilterPluginsWithNominatedPods).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from koord.cluster.columns import Mask
from koord.cluster.crowd import Crowd
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord_scheduler.config.points import Point
from koord_scheduler.framework.calls import Loaded, PluginCalls
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.diagnosis import FEASIBLE
from koord_scheduler.framework.interfaces import Filtering, PreFilterExtensions
from koord_scheduler.framework.nodes.filtering import Filters
from koord_scheduler.framework.nodes.forms import Rows, filter_answers
from koord_scheduler.framework.nodes.kept import KeptResults, KindResults
from koord_scheduler.framework.nodes.prefiltering import PreFiltering
from koord_scheduler.framework.nodes.walk import Walk
from koord_scheduler.framework.nominator import Nominator
from koord_scheduler.framework.profiles.profile import ProfilePlugins

FEW_RIVALS = 4  # nodes with nominated pods that are imagined one by one


@dataclass(frozen=True, slots=True)
class _Beside:
    """One node with the pods that are nominated to it, and the state that counts them."""

    nodes: View
    state: CycleState


class FilterBeside:
    """Filter of one profile, beside pods that are nominated. Raises PointFailed as Filters."""

    def __init__(
        self,
        plugins: ProfilePlugins,
        filters: Filters,
        pre_filtering: PreFiltering,
        nominator: Nominator,
    ) -> None:
        self._calls: PluginCalls = plugins.calls
        self._filters = filters
        self._pre_filtering = pre_filtering
        self._nominator = nominator
        self._kept = KeptResults()  # with the nominated pods on their nodes

    def walk(
        self,
        crowd: Crowd | None,
        walk: Walk,
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        wanted: Mask,
        kept: KindResults | None,
    ) -> None:
        """Filter; a node must also pass with the pods that are nominated to it.

        Where the nominator says that this suffices, it need not pass without them. wanted is not
        changed.
        """
        if crowd is not None:
            wanted = wanted.copy()
            rows = crowd.rows(nodes)
            rows = rows[wanted[rows]]
            if len(rows) > FEW_RIVALS:
                self._reject_crowded(crowd, rows, walk, state, pod, nodes, wanted, kept)
            else:
                for row in rows.tolist():
                    beside = self._beside(state, pod, nodes, row, crowd.pods_of(row))
                    status = self._filters.row(beside.state, pod, beside.nodes, row)
                    if not status.ok:
                        walk.reject(row, status)
                        wanted[row] = False
            if self._nominator.suffices:
                passed = rows[wanted[rows]]
                walk.numbers[passed] = FEASIBLE
                wanted[passed] = False
            if not wanted.any():
                return
        self._filters.walk(walk, state, pod, nodes, wanted, kept)

    def _reject_crowded(
        self,
        crowd: Crowd,
        rows: Rows,
        walk: Walk,
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        wanted: Mask,
        kept: KindResults | None,
    ) -> None:
        """Reject nodes that do not pass with the pods that are nominated to them.

        All those pods are imagined at once for the plugins that look at one node at a time. For
        the others each node is imagined alone.
        """
        crowded, mask = crowd.on(nodes), np.zeros(len(nodes), np.bool_)
        mask[rows] = True
        active = self._filters.active(state)
        wide = [one for one in active if self._looks_beyond(one, state, pod, nodes, crowded)]
        found = Walk(len(nodes))
        if wide:
            alive, imagined = mask.copy(), dict[int, _Beside]()
            for loaded in active:
                if loaded not in wide:
                    plugin = cast(Filtering, loaded.plugin)
                    verdicts = self._calls.call(
                        loaded,
                        Point.FILTER,
                        state,
                        filter_answers,
                        plugin,
                        state,
                        pod,
                        crowded,
                        alive.copy(),
                    )
                    found.take(verdicts, loaded, alive)
                    continue
                for row in np.flatnonzero(alive).tolist():
                    beside = imagined.get(row)
                    if beside is None:
                        beside = self._beside(state, pod, nodes, row, crowd.pods_of(row))
                        imagined[row] = beside
                    status = self._filters.row_of(loaded, beside.state, pod, beside.nodes, row)
                    if not status.ok:
                        found.reject(row, status)
                        alive[row] = False
        else:
            keep = None if kept is None else self._kept.of(pod)
            self._filters.walk(found, state, pod, crowded, mask, keep)
        rejected = found.numbers > FEASIBLE
        rejected &= mask
        walk.begin(found.numbers, found.rejections, rejected)
        wanted &= ~rejected

    def _looks_beyond(
        self, loaded: Loaded, state: CycleState, pod: ClusterPod, nodes: View, crowded: View
    ) -> bool:
        """Whether a plugin's verdict about a node may depend on pods of other nodes.

        It counts pods in a state for all nodes, or what it depends on beside the node's row is
        not the same with further pods on other nodes, or not known.
        """
        if isinstance(loaded.plugin, PreFilterExtensions):
            return True
        ask, key_of = self._calls.ask, cast(Filtering, loaded.plugin).filter_reuse_key
        key = ask(loaded, Point.FILTER, key_of, state, pod, nodes)
        return key is None or key != ask(loaded, Point.FILTER, key_of, state, pod, crowded)

    def _beside(
        self,
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        row: int,
        rivals: Sequence[ClusterPod],
    ) -> _Beside:
        """A node on which the pods that are nominated to it run already."""
        name, what_if, imagined = nodes.node(row).name, nodes.what_if(), state.clone()
        for rival in rivals:
            what_if.add(rival, name)
            self._pre_filtering.add_pod(imagined, pod, rival, what_if.view(), row)
        return _Beside(what_if.view(), imagined)
