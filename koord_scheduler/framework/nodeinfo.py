"""One node of a view, as the plain form of a plugin gets it."""

from collections.abc import Iterator, Mapping

from koord.cluster.facts import ClusterNode, ClusterPod
from koord.cluster.view import View


class NodeInfo:
    """A row of a view: the node, its pods and amounts. Read-only, like the view."""

    __slots__ = ("row", "view")

    def __init__(self, view: View, row: int) -> None:
        self.view = view
        """All nodes, for what depends on others."""
        self.row = row

    @property
    def node(self) -> ClusterNode:
        return self.view.node(self.row)

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def labels(self) -> Mapping[str, str]:
        return self.node.labels

    @property
    def pods(self) -> tuple[ClusterPod, ...]:
        """Its pods, finished ones too, and those that are assumed to be there."""
        return self.view.pods(self.row)

    def allocatable(self, resource: str) -> int:
        """Milli-cores, bytes, pods, or units of what it is; 0: it has none."""
        column = self.view.resources.get(resource)
        return 0 if column is None else self.view.allocatable_of(self.row, column)

    def requested(self, resource: str) -> int:
        """The sum over its pods that are not finished; of "pods", their number."""
        column = self.view.resources.get(resource)
        return 0 if column is None else self.view.requested_of(self.row, column)

    def nonzero_requested(self) -> tuple[int, int]:
        """Milli-cores and bytes, where a container that requests none counts with a default."""
        return self.view.nonzero_requested_of(self.row)

    def free(self, resource: str) -> int:
        """What is allocatable and not requested; below zero on a node that is overcommitted."""
        return self.allocatable(resource) - self.requested(resource)

    def __repr__(self) -> str:
        return f"NodeInfo({self.name})"


def nodes_of(view: View) -> Iterator[NodeInfo]:
    """All nodes of a view, in the order of its rows."""
    return (NodeInfo(view, row) for row in range(len(view)))
