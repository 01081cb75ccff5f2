"""NUMA admission: which NUMA nodes of a node a pod gets, by the hints of several plugins.

Source: Koordinator, pkg/scheduler/frameworkext/topologymanager; Kubernetes,
pkg/kubelet/cm/topologymanager.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from functools import partial
from types import MappingProxyType

from koord.cluster.facts import ClusterPod
from koord.component.plugins.registry import PluginError
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.calls import ExtensionPointError, Loaded, LoadedPlugins
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.interfaces import Plugin
from koord_scheduler.framework.status import SUCCESS, Status, status_of
from koord_scheduler.framework.types import NodeInfo
from koord_scheduler.rules.numa import (
    Hints,
    IsExclusive,
    NUMANodeUse,
    NUMATopologyHint,
    NUMATopologyPolicy,
    exclusive_check,
    merge_hints,
)

_KEY = "scheduling.koordinator.sh/numa-affinities"


class NUMATopologyHintProvider(Plugin, ABC):
    """Has a say in NUMA admission. Active in each profile that names the plugin."""

    @abstractmethod
    def pod_topology_hints(
        self, state: CycleState, pod: ClusterPod, node: NodeInfo
    ) -> Hints | Status | None:
        """Return from which NUMA nodes each resource could come; nothing: any; or reject."""

    @abstractmethod
    def allocate(
        self, state: CycleState, affinity: NUMATopologyHint, pod: ClusterPod, node: NodeInfo
    ) -> Status | None:
        """See whether the pod's resources fit into NUMA nodes; keep in the state which they are."""


class _Affinities:
    """Admitted affinities of this cycle, by node. A what-if starts empty: its nodes differ."""

    def __init__(self) -> None:
        self.by_node: dict[str, NUMATopologyHint] = {}

    def clone(self) -> "_Affinities":
        return _Affinities()


class TopologyManager:
    """Admits pods to NUMA nodes, by the providers of a profile in the order of its plugins.

    Nothing of it happens unless a plugin, in Filter or Reserve, asks for it.
    """

    def __init__(self, plugins: LoadedPlugins) -> None:
        self._calls = plugins.calls
        self._providers: tuple[tuple[Loaded, NUMATopologyHintProvider], ...] = tuple(
            (plugins.loaded(name), plugin)
            for name, plugin in plugins.plugins.items()
            if isinstance(plugin, NUMATopologyHintProvider)
        )

    def admit(
        self,
        state: CycleState,
        pod: ClusterPod,
        node: NodeInfo,
        numa_nodes: Collection[int],
        policy: NUMATopologyPolicy,
        *,
        exclusive: bool = False,
        uses: Mapping[int, NUMANodeUse] = MappingProxyType({}),
    ) -> Status:
        """Choose NUMA nodes by all hints, and have all providers allocate there.

        What was chosen for a node in this cycle is chosen again, as in Reserve after Filter.
        exclusive: the pod requires NUMA nodes of its own, where uses says what others have; those
        that are missing are idle. Returns Success, a rejection, or Error where a plugin has failed.
        """
        known = self._affinities(state)
        try:
            affinity = known.by_node.get(node.name)
            if affinity is None:
                check = exclusive_check(exclusive, uses)
                found = self._choose(state, pod, node, numa_nodes, policy, check)
                if isinstance(found, Status):
                    return found
                affinity = found
            status = self._allocate(state, affinity, pod, node)
        except ExtensionPointError as err:
            return err.status
        if status.ok:
            known.by_node[node.name] = affinity
        return status

    def affinity(self, state: CycleState, node: str) -> NUMATopologyHint | None:
        """Return the affinity that was chosen for a node in this cycle; None: none."""
        return self._affinities(state).by_node.get(node)

    def _affinities(self, state: CycleState) -> _Affinities:
        found = state.find(_KEY, _Affinities)
        if found is None:
            found = _Affinities()
            state.write(_KEY, found)
        return found

    def _choose(
        self,
        state: CycleState,
        pod: ClusterPod,
        node: NodeInfo,
        numa_nodes: Collection[int],
        policy: NUMATopologyPolicy,
        is_exclusive: IsExclusive | None,
    ) -> NUMATopologyHint | Status:
        hints: list[Hints] = []
        reasons: list[str] = []
        for loaded, provider in self._providers:
            work = partial(provider.pod_topology_hints, state, pod, node)
            answer = self._calls.call(loaded, Point.FILTER, state, work)
            if answer is None or isinstance(answer, Mapping):
                hints.append(answer or {})
                continue
            status = self._checked(loaded, answer)
            if status.rejected:
                reasons.append(status.message)
            elif not status.ok:
                return status
            else:
                hints.append({})
        if reasons:
            return Status.unschedulable(*reasons)
        best = merge_hints(hints, numa_nodes, policy, is_exclusive)
        return Status.unschedulable(*best) if isinstance(best, tuple) else best

    def _allocate(
        self, state: CycleState, affinity: NUMATopologyHint, pod: ClusterPod, node: NodeInfo
    ) -> Status:
        for loaded, provider in self._providers:
            work = partial(provider.allocate, state, affinity, pod, node)
            status = self._checked(loaded, self._calls.call(loaded, Point.FILTER, state, work))
            if not status.ok:
                return status
        return SUCCESS

    def _checked(self, loaded: Loaded, answer: object) -> Status:
        try:
            return status_of(answer, loaded.name)
        except PluginError as err:
            return self._calls.failed(loaded, Point.FILTER, err)
