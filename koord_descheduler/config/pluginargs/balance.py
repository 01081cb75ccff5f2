"""Arguments of CustomPriority, FragmentationAware and ScaleDownBinPack.

Source: Koordinator, CustomPriorityArgs, FragmentationAwareArgs, ScaleDownBinPackArgs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from koord.api.labelselector import LabelSelector
from koord.component.config.faults import Fault, FieldPath, Key, invalid, required
from koord.component.config.typed import Int32
from koord_descheduler.config.pluginargs.parts import (
    Namespaces,
    PodSelector,
    check_label_selector,
    check_namespaces,
    check_pod_selectors,
    check_unique,
)

_RESOURCES = ("cpu", "memory")


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

    def validate(self) -> Iterator[Fault]:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class FragmentationAwareArgs:
    """Pods leave nodes whose resources are requested unevenly."""

    paused: bool = False  # do nothing
    dry_run: bool = False  # decide, but evict nothing
    node_selector: LabelSelector | None = None  # nodes that are looked at; not set: all
    evictable_namespaces: Namespaces | None = None  # pods that may go; not set: all
    pod_selectors: tuple[PodSelector, ...] = ()  # pods that may go match one of them; none: all
    node_fit: bool = True  # a pod goes only if another node can take it
    resources: tuple[str, ...] = _RESOURCES  # names of the resources that are compared
    imbalance_threshold: float = 0.15  # deviation of requested shares above which a node counts
    min_improvement_threshold: float = 0.02  # a pod goes only if the deviation shrinks by more

    def complete(self) -> Self:
        """Give an empty list of resources its default."""
        return replace(self, resources=self.resources or _RESOURCES)

    def validate(self) -> Iterator[Fault]:
        """Return the faults."""
        yield from check_unique(("resources",), self.resources)
        for key, value in (
            ("imbalanceThreshold", self.imbalance_threshold),
            ("minImprovementThreshold", self.min_improvement_threshold),
        ):
            if value < 0:
                yield invalid((key,), value, "wanted 0 or more")
        yield from check_namespaces(("evictableNamespaces",), self.evictable_namespaces)
        yield from check_label_selector(("nodeSelector",), self.node_selector)
        yield from check_pod_selectors(self.pod_selectors)


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

    def validate(self) -> Iterator[Fault]:
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
