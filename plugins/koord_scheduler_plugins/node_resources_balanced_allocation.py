"""NodeResourcesBalancedAllocation: nodes are better the closer the use of their resources is.

Source: Kubernetes, plugins/noderesources/balanced_allocation.go.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Self

from koord_scheduler.plugin import (
    Balanced,
    ClusterPod,
    CycleState,
    Fault,
    FreeTable,
    Handle,
    Mask,
    NodeInfo,
    PreScorePlugin,
    ResourceSpec,
    ScorePlugin,
    Scores,
    Status,
    VectorScorePlugin,
    View,
    duplicate,
    invalid,
    pod_amount,
    takes_args,
    use_of_all,
    use_of_node,
    weighted,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeResourcesBalancedAllocationArgs:
    """The resources whose use is compared.

    Source: Kubernetes, kube-scheduler/config/v1 and its validation.
    """

    resources: tuple[ResourceSpec, ...] = ()

    def complete(self) -> Self:
        return replace(self, resources=weighted(self.resources))

    def validate(self) -> Iterator[Fault]:
        seen: set[str] = set()
        for at, one in enumerate(self.resources):
            if one.name in seen:
                yield duplicate(("resources", at, "name"), one.name)
            seen.add(one.name)
            if one.weight != 1:
                yield invalid(("resources", at, "weight"), one.weight, "wanted 1")


@takes_args(NodeResourcesBalancedAllocationArgs)
class NodeResourcesBalancedAllocation(PreScorePlugin, ScorePlugin, VectorScorePlugin):
    """Scores nodes by how equal the shares of their resources are that would be requested."""

    def __init__(self, args: NodeResourcesBalancedAllocationArgs, handle: Handle) -> None:
        self._resources = tuple(one.name for one in args.resources)
        self._scorer = Balanced()
        self._table = FreeTable()

    def pre_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Status | None:
        """A pod that requests nothing balances nothing; all such would go to one node."""
        asked = any(pod_amount(pod, name, nonzero=False) for name in self._resources)
        return None if asked else Status.skip()

    def pre_score_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def score_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        view, row = node.view, node.row
        uses = [use_of_node(pod, view, row, name, nonzero=False) for name in self._resources]
        return self._scorer.of_node(uses)

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        uses = [
            use_of_all(pod, nodes, name, nonzero=False, table=self._table)
            for name in self._resources
        ]
        return self._scorer.of_all(uses, len(nodes))
