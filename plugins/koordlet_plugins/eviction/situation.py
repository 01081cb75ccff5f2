"""The inputs of one round of an evicting plugin."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from koord.api.nodes.node import Node
from koord.api.pods.pod import Pod
from koord.api.slo.strategies import ResourceThreshold
from koordlet.plugin import MetricCache, PodMeta, keys
from koordlet.plugin.publishing import Kind
from koordlet_plugins.eviction.awaitedvictim import UsageSample


class UsageSource(NamedTuple):
    """The series of a resource's usage in the metric cache; scale: amounts per unit of them."""

    cache: MetricCache
    node: Kind[[], tuple[()]]
    pods: Kind[[str], keys.PodKey]
    scale: int = 1

    def of_node(self) -> UsageSample | None:
        """The node's usage; None: no recent sample."""
        used, newest = self.cache.last(self.node), self.cache.newest(self.node)
        return UsageSample(used * self.scale, newest.boot) if used is not None and newest else None


@dataclass(frozen=True)
class Situation:
    """The strategy, the node and its pods as they are now."""

    slo: ResourceThreshold
    node: Node
    metas: tuple[PodMeta, ...]
    source: UsageSource
    under_way: frozenset[str]  # features that have begun to evict and have not finished
    since: float  # seconds since boot, at which the latest victim was gone

    @property
    def pods(self) -> Iterator[Pod]:
        """The pods' API objects."""
        return (meta.pod for meta in self.metas)

    @cached_property
    def usage(self) -> dict[str, float]:
        """Usage by pod UID, in the unit of the metric; only pods with a recent sample."""
        return {
            uid: used for (uid,), used in self.source.cache.last_values(self.source.pods).items()
        }

    def measured(self) -> list[Pod]:
        """The pods whose usage is known."""
        return [pod for pod in self.pods if pod.uid in self.usage]

    def amount(self, pod: Pod) -> int:
        """A pod's usage as an amount; 0 when it is not known."""
        return math.trunc(self.usage.get(pod.uid, 0.0) * self.source.scale)
