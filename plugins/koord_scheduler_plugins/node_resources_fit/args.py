"""Arguments of NodeResourcesFit.

Source: Kubernetes, kube-scheduler/config/v1 NodeResourcesFitArgs and its validation.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

from koord.api.labelselector import LabelSelector, check_selector
from koord_scheduler.plugin import (
    MAX_NODE_SCORE,
    Fault,
    FieldPath,
    KoordError,
    LeastAllocated,
    MostAllocated,
    RequestedToCapacityRatio,
    ResourceSpec,
    Scorer,
    invalid,
    required,
    unsupported,
    weighted,
)

LEAST, MOST, RATIO = "LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"
_MOST_POINTS_SCORE = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class UtilizationShapePoint:
    """A point of the line from use to score."""

    utilization: int  # percent of what is allocatable
    score: int = 0  # 0 to 10


@dataclass(frozen=True, kw_only=True, slots=True)
class RatioParam:
    """The line of RequestedToCapacityRatio."""

    shape: tuple[UtilizationShapePoint, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoringStrategy:
    """How nodes are scored."""

    type: str = ""
    resources: tuple[ResourceSpec, ...] = ()
    requested_to_capacity_ratio: RatioParam | None = None

    def scorer(self) -> Scorer:
        """The formula of this strategy."""
        weights = [one.weight for one in self.resources]
        if self.type == MOST:
            return MostAllocated(weights)
        if self.type == RATIO and self.requested_to_capacity_ratio is not None:
            factor = MAX_NODE_SCORE // _MOST_POINTS_SCORE
            shape = self.requested_to_capacity_ratio.shape
            points = [(one.utilization, one.score * factor) for one in shape]
            return RequestedToCapacityRatio(points, weights)
        return LeastAllocated(weights)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeResourcesFitArgs:
    """Which resources are not looked at, and how nodes are scored."""

    ignored_resources: tuple[str, ...] = ()  # extended ones
    ignored_resource_groups: tuple[str, ...] = ()  # prefixes of extended ones, such as example.com
    scoring_strategy: ScoringStrategy | None = None

    def complete(self) -> Self:
        strategy = self.scoring_strategy or ScoringStrategy(type=LEAST)
        strategy = replace(strategy, resources=weighted(strategy.resources))
        return replace(self, scoring_strategy=strategy)

    def validate(self) -> Iterator[Fault]:
        for at, name in enumerate(self.ignored_resources):
            yield from _check_name(name, ("ignoredResources", at))
        for at, group in enumerate(self.ignored_resource_groups):
            if "/" in group:
                yield invalid(("ignoredResourceGroups", at), group, "wanted a name without /")
            else:
                yield from _check_name(group, ("ignoredResourceGroups", at))
        if self.scoring_strategy is not None:
            yield from _check_strategy(self.scoring_strategy, ("scoringStrategy",))


def _check_name(name: str, path: FieldPath) -> Iterator[Fault]:
    try:
        check_selector(LabelSelector({name: ""}), "")
    except KoordError:
        yield invalid(path, name, "wanted a name such as example.com/gpu")


def _check_strategy(found: ScoringStrategy, path: FieldPath) -> Iterator[Fault]:
    if found.type not in (LEAST, MOST, RATIO):
        yield unsupported((*path, "type"), found.type, (LEAST, MOST, RATIO))
    for at, one in enumerate(found.resources):
        if not 0 < one.weight <= 100:
            yield invalid((*path, "resources", at, "weight"), one.weight, "wanted 1 to 100")
    below = (*path, "requestedToCapacityRatio")
    if found.type == RATIO:
        if found.requested_to_capacity_ratio is None:
            yield required(below, f"it is needed when type is {RATIO}")
        else:
            yield from _check_shape(found.requested_to_capacity_ratio.shape, (*below, "shape"))
    elif found.requested_to_capacity_ratio is not None:
        yield invalid(below, found.type, f"wanted it only when type is {RATIO}")


def _check_shape(shape: tuple[UtilizationShapePoint, ...], path: FieldPath) -> Iterator[Fault]:
    if not shape:
        yield required(path, "at least one point is needed")
    for at, point in enumerate(shape):
        if at and shape[at - 1].utilization >= point.utilization:
            wanted = "wanted points in ascending order"
            yield invalid((*path, at, "utilization"), point.utilization, wanted)
        if not 0 <= point.utilization <= 100:
            yield invalid((*path, at, "utilization"), point.utilization, "wanted 0 to 100")
        if not 0 <= point.score <= _MOST_POINTS_SCORE:
            yield invalid((*path, at, "score"), point.score, "wanted 0 to 10")
