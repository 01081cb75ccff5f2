"""Filter on nodes with nominated pods: a node must pass with those pods as well."""

from typing import cast

import numpy as np

from koord.cluster.columns import Mask
from koord.cluster.hypothetical import HypotheticalCluster
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.calls import Loaded, PluginCalls
from koord_scheduler.framework.cyclestate import CycleInput
from koord_scheduler.framework.diagnosis import FEASIBLE
from koord_scheduler.framework.handle import HypotheticalNode
from koord_scheduler.framework.interfaces import Filtering, PreFilterExtensions
from koord_scheduler.framework.nodes.adapters import Rows, filter_results
from koord_scheduler.framework.nodes.filtering import Filters, FilterStatuses
from koord_scheduler.framework.nodes.prefiltering import PreFiltering
from koord_scheduler.framework.nodes.resultcache import EquivalenceClass
from koord_scheduler.framework.nominator import Nominator
from koord_scheduler.framework.profile import ProfilePlugins

FEW_NOMINATED = 4  # nodes with nominated pods that are imagined one by one


class NominatedFilter:
    """Filter of one profile, with nominated pods counted. Raises ExtensionPointError."""

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

    def filter(
        self,
        nominated_pods: HypotheticalCluster | None,
        filter_statuses: FilterStatuses,
        cycle: CycleInput,
        wanted: Mask,
        cached: EquivalenceClass | None,
    ) -> None:
        """Filter; a node must also pass with the pods that are nominated to it.

        Where the nominator says that this suffices, it need not pass without them. wanted is not
        changed.
        """
        if nominated_pods is not None:
            wanted = wanted.copy()
            rows = nominated_pods.rows
            rows = rows[wanted[rows]]
            if len(rows) > FEW_NOMINATED:
                self._reject_with_nominated(
                    nominated_pods, rows, filter_statuses, cycle, wanted, cached
                )
            else:
                for row in rows.tolist():
                    node = self._with_nominated(cycle, row, nominated_pods)
                    status = self._filters.row(node.cycle, row)
                    if not status.ok:
                        filter_statuses.reject(row, status)
                        wanted[row] = False
            if self._nominator.suffices:
                passed = rows[wanted[rows]]
                filter_statuses.numbers[passed] = FEASIBLE
                wanted[passed] = False
            if not wanted.any():
                return
        self._filters.filter(filter_statuses, cycle, wanted, cached)

    def _reject_with_nominated(
        self,
        nominated_pods: HypotheticalCluster,
        rows: Rows,
        filter_statuses: FilterStatuses,
        cycle: CycleInput,
        wanted: Mask,
        cached: EquivalenceClass | None,
    ) -> None:
        """Reject nodes that do not pass with the pods that are nominated to them.

        All those pods are imagined at once for the plugins that look at one node at a time. For
        the others each node is imagined alone.
        """
        with_nominated = CycleInput(cycle.state, cycle.pod, nominated_pods.view())
        mask = np.zeros(len(cycle.nodes), np.bool_)
        mask[rows] = True
        active = self._filters.active(cycle.state)
        wide = [one for one in active if self._looks_beyond(one, cycle, with_nominated)]
        found = FilterStatuses(len(cycle.nodes))
        if wide:
            alive, imagined = mask.copy(), dict[int, HypotheticalNode]()
            for loaded in active:
                if loaded not in wide:
                    plugin = cast(Filtering, loaded.plugin)
                    verdicts = self._calls.call(
                        loaded,
                        Point.FILTER,
                        cycle.state,
                        filter_results,
                        plugin,
                        with_nominated,
                        alive.copy(),
                    )
                    found.take(verdicts, loaded, alive)
                    continue
                for row in np.flatnonzero(alive).tolist():
                    node = imagined.get(row)
                    if node is None:
                        node = self._with_nominated(cycle, row, nominated_pods)
                        imagined[row] = node
                    status = self._filters.row_of(loaded, node.cycle, row)
                    if not status.ok:
                        found.reject(row, status)
                        alive[row] = False
        else:
            results = None if cached is None else cached.with_nominated
            self._filters.filter(found, with_nominated, mask, results)
        rejected = found.numbers > FEASIBLE
        rejected &= mask
        filter_statuses.begin(found.numbers, found.rejections, rejected)
        wanted &= ~rejected

    def _looks_beyond(self, loaded: Loaded, cycle: CycleInput, with_nominated: CycleInput) -> bool:
        """Whether a plugin's verdict about a node may depend on pods of other nodes.

        It counts pods in a state for all nodes, or what it depends on beside the node's row is
        not the same with further pods on other nodes, or not known.
        """
        if isinstance(loaded.plugin, PreFilterExtensions):
            return True
        ask, key_of = self._calls.ask, cast(Filtering, loaded.plugin).filter_reuse_key
        keys = (
            ask(loaded, Point.FILTER, key_of, one.state, one.pod, one.nodes)
            for one in (cycle, with_nominated)
        )
        key = next(keys)
        return key is None or key != next(keys)

    def _with_nominated(
        self,
        cycle: CycleInput,
        row: int,
        nominated_pods: HypotheticalCluster,
    ) -> HypotheticalNode:
        """A node on which the pods that are nominated to it run already; others are as they are."""
        found = HypotheticalNode(self._pre_filtering, cycle.state, cycle.pod, cycle.nodes, row)
        found.add(nominated_pods.added(row))
        return found
