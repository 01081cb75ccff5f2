"""One node of a what-if: would a pod fit if others left it?"""

from collections.abc import Sequence

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View, WhatIf
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.handle import NodeFilters
from koord_scheduler.framework.status import SUCCESS, Status

_World = tuple[WhatIf, CycleState]


class NodeWhatIf:
    """A node without some of its pods, as all plugins of a profile see it.

    Where other pods are nominated to the node, the pod must fit with them and without them. Raises
    PointFailed where a plugin has failed.
    """

    def __init__(
        self,
        filters: NodeFilters,
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        row: int,
        rivals: Sequence[ClusterPod] = (),
    ) -> None:
        """state: of the cycle, after PreFilter; it is not changed. rivals: nominated pods."""
        self.status: Status = SUCCESS
        """What Filter said the last time."""
        self._filters = filters
        self._pod = pod
        self._row = row
        self._name = nodes.node(row).name
        self._counted = filters.count_pods(state)
        self._worlds: list[_World] = [(nodes.what_if(), state.clone())]
        there = {one.key for one in nodes.pods(row)} if rivals else set()
        missing = [one for one in rivals if one.key not in there]
        if missing:
            crowded = nodes.what_if(), state.clone()
            self._add(crowded, missing)
            self._worlds.insert(0, crowded)

    def remove(self, pods: Sequence[ClusterPod]) -> None:
        """Have pods leave the node."""
        for what_if, state in self._worlds:
            for pod in pods:
                what_if.remove(pod.key, self._name)
                if self._counted:
                    self._filters.remove_pod(state, self._pod, pod, what_if.view(), self._row)

    def add(self, pods: Sequence[ClusterPod]) -> None:
        """Have pods that have left come back."""
        for world in self._worlds:
            self._add(world, pods)

    def fits(self) -> bool:
        """Whether the pod passes Filter on the node as it is now."""
        for what_if, state in self._worlds:
            self.status = self._filters.filter_row(state, self._pod, what_if.view(), self._row)
            if not self.status.ok:
                return False
        return True

    def _add(self, world: _World, pods: Sequence[ClusterPod]) -> None:
        what_if, state = world
        for pod in pods:
            what_if.add(pod, self._name)
            if self._counted:
                self._filters.add_pod(state, self._pod, pod, what_if.view(), self._row)
