"""Arguments of NodeNUMAResource."""

from collections.abc import Iterator
from dataclasses import dataclass

from koord.api.gojson import wire
from koord.api.nodetopology import BindPolicy
from koord.plugin.args import FieldError, invalid
from koord_scheduler.plugin.vector import ResourceSpec
from koord_scheduler_plugins.node_numa_resource.allocation import AmountScorer

_DEFAULT_RESOURCES = (ResourceSpec(name="cpu", weight=1), ResourceSpec(name="memory", weight=1))


@dataclass(frozen=True, kw_only=True, slots=True)
class NUMAScoringStrategy:
    """How amounts are scored."""

    type: str = "LeastAllocated"
    resources: tuple[ResourceSpec, ...] = _DEFAULT_RESOURCES


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeNUMAResourceArgs:
    """Policies of pods that name none, and scores."""

    default_cpu_bind_policy: str = wire("defaultCPUBindPolicy", "FullPCPUs")
    scoring_strategy: NUMAScoringStrategy | None = NUMAScoringStrategy()
    numa_scoring_strategy: NUMAScoringStrategy | None = NUMAScoringStrategy()

    def validate(self) -> Iterator[FieldError]:
        if self.default_cpu_bind_policy not in ("", *BindPolicy):
            text = "must specified CPU bind policy FullPCPUs or SpreadByPCPUs"
            yield invalid(("defaultCPUBindPolicy",), self.default_cpu_bind_policy, text)
        for key, name, strategy in (
            ("scoringStrategy", "scoring", self.scoring_strategy),
            ("numaScoringStrategy", "NUMA scoring", self.numa_scoring_strategy),
        ):
            if strategy is None:
                yield invalid((key,), None, f"{name} strategy must be specified")
            else:
                yield from _wrong(key, name.lower(), strategy)


def _wrong(key: str, name: str, strategy: NUMAScoringStrategy) -> Iterator[FieldError]:
    if strategy.type not in ("LeastAllocated", "MostAllocated"):
        text = f"{name} strategy {strategy.type} is not supported"
        yield invalid((key, "type"), strategy.type, text)
    for number, each in enumerate(strategy.resources):
        if not 1 <= each.weight <= 100:
            text = f"resource weight of {each.name} not in valid range (0, 100]"
            yield invalid((key, f"resources[{number}]", "weight"), each.weight, text)


def amount_scorer(strategy: NUMAScoringStrategy | None) -> AmountScorer:
    """Return what scores amounts by a strategy."""
    found = strategy or NUMAScoringStrategy()
    return AmountScorer(found.resources, found.type == "MostAllocated")
