"""NUMA admission: which NUMA nodes of a node a pod gets, by the hints of several plugins.

Source: Koordinator, pkg/scheduler/frameworkext/topologymanager; Kubernetes,
pkg/kubelet/cm/topologymanager.

"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import combinations, product
from types import MappingProxyType

from koord.api.nodetopology import NUMATopologyPolicy
from koord.cluster.facts import ClusterPod
from koord.component.plugins.registry import PluginError
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.calls import ExtensionPointError, Loaded, LoadedPlugins
from koord_scheduler.framework.interfaces import Plugin
from koord_scheduler.framework.status import SUCCESS, CycleState, Status, status_of
from koord_scheduler.framework.types import NodeInfo

MAX_TRIED_NODES = 4  # of a machine on which all sets of NUMA nodes are tried
MAX_NUMA_NODES = 64  # of a node; those of higher numbers are left out
MAX_COMBINATIONS = 4096  # of hints that are not all preferred, looked at for one pod on one node


class NUMANodeUse(StrEnum):
    """Use of a NUMA node by pods, for pods that want NUMA nodes of their own."""

    IDLE = "idle"  # nothing
    SINGLE = "single"  # only pods that are on this NUMA node alone
    SHARED = "shared"  # a pod that is on several NUMA nodes


@dataclass(frozen=True, slots=True)
class NUMATopologyHint:
    """NUMA nodes of which a resource could come."""

    nodes: frozenset[int] | None  # None: any
    preferred: bool = True  # there is no better way for this resource
    score: int = 0  # of as many NUMA nodes those with the highest sum over all hints win


Hints = Mapping[str, Sequence[NUMATopologyHint] | None]
"""Possible hints by resource; None: any NUMA nodes will do; empty: no NUMA nodes will do.

Hints of fewer NUMA nodes come first, and those of as many in the order of their numbers.
"""

Reasons = tuple[str, ...]
IsExclusive = Callable[[frozenset[int]], bool]
"""Whether a pod could have exactly these NUMA nodes, as far as other pods are concerned."""

_Mask = int
_Option = tuple[_Mask | None, bool, int]  # mask (None: any), preferred, score
_SEPARATORS = {
    NUMATopologyPolicy.RESTRICTED: " & ",
    NUMATopologyPolicy.SINGLE_NUMA_NODE: ",",
}


def merge_hints(
    providers: Sequence[Hints],
    numa_nodes: Collection[int],
    policy: NUMATopologyPolicy,
    is_exclusive: IsExclusive | None = None,
) -> NUMATopologyHint | Reasons:
    """Return the best NUMA nodes that all hints have in common; reasons: the policy allows none.

    Of each resource of each provider one hint counts. Preferred are NUMA nodes that all hints name
    and prefer; then fewer are better, then a higher score, then lower numbers. Without any in
    common it is all of the node, not preferred. With is_exclusive only NUMA nodes that it allows
    are preferred. BestEffort refuses nothing.
    """
    every = _mask(numa_nodes)
    lists, impossible, summaries = _options(providers)
    if impossible and policy is not NUMATopologyPolicy.BEST_EFFORT:
        return tuple(impossible)
    nothing = NUMATopologyHint(frozenset(numa_nodes), preferred=False)
    if impossible:
        return nothing
    single = policy is NUMATopologyPolicy.SINGLE_NUMA_NODE
    found = _preferred(lists, every, is_exclusive, single=single)
    if found is not None:
        mask, score = found
        any_will_do = single and mask == every
        return NUMATopologyHint(None if any_will_do else _nodes(mask), score=score)
    if policy is NUMATopologyPolicy.BEST_EFFORT:
        return _compromise(lists, every) or nothing
    return (f"Unaligned NUMA Hint cause {_SEPARATORS[policy].join(sorted(summaries))}",)


def exclusive_check(required: bool, uses: Mapping[int, NUMANodeUse]) -> IsExclusive | None:
    """Return the check of a pod that requires NUMA nodes of its own; None: it does not.

    One NUMA node is its own unless a pod has it together with others; several are unless a pod has
    one of them alone. uses: of each NUMA node; one that is not there is idle.
    """
    if not required:
        return None

    def is_exclusive(nodes: frozenset[int]) -> bool:
        wrong = NUMANodeUse.SHARED if len(nodes) == 1 else NUMANodeUse.SINGLE
        return all(uses.get(node) is not wrong for node in nodes)

    return is_exclusive


def mask_text(nodes: Collection[int] | None) -> str:
    """NUMA nodes as Koordinator and the kubelet print them: "01" is the first of two."""
    if nodes is None:
        return "<nil>"
    mask = _mask(nodes)
    width = next((shift + 2 for shift in range(62, 0, -2) if mask > 1 << shift), 2)
    return f"{mask:0{width}b}"


def _options(providers: Sequence[Hints]) -> tuple[list[list[_Option]], list[str], list[str]]:
    """The hints of each resource, why some have none, and a summary of each that has some."""
    lists: list[list[_Option]] = []
    impossible, summaries = [], []
    for hints in providers:
        if not hints:
            lists.append([(None, True, 0)])
        for resource, found in sorted(hints.items()):
            if found is None:
                lists.append([(None, True, 0)])
            elif not found:
                impossible.append(f"Unsatisfied NUMA {resource}")
            else:
                lists.append([(_maybe_mask(one), one.preferred, one.score) for one in found])
                summaries.append(_summary(resource, found))
    return lists, impossible, summaries


def _summary(resource: str, hints: Sequence[NUMATopologyHint]) -> str:
    preferred = " ".join(mask_text(one.nodes) for one in hints if one.preferred)
    among = " ".join(mask_text(one.nodes) for one in hints)
    return f"{resource} prefer [{preferred}] among [{among}]"


def _preferred(
    lists: Sequence[Sequence[_Option]],
    every: _Mask,
    is_exclusive: IsExclusive | None,
    *,
    single: bool,
) -> tuple[_Mask, int] | None:
    """The best NUMA nodes that all resources prefer, and their score.

    All of them must name the same: so each mask is looked at once, not each combination of hints.
    """
    tables = [_preferred_scores(options, single=single) for options in lists]
    if not all(tables):
        return None
    candidates = dict.fromkeys(mask for table in tables for mask in table if mask is not None)
    if all(None in table for table in tables):
        candidates[every] = None
    best: tuple[_Mask, int] | None = None
    for mask in candidates:
        if mask & every != mask or not mask:
            continue
        if not all(mask in table or None in table for table in tables):
            continue
        if is_exclusive is not None and not is_exclusive(_nodes(mask)):
            continue
        score = sum(table.get(mask, 0) for table in tables)
        if best is None or _is_better((mask, score), best):
            best = mask, score
    return best


def _preferred_scores(options: Sequence[_Option], *, single: bool) -> dict[_Mask | None, int]:
    """The preferred hints of a resource: the highest score by mask."""
    found: dict[_Mask | None, int] = {}
    for mask, preferred, score in options:
        if preferred and not (single and mask is not None and mask.bit_count() != 1):
            found[mask] = max(score, found.get(mask, score))
    return found


def _compromise(lists: Sequence[Sequence[_Option]], every: _Mask) -> NUMATopologyHint | None:
    """The best NUMA nodes in common of hints that are not all preferred; None: all of the node."""
    if math.prod(map(len, lists)) > MAX_COMBINATIONS:
        return None
    best, satisfied = (every, 0), True
    for mask, widest, score in _combinations(lists, every):
        if mask and _is_better((mask, score), best):
            best, satisfied = (mask, score), widest == mask.bit_count()
    if not satisfied:
        return None
    return NUMATopologyHint(_nodes(best[0]), preferred=False, score=best[1])


def _combinations(
    lists: Sequence[Sequence[_Option]], every: _Mask
) -> Iterator[tuple[_Mask, int, int]]:
    """Yield of each combination the mask in common, the widest count, and the score."""
    for chosen in product(*lists):
        common, widest = every, 0
        for mask, _, _ in chosen:
            if mask is not None:
                common &= mask
                widest = max(widest, mask.bit_count())
        score = sum(score for mask, _, score in chosen if mask == common)
        yield common, widest or common.bit_count(), score


def _is_better(first: tuple[_Mask, int], second: tuple[_Mask, int]) -> bool:
    """Whether a mask and its score win against those of an earlier combination."""
    size, other = first[0].bit_count(), second[0].bit_count()
    if size != other:
        return size < other
    return first[0] < second[0] or first[1] > second[1]


def _maybe_mask(hint: NUMATopologyHint) -> _Mask | None:
    return None if hint.nodes is None else _mask(hint.nodes)


def _mask(nodes: Collection[int]) -> _Mask:
    found = 0
    for node in nodes:
        if 0 <= node < MAX_NUMA_NODES:
            found |= 1 << node
    return found


def _nodes(mask: _Mask) -> frozenset[int]:
    return frozenset(at for at in range(mask.bit_length()) if mask >> at & 1)


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
        self.numa_nodes: tuple[int, ...] = ()  # of the node that is being looked at
        self.by_node: dict[str, tuple[NUMATopologyHint, object]] = {}
        """With the view where the node is altered: the next step of a what-if is another one."""

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

        What was chosen for a node in this cycle is chosen again, as in Reserve after Filter; in a
        what-if only while the same pods are there.
        exclusive: the pod requires NUMA nodes of its own, where uses says what others have; those
        that are missing are idle. Returns Success, a rejection, or Error where a plugin has failed.
        """
        known = self._affinities(state)
        known.numa_nodes = tuple(sorted(numa_nodes))
        try:
            affinity, seen_in = known.by_node.get(node.name, (None, None))
            seen = node.view if node.row in node.view.altered else None
            if affinity is None or (seen is not None and seen is not seen_in):
                check = exclusive_check(exclusive, uses)
                found = self._choose(state, pod, node, numa_nodes, policy, check)
                if isinstance(found, Status):
                    return found
                affinity = found
            status = self._allocate(state, affinity, pod, node)
        except ExtensionPointError as err:
            return err.status
        if status.ok:
            known.by_node[node.name] = affinity, seen
        return status

    def affinity(self, state: CycleState, node: str) -> NUMATopologyHint | None:
        """Return the affinity that was chosen for a node in this cycle; None: none."""
        return self._affinities(state).by_node.get(node, (None, None))[0]

    def choices(self, state: CycleState) -> Iterator[frozenset[int]]:
        """Yield sets of the NUMA nodes of the node that is being admitted, the smallest first.

        For providers that try each. Of more than MAX_TRIED_NODES it is only single ones.
        """
        nodes = self._affinities(state).numa_nodes
        sizes = range(1, len(nodes) + 1 if len(nodes) <= MAX_TRIED_NODES else 2)
        return (frozenset(one) for size in sizes for one in combinations(nodes, size))

    def with_affinity(self, state: CycleState, node: NodeInfo, nodes: frozenset[int]) -> CycleState:
        """Return the state of a what-if in which these NUMA nodes of a node are chosen."""
        found = state.clone()
        self._affinities(found).by_node[node.name] = NUMATopologyHint(nodes), None
        return found

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
