"""NUMA admission: which NUMA nodes of a node a pod gets, by the hints of several plugins.

Source: Koordinator, pkg/scheduler/frameworkext/topologymanager; Kubernetes,
pkg/kubelet/cm/topologymanager.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import product

from koord.cluster.facts import ClusterPod
from koord.component.plugins.registry import PluginError
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.calls import ExtensionPointError, Loaded, LoadedPlugins
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.interfaces import Plugin
from koord_scheduler.framework.status import SUCCESS, Status, status_of
from koord_scheduler.framework.types import NodeInfo

MAX_COMBINATIONS = 100_000  # of hints that are looked at for one pod on one node

_KEY = "scheduling.koordinator.sh/numa-affinities"


class NUMATopologyPolicy(StrEnum):
    """The alignment of NUMA nodes that a node requires; label numa-topology-policy."""

    BEST_EFFORT = "BestEffort"  # any will do
    RESTRICTED = "Restricted"  # those that all hints prefer
    SINGLE_NUMA_NODE = "SingleNUMANode"  # one


@dataclass(frozen=True, slots=True)
class NUMATopologyHint:
    """NUMA nodes of which a resource could come."""

    nodes: frozenset[int] | None  # None: any
    preferred: bool = True  # there is no better way for this resource
    score: int = 0  # among hints of as many NUMA nodes the highest wins


Hints = Mapping[str, Sequence[NUMATopologyHint] | None]
"""Possible hints by resource; None: any NUMA nodes will do; empty: no NUMA nodes will do."""


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
    ) -> Status:
        """Choose NUMA nodes by all hints, and have all providers allocate there.

        What was chosen for a node in this cycle is chosen again, as in Reserve after Filter.
        Returns Success, a rejection, or Error where a plugin has failed.
        """
        known = self._affinities(state)
        try:
            affinity = known.by_node.get(node.name)
            if affinity is None:
                found = self._choose(state, pod, node, numa_nodes, policy)
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
        best = merge_hints(hints, numa_nodes, policy)
        if best is None:
            return Status.unschedulable("node(s) Unaligned NUMA Hint")
        return best

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


def merge_hints(
    providers: Sequence[Hints], numa_nodes: Collection[int], policy: NUMATopologyPolicy
) -> NUMATopologyHint | None:
    """Return the best NUMA nodes that all hints have in common; None: the policy allows none.

    Of each resource of each provider one hint counts. The result is preferred if all of these are;
    then fewer NUMA nodes are better, then a higher score, then lower numbers. Without any in common
    it is all of the node, not preferred.
    """
    every = frozenset(numa_nodes)
    lists = list(_lists(providers, policy))
    best = NUMATopologyHint(every, preferred=False)
    for number, chosen in enumerate(product(*lists)):
        if number == MAX_COMBINATIONS:
            break
        merged = _merged(chosen, every)
        if merged.nodes and _order(merged) < _order(best):
            best = merged
    if policy is NUMATopologyPolicy.BEST_EFFORT:
        return best
    if not best.preferred:
        return None
    if policy is NUMATopologyPolicy.SINGLE_NUMA_NODE and best.nodes == every:
        return replace(best, nodes=None)  # no resource has a preference
    return best


def _lists(
    providers: Sequence[Hints], policy: NUMATopologyPolicy
) -> Iterator[Sequence[NUMATopologyHint]]:
    """The hints of each resource of each provider."""
    single = policy is NUMATopologyPolicy.SINGLE_NUMA_NODE
    for hints in providers:
        for found in hints.values() or (None,):
            if found is None:
                yield (NUMATopologyHint(None),)
            elif not found:
                yield (NUMATopologyHint(None, preferred=False),)
            elif single:
                yield [
                    one
                    for one in found
                    if one.preferred and (one.nodes is None or len(one.nodes) == 1)
                ]
            else:
                yield found


def _merged(chosen: Sequence[NUMATopologyHint], every: frozenset[int]) -> NUMATopologyHint:
    common = every
    for one in chosen:
        if one.nodes is not None:
            common &= one.nodes
    score = max((one.score for one in chosen if one.nodes == common), default=0)
    return NUMATopologyHint(common, all(one.preferred for one in chosen), score)


def _order(hint: NUMATopologyHint) -> tuple[bool, int, int, int]:
    nodes = hint.nodes or frozenset()
    return not hint.preferred, len(nodes), -hint.score, sum(1 << one for one in nodes)
