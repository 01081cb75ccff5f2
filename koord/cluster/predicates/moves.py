"""Where pods fit while pods move: many questions about one view, each after the moves before it.

Equal pods share what nodes alone decide, so a question costs a few columns.
"""

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import Mask
from koord.cluster.facts import PODS, ClusterPod, LabelSet, PodSpec
from koord.cluster.predicates.fits import RULES, Misfit, fits
from koord.cluster.predicates.podaffinity import is_excluded
from koord.cluster.view import View, WhatIf


class Moves:
    """A cluster in which pods leave their nodes and go to others. Belongs to one thread.

    Only nodes on certain rows are asked about; a mask here has shape (rows,).
    """

    def __init__(self, view: View, rows: NDArray[np.intp]) -> None:
        self._view = view
        self._rows = rows
        self._places = {int(row): place for place, row in enumerate(rows)}
        self._free = (view.allocatable - view.requested).T[:, rows].copy()  # (resources, rows)
        self._settled: dict[tuple[PodSpec, str, tuple[str, ...]], Mask] = {}
        self._excluded: dict[LabelSet, bool] = {}  # whether some pod's anti-affinity means these
        self._what_if: WhatIf = view.what_if()
        self._pending: list[tuple[ClusterPod, int | None]] = []  # moves that what_if lacks

    def fits(self, pod: ClusterPod) -> Mask:
        """Where the pod could run if it left its node, as predicates.fits says it.

        A pod that has moved is not asked about again.
        """
        if self.minds_others(pod):
            return self._fits_among(pod)
        return self._nodes_allow(pod) & self.has_room(pod)

    def has_room(self, pod: ClusterPod) -> Mask:
        """Where there is room for the pod if it left its node, whatever else forbids it there."""
        self._leave(pod)
        room: Mask = self._column(PODS) >= 1
        for name, amount in pod.spec.requests:
            room &= self._column(name) >= amount
        self._leave(pod, times=-1)
        return room

    def move(self, pod: ClusterPod, target: int | None) -> None:
        """Let a pod leave its node for one of the rows, or for a node that is none of them."""
        self._leave(pod)
        if target is not None and not pod.finished:
            self._take(pod, self._places[target], 1)
        self._pending.append((pod, target))

    def _leave(self, pod: ClusterPod, times: int = 1) -> None:
        place = self._places.get(self._view.traits.rows.get(pod.node, -1))
        if place is not None and not pod.finished:
            self._take(pod, place, -times)

    def _take(self, pod: ClusterPod, place: int, times: int) -> None:
        resources = self._view.resources
        self._free[resources[PODS], place] -= times
        for name, amount in pod.spec.requests:
            if name in resources:
                self._free[resources[name], place] -= times * amount

    def _column(self, name: str) -> NDArray[np.int64]:
        column = self._view.resources.get(name)
        return np.zeros(len(self._rows), np.int64) if column is None else self._free[column]

    def minds_others(self, pod: ClusterPod) -> bool:
        """Whether where other pods are matters, and not only what they take.

        With many pods in the cluster, fits takes long then.
        """
        spec = pod.spec
        if spec.host_ports or spec.affinity or spec.anti_affinity or spec.spread:
            return True
        excluded = self._excluded.get(pod.label_set)
        if excluded is None:
            excluded = self._excluded[pod.label_set] = is_excluded(pod, self._view)
        return excluded

    def _nodes_allow(self, pod: ClusterPod) -> Mask:
        """Nodes that the rules about nodes allow."""
        key = pod.spec, pod.namespace, pod.claims
        found = self._settled.get(key)
        if found is None:
            found = np.ones(len(self._view), np.bool_)
            for misfit in _ABOUT_NODES:
                found &= RULES[misfit](pod, self._view)
            found = self._settled[key] = found[self._rows]
        return found

    def _fits_among(self, pod: ClusterPod) -> Mask:
        what_if = self._what_if
        for moved, target in self._pending:
            what_if.remove(moved.key, moved.node)
            if target is not None:
                what_if.add(moved, self._view.node(target).name)
        self._pending.clear()
        what_if.remove(pod.key, pod.node)
        allowed: Mask = fits(pod, what_if.view()).mask[self._rows]
        what_if.add(pod, pod.node)
        return allowed


_ABOUT_NODES = (
    Misfit.UNREAD,
    Misfit.UNSCHEDULABLE,
    Misfit.TAINTS,
    Misfit.NODE_AFFINITY,
    Misfit.VOLUMES,
)
