"""ScaleDownBinPack: pods are ranked so that a scale-down empties nodes.

Nodes on which other pods than those that may go request little come first. CalculateOnly
writes the rank where a ReplicaSet reads it when it scales down; EvictDirectly evicts by it.

Source: Koordinator, pkg/descheduler/framework/plugins/scaledownbinpack.
"""

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from koord.api.labelselector import LabelSelector
from koord.plugin import get_logger
from koord.plugin.args import FieldError, Int32, Key, invalid, required, takes_args
from koord.plugin.kube import PODS, KubeError
from koord_descheduler.plugin import (
    Action,
    BalancePlugin,
    ClusterNode,
    ClusterPod,
    EvictOptions,
    Findings,
    Handle,
    Namespaces,
    PluginRegistry,
    PodSelector,
    annotation,
    check_label_selector,
    check_namespaces,
    check_pod_selectors,
    check_unique,
    is_deleting,
    is_mirror,
    is_of_daemon_set,
    is_static,
    is_system_critical,
    not_selected,
    reads,
)

_RESOURCES = ("cpu", "memory")


class BinPackStrategy(StrEnum):
    """The effect of ScaleDownBinPack's ranking."""

    CALCULATE_ONLY = "CalculateOnly"  # annotates pods with their deletion cost
    EVICT_DIRECTLY = "EvictDirectly"


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaleDownBinPackArgs:
    """Pods are ranked so that a scale-down empties nodes."""

    paused: bool = False  # do nothing
    strategy: BinPackStrategy = BinPackStrategy.CALCULATE_ONLY  # annotate pods, or evict them
    max_pods_to_evict: Int32 = 0  # successes in one cycle; more than 0 for EvictDirectly
    node_selector: LabelSelector | None = None  # nodes that are looked at; not set: all
    pod_selectors: tuple[PodSelector, ...] = ()  # pods that are ranked match one of them; none: all
    evictable_namespaces: Namespaces | None = None  # pods that are ranked; not set: all
    resources: tuple[str, ...] = _RESOURCES  # names of the resources that count
    resource_weights: Mapping[str, float] | None = None  # of each resource; not set: 1

    def complete(self) -> Self:
        """Give every resource a weight."""
        weights = {**dict.fromkeys(self.resources, 1.0), **(self.resource_weights or {})}
        return replace(self, resource_weights=weights)

    def validate(self) -> Iterator[FieldError]:
        """Return the faults."""
        most = self.max_pods_to_evict
        if most < 0 or (most == 0 and self.strategy is BinPackStrategy.EVICT_DIRECTLY):
            yield invalid(("maxPodsToEvict",), most, "wanted more than 0 with EvictDirectly")
        if not self.resources:
            yield required(("resources",))
        yield from check_unique(("resources",), self.resources)
        for name, weight in (self.resource_weights or {}).items():
            if weight <= 0:
                yield invalid(("resourceWeights", Key(name)), weight, "wanted more than 0")
        yield from check_namespaces(("evictableNamespaces",), self.evictable_namespaces)
        yield from check_label_selector(("nodeSelector",), self.node_selector)
        yield from check_pod_selectors(self.pod_selectors)


DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
HIGHEST_COST = 2**31 - 1  # of pods that should stay
MAX_PATCHES = 500  # in a cycle; the rest follows in the next ones
_NEVER = (is_of_daemon_set, is_mirror, is_static, is_deleting, is_system_critical)

log = get_logger("ScaleDownBinPack")


@dataclass(frozen=True, slots=True)
class Packed:
    """A node with the pods that may go, and the weights of its pods."""

    name: str
    pods: tuple[ClusterPod, ...]  # in the order in which they should go
    stays: float  # weight of the others
    goes: float  # weight of pods

    @property
    def score(self) -> float:
        """How much stays for each part that goes: nodes with a low one are emptied first."""
        if self.goes > 0:
            return self.stays / self.goes
        return math.inf if self.stays > 0 else 0.0


class Weigher:
    """Weighs pods by what they request of their node."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        """weights of resources by name; the others do not count."""
        self._weights = weights

    def weight(self, pod: ClusterPod, node: ClusterNode) -> float:
        """The weighted sum of the shares of the node's allocatable that a pod requests."""
        allocatable = dict(node.allocatable)
        return sum(
            self._weights[name] * amount / allocatable[name]
            for name, amount in pod.spec.requests
            if name in self._weights and allocatable.get(name)
        )

    def pack(
        self, node: ClusterNode, goes: Sequence[ClusterPod], stays: Sequence[ClusterPod]
    ) -> Packed:
        """Return the node with the pods that may go: the heaviest first, then the newest."""

        def order(pod: ClusterPod) -> tuple[float, float, str, str]:
            created = -math.inf if pod.created is None else pod.created
            return -self.weight(pod, node), -created, pod.namespace, pod.name

        return Packed(
            name=node.name,
            pods=tuple(sorted(goes, key=order)),
            stays=math.fsum(self.weight(pod, node) for pod in stays),
            goes=math.fsum(self.weight(pod, node) for pod in goes),
        )


def ranked(nodes: Sequence[Packed]) -> list[Packed]:
    """The nodes in the order in which they should be emptied."""
    return sorted(nodes, key=lambda one: (one.score, len(one.pods), one.name))


@takes_args(ScaleDownBinPackArgs)
@reads(pod_annotations={DELETION_COST: 256})
class ScaleDownBinPack(BalancePlugin):
    """Ranks the pods of all nodes, and annotates or evicts them."""

    def __init__(self, args: ScaleDownBinPackArgs | None, handle: Handle) -> None:
        self._args = (args or ScaleDownBinPackArgs()).complete()
        self._handle = handle
        self._left_out = not_selected(self._args.evictable_namespaces, self._args.pod_selectors)
        weights = self._args.resource_weights or {}
        self._weigher = Weigher({name: weights[name] for name in self._args.resources})

    async def balance(self, nodes: Sequence[ClusterNode]) -> None:
        """Rank, then act as the strategy says; the framework's dry-run only ranks."""
        if self._args.paused:
            return
        findings = Findings(self._handle.profile, self.name)
        packed, kept = await self._look_at(nodes, findings)
        order = ranked(packed)
        for rank, node in enumerate(order):
            findings.node(
                node.name,
                f"rank {rank}",
                f"{len(node.pods)} of its pods may go; what stays requests "
                f"{node.stays:.4f}, what may go {node.goes:.4f}",
                facts={"score": node.score, "stays": node.stays, "goes": node.goes},
            )
        pods = [pod for node in order for pod in node.pods]
        if self._args.strategy is BinPackStrategy.EVICT_DIRECTLY:
            await self._evict(pods, findings)
        else:
            for rank, pod in enumerate(pods):
                findings.pod(pod, Action.STAY, f"its deletion cost is {rank}, its rank")
            await self._annotate(pods, kept)
        self._handle.services.decisions.publish(findings)

    async def _look_at(
        self, nodes: Sequence[ClusterNode], findings: Findings
    ) -> tuple[list[Packed], list[ClusterPod]]:
        """Return the nodes with pods that may go, and pods that are selected but have to stay."""
        evictor, selector = self._handle.evictor(), self._args.node_selector
        packed: list[Packed] = []
        kept: list[ClusterPod] = []
        for node in nodes:
            if selector is not None and not selector.matches(node.labels):
                continue
            await asyncio.sleep(0)  # others have their turn
            goes, stays = [], []
            for pod in self._handle.list_pods_on_node(node.name):
                if reason := self._left_out(pod):
                    stays.append(pod)
                elif reason := evictor.reject_reason(pod):
                    stays.append(pod)
                    if not any(never(pod) for never in _NEVER):
                        kept.append(pod)
                else:
                    goes.append(pod)
                if reason:
                    findings.pod(pod, Action.STAY, reason)
            if goes:
                packed.append(self._weigher.pack(node, goes, stays))
        return packed, kept

    async def _annotate(self, pods: Sequence[ClusterPod], kept: Sequence[ClusterPod]) -> None:
        """Write the deletion costs that differ, at most MAX_PATCHES; the lowest ranks first."""
        if self._handle.dry_run:
            return
        wanted = [*enumerate(pods), *((HIGHEST_COST, pod) for pod in kept)]
        different = [
            (pod, str(cost)) for cost, pod in wanted if annotation(pod, DELETION_COST) != str(cost)
        ]
        failures = 0
        for pod, cost in different[:MAX_PATCHES]:
            failures += not await self._patch(pod, cost)
        if different:
            left = max(len(different) - MAX_PATCHES, 0)
            written = len(different) - left - failures
            log.info("deletion_costs.written", pods=written, failed=failures, left=left)

    async def _patch(self, pod: ClusterPod, cost: str) -> bool:
        client, path = self._handle.services.client, PODS.object(pod.name, namespace=pod.namespace)
        metadata = {"uid": pod.uid, "annotations": {DELETION_COST: cost}}  # of this very pod
        try:
            await client.merge_patch(path, {"metadata": metadata})
        except KubeError as err:
            log.warning("deletion_cost.patch_failed", pod=pod.key, error=str(err))
            return False
        return True

    async def _evict(self, pods: Sequence[ClusterPod], findings: Findings) -> None:
        """Evict in this order, until so many are evicted as the arguments want."""
        evictor, evicted = self._handle.evictor(), 0
        most, options = self._args.max_pods_to_evict, EvictOptions(reason="scale-down binpack")
        for rank, pod in enumerate(pods):
            facts = {"rank": float(rank)}
            if evicted >= most:
                text = f"maxPodsToEvict, {most}, is reached by pods of lower ranks"
                findings.pod(pod, Action.STAY, text, facts=facts)
            elif not evictor.pre_eviction_filter(pod):
                text = "a filter does not let it be evicted now"
                findings.pod(pod, Action.REFUSED, text, facts=facts)
            elif await evictor.evict(pod, options):
                evicted += 1
                findings.pod(pod, Action.EVICT, options.reason, facts=facts)
            else:
                findings.pod(pod, Action.REFUSED, options.reason, facts=facts)


def register(registry: PluginRegistry) -> None:
    """Register the plugin; called through the entry point."""
    registry.register("ScaleDownBinPack", ScaleDownBinPack)
