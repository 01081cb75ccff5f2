"""Bounds the evictions of one cycle, of all profiles together.

Source: Koordinator, pkg/descheduler/evictions.
"""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from koord.cluster.facts import ClusterPod


class Limit(StrEnum):
    """The limit that denied an eviction."""

    NODE = "node"
    NAMESPACE = "namespace"
    TOTAL = "total"


@dataclass(frozen=True, slots=True)
class Ticket:
    """An eviction that was admitted and counted."""

    node: str
    namespace: str
    cycle: int


class EvictionLimiter:
    """Counts evictions per node, per namespace and in total. Belongs to the event loop.

    Check and count are one step: of many evictions under way no more than the limit are admitted.
    """

    def __init__(
        self,
        *,
        per_node: int | None = None,
        per_namespace: int | None = None,
        total: int | None = None,
    ) -> None:
        """The limits are in pods a cycle. None: no limit."""
        self.limit(per_node=per_node, per_namespace=per_namespace, total=total)
        self._nodes: Counter[str] = Counter()
        self._namespaces: Counter[str] = Counter()
        self._total = 0
        self._cycle = 0

    def limit(
        self,
        *,
        per_node: int | None = None,
        per_namespace: int | None = None,
        total: int | None = None,
    ) -> None:
        """Have other limits from now on."""
        self._per_node, self._per_namespace, self._most = per_node, per_namespace, total

    def reset(self) -> None:
        """Begin a cycle: nothing is evicted yet."""
        self._cycle += 1
        self._nodes.clear()
        self._namespaces.clear()
        self._total = 0

    def take(self, pod: ClusterPod) -> Ticket | Limit:
        """Admit and count an eviction, or return the limit that does not allow it."""
        if pod.node and _reached(self._nodes[pod.node], self._per_node):
            return Limit.NODE
        if _reached(self._namespaces[pod.namespace], self._per_namespace):
            return Limit.NAMESPACE
        if _reached(self._total, self._most):
            return Limit.TOTAL
        self._count(pod.node, pod.namespace, 1)
        return Ticket(pod.node, pod.namespace, self._cycle)

    def give_back(self, ticket: Ticket) -> None:
        """Uncount an eviction that did not happen; one of an earlier cycle is forgotten already."""
        if ticket.cycle == self._cycle:
            self._count(ticket.node, ticket.namespace, -1)

    def node_limit_exceeded(self, node: str) -> bool:
        """Whether no further pod of the node may be evicted in this cycle by the node's limit."""
        return _reached(self._nodes[node], self._per_node)

    @property
    def total_limit_exceeded(self) -> bool:
        """Whether no further pod may be evicted in this cycle at all."""
        return _reached(self._total, self._most)

    @property
    def total_evicted(self) -> int:
        """Evictions of this cycle so far, those under way included."""
        return self._total

    def _count(self, node: str, namespace: str, by: int) -> None:
        if node:
            self._nodes[node] += by
        self._namespaces[namespace] += by
        self._total += by


def _reached(count: int, limit: int | None) -> bool:
    return limit is not None and count + 1 > limit
