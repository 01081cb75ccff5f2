"""CustomPriority: pods move from expensive nodes to cheaper ones.

Nodes belong to levels by their labels. BestEffort moves the pods that fit on a cheaper level;
DrainNode empties a node, or leaves it alone where one of its pods would not fit.

Source: Koordinator, pkg/descheduler/framework/plugins/custompriority.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from koord.api.labelselector import LabelSelector
from koord.plugin import get_logger
from koord.plugin.args import FieldError, FieldPath, invalid, required, takes_args
from koord.plugin.kube import NODES, KubeError
from koord_descheduler.plugin import (
    Action,
    BalancePlugin,
    ClusterNode,
    ClusterPod,
    EvictOptions,
    Findings,
    Handle,
    HypotheticalCluster,
    Namespaces,
    PluginRegistry,
    PodSelector,
    View,
    check_label_selector,
    check_namespaces,
    check_pod_selectors,
    check_unique,
    not_selected,
)


class PriorityMode(StrEnum):
    """How much of a node CustomPriority moves."""

    BEST_EFFORT = "BestEffort"  # the pods that fit elsewhere
    DRAIN_NODE = "DrainNode"  # all pods, or none


@dataclass(frozen=True, kw_only=True, slots=True)
class PriorityLevel:
    """Nodes of one price."""

    name: str = ""  # of the level; unique
    node_selector: LabelSelector | None = None  # its nodes; must be set
    keep_threshold: float | None = None  # percent; has no effect, in Koordinator neither
    reject_threshold: float | None = None  # percent; has no effect, in Koordinator neither


@dataclass(frozen=True, kw_only=True, slots=True)
class CustomPriorityArgs:
    """Pods move from expensive nodes to cheaper ones."""

    paused: bool = False  # do nothing
    dry_run: bool = False  # decide, but evict nothing
    evictable_namespaces: Namespaces | None = None  # pods that may go; not set: all
    node_selector: LabelSelector | None = None  # nodes that are looked at; not set: all
    pod_selectors: tuple[PodSelector, ...] = ()  # pods that may go match one of them; none: all
    node_fit: bool = True  # a pod goes only if another node can take it
    eviction_order: tuple[PriorityLevel, ...] = ()  # from expensive to cheap; two or more
    mode: PriorityMode = PriorityMode.BEST_EFFORT  # single pods or whole nodes
    auto_cordon: bool = False  # make a node unschedulable before it is drained

    def validate(self) -> Iterator[FieldError]:
        """Return the faults."""
        path: FieldPath = ("evictionOrder",)
        if len(self.eviction_order) < 2:
            wanted = "CustomPriority requires at least 2 resource priority levels"
            yield invalid(path, len(self.eviction_order), wanted)
        yield from check_unique(path, [level.name for level in self.eviction_order], "name")
        for index, level in enumerate(self.eviction_order):
            if not level.name:
                yield required((*path, index, "name"))
            if level.node_selector is None:
                yield required((*path, index, "nodeSelector"))
            yield from check_label_selector((*path, index, "nodeSelector"), level.node_selector)
            for key, percent in (
                ("keepThreshold", level.keep_threshold),
                ("rejectThreshold", level.reject_threshold),
            ):
                if percent is not None and not 0 <= percent <= 100:
                    yield invalid((*path, index, key), percent, "wanted 0 to 100 percent")
        yield from check_namespaces(("evictableNamespaces",), self.evictable_namespaces)
        yield from check_label_selector(("nodeSelector",), self.node_selector)
        yield from check_pod_selectors(self.pod_selectors)


MAX_MISSES = 5  # pods in a row that fit nowhere, after which a node is not looked at further
SHOWN = 5  # candidates of a pod

log = get_logger("CustomPriority")


@dataclass(frozen=True, slots=True)
class Level:
    """A level with its nodes, in the order in which they were given."""

    name: str
    nodes: tuple[str, ...]


def levels_of(order: Sequence[PriorityLevel], nodes: Sequence[ClusterNode]) -> list[Level]:
    """Return the levels that have nodes; a node is of the first level whose selector matches."""
    found: dict[str, list[str]] = {level.name: [] for level in order}
    for node in nodes:
        for level in order:
            if level.node_selector is not None and level.node_selector.matches(node.labels):
                found[level.name].append(node.name)
                break
    return [Level(name, tuple(names)) for name, names in found.items() if names]


def eviction_order(pod: ClusterPod) -> tuple[int, int, str, str]:
    """Small pods first: the key by which the pods of a node are sorted."""
    requests = dict(pod.spec.requests)
    return requests.get("cpu", 0), requests.get("memory", 0), pod.namespace, pod.name


@dataclass(slots=True)
class CheaperNodes:
    """The nodes of cheaper levels, the dearest of them first, while pods come to them."""

    view: View
    names: tuple[str, ...]
    node_fit: bool
    _cluster: HypotheticalCluster = field(init=False)
    _rows: list[int] = field(init=False)

    def __post_init__(self) -> None:
        rows = [row for name in self.names if (row := self.view.row(name)) is not None]
        self._cluster, self._rows = HypotheticalCluster(self.view), rows
        self.names = tuple(self.view.node(row).name for row in rows)

    def fitting(self, pod: ClusterPod) -> tuple[str, ...]:
        """Return the nodes that fit a pod after all moves; without node_fit: by resources."""
        mask = self._cluster.fits(pod) if self.node_fit else self._cluster.has_room(pod)
        return tuple(self.names[place] for place in np.flatnonzero(mask[self._rows]))

    def move(self, pod: ClusterPod, target: str) -> None:
        """Let a pod come to one of the nodes."""
        self._cluster.move(pod, self.view.row(target))


@takes_args(CustomPriorityArgs)
class CustomPriority(BalancePlugin):
    """Goes through the levels, the most expensive one first."""

    def __init__(self, args: CustomPriorityArgs | None, handle: Handle) -> None:
        self._args = args or CustomPriorityArgs()
        self._handle = handle
        self._left_out = not_selected(self._args.evictable_namespaces, self._args.pod_selectors)
        self._cordoned: set[str] = set()  # nodes that this plugin has made unschedulable
        self._findings = Findings("", "")  # of the round
        self._round = HypotheticalCluster(handle.services.cluster.view())

    async def balance(self, nodes: Sequence[ClusterNode]) -> None:
        """Evict pods of all levels but the cheapest."""
        if self._args.paused:
            return
        selector = self._args.node_selector
        chosen = [one for one in nodes if selector is None or selector.matches(one.labels)]
        levels = levels_of(self._args.eviction_order, chosen)
        if len(levels) < 2:
            return
        self._findings = Findings(self._handle.profile, self.name)
        self._round = HypotheticalCluster(self._handle.view_with_migrations())
        for at, level in enumerate(levels[:-1]):
            cheaper = tuple(name for later in levels[at + 1 :] for name in later.nodes)
            for node in level.nodes:
                await asyncio.sleep(0)  # others have their turn
                await self._leave(node, level, cheaper)
        self._handle.services.decisions.publish(self._findings)

    async def _leave(self, node: str, level: Level, cheaper: tuple[str, ...]) -> None:
        """Move pods of a node to cheaper nodes."""
        targets = CheaperNodes(self._round.view(), cheaper, self._args.node_fit)
        pods = self._evictable(node)
        if self._args.mode is PriorityMode.DRAIN_NODE:
            await self._drain(node, level, pods, targets)
            return
        self._findings.node(
            node, level.name, f"its pods may move to {len(targets.names)} nodes of cheaper levels"
        )
        await self._move_what_fits(level, pods, targets)

    def _evictable(self, node: str) -> list[ClusterPod]:
        """The pods of a node that may be evicted, in their order; of the others the reason."""
        evictor, found = self._handle.evictor(), []
        for pod in self._handle.list_pods_on_node(node):
            if reason := self._left_out(pod) or self._is_moving(pod) or evictor.reject_reason(pod):
                self._findings.pod(pod, Action.STAY, reason)
            else:
                found.append(pod)
        return sorted(found, key=eviction_order)

    def _is_moving(self, pod: ClusterPod) -> str:
        is_moving = pod.uid in self._handle.services.migrations.by_uid
        return "it is on its way already" if is_moving else ""

    async def _move_what_fits(
        self, level: Level, pods: Sequence[ClusterPod], targets: CheaperNodes
    ) -> None:
        reason = f"evicting from {level.name} priority resource to lower priority resource"
        misses = 0
        for pod in pods:
            if misses == MAX_MISSES:
                text = f"not looked at: {MAX_MISSES} smaller pods in a row fit nowhere"
                self._findings.pod(pod, Action.STAY, text)
                continue
            names = targets.fitting(pod) if self._args.node_fit else ()
            if self._args.node_fit and not names:
                misses += 1
                text = f"it fits none of the {len(targets.names)} cheaper nodes"
                self._findings.pod(pod, Action.STAY, text)
                continue
            misses = 0
            if await self._evict(pod, reason, names) and names:
                self._moved(pod, names[0], targets)

    async def _drain(
        self, node: str, level: Level, pods: Sequence[ClusterPod], targets: CheaperNodes
    ) -> None:
        """Evict all these pods if each has a place; then the node has none of them any more."""
        places = _places(pods, targets)
        missing = pods[len(places)] if len(places) < len(pods) else None
        if missing is not None:
            text = f"the node is not drained: {missing.key} has no place on cheaper nodes"
            self._findings.node(node, level.name, text)
            for pod in pods:
                self._findings.pod(pod, Action.STAY, text)
            return
        self._findings.node(node, level.name, f"{len(pods)} pods move to cheaper nodes")
        reason = f"drain node {node} (sourcePriority={level.name})"
        if pods:
            await self._cordon(node)
        for at, (pod, place) in enumerate(zip(pods, places, strict=True)):
            if not await self._evict(pod, reason, (place,)):
                await self._uncordon(node)
                for left in pods[at + 1 :]:
                    text = f"the drain of the node ended: {pod.key} was not evicted"
                    self._findings.pod(left, Action.STAY, text)
                return
            self._moved(pod, place)

    async def _evict(self, pod: ClusterPod, reason: str, candidates: tuple[str, ...]) -> bool:
        evictor, shown = self._handle.evictor(), candidates[:SHOWN]
        if not evictor.pre_eviction_filter(pod):
            text = "a filter does not let it be evicted now"
            self._findings.pod(pod, Action.REFUSED, text, candidates=shown)
            return False
        done = self._args.dry_run or await evictor.evict(pod, EvictOptions(reason=reason))
        action = Action.EVICT if done else Action.REFUSED
        self._findings.pod(pod, action, reason, candidates=shown)
        return done

    def _moved(self, pod: ClusterPod, target: str, targets: CheaperNodes | None = None) -> None:
        """Count with a pod on its new node from now on."""
        self._round.move(pod, self._round.view().row(target))
        if targets is not None:
            targets.move(pod, target)

    async def _cordon(self, node: str) -> None:
        """Make a node unschedulable if that is wanted. One that is so already is left alone."""
        view = self._round.view()
        row = view.row(node)
        already = row is None or view.node(row).unschedulable
        if not self._args.auto_cordon or self._args.dry_run or self._handle.dry_run or already:
            return
        if await self._set_unschedulable(node, value=True):
            self._cordoned.add(node)

    async def _uncordon(self, node: str) -> None:
        """Take back what _cordon did, in this cycle or in an earlier one."""
        if node in self._cordoned and await self._set_unschedulable(node, value=False):
            self._cordoned.discard(node)

    async def _set_unschedulable(self, node: str, *, value: bool) -> bool:
        client = self._handle.services.client
        try:
            await client.merge_patch(NODES.object(node), {"spec": {"unschedulable": value}})
        except KubeError as err:
            log.warning("node.patch_failed", node=node, unschedulable=value, error=str(err))
            return False
        log.info("node.cordoned" if value else "node.uncordoned", node=node)
        return True


def _places(pods: Sequence[ClusterPod], targets: CheaperNodes) -> list[str]:
    """The first node that can take each pod, up to the first pod that none can take."""
    places: list[str] = []
    for pod in pods:
        names = targets.fitting(pod)
        if not names:
            break
        targets.move(pod, names[0])
        places.append(names[0])
    return places


def register(registry: PluginRegistry) -> None:
    """Register the plugin; called through the entry point."""
    registry.register("CustomPriority", CustomPriority)
