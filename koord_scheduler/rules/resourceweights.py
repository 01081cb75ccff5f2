"""Resources with weights, as arguments of plugins name them.

Source: Kubernetes, kube-scheduler/config/v1 ResourceSpec.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceSpec:
    """A resource that counts, and how much."""

    name: str
    weight: int = 0  # 0 is 1


CPU_AND_MEMORY = (ResourceSpec(name="cpu", weight=1), ResourceSpec(name="memory", weight=1))


def weighted(resources: Iterable[ResourceSpec]) -> tuple[ResourceSpec, ...]:
    """The resources with their defaults: of none at all cpu and memory, of a weight 1."""
    found = tuple(replace(one, weight=one.weight or 1) for one in resources)
    return found or CPU_AND_MEMORY
