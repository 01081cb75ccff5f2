"""Plans for pods that must be placed together, as plugins ask for them and get them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord_scheduler.framework.diagnosis import Diagnosis, NodeStatuses
from koord_scheduler.framework.status import Status


@dataclass(frozen=True, slots=True)
class FeasibleNodes:
    """The nodes that are feasible for a pod of a group when it is its turn. Read-only."""

    nodes: View  # with those of the group that were placed before it
    mask: Mask  # shape (nodes,)
    best_first: Callable[[], Iterator[str]]  # names by score, which is computed when it is called


NodeOrder = Callable[[ClusterPod, FeasibleNodes], Iterable[str]]
"""Returns which of the feasible nodes to try for a pod, the first one first; none: no way on."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A node for each pod of a group."""

    nodes: Mapping[str, str]  # by namespace/name, in the order in which they are to be placed


@dataclass(frozen=True, slots=True)
class NoGroupPlan:
    """The reason why the pods of a group cannot be placed together."""

    pod: ClusterPod  # for which there was no node, when most of the others had one
    placed: int  # pods that had a node then
    status: Status  # of the search for its node
    diagnosis: Diagnosis
    statuses: NodeStatuses | None  # None: PreFilter has rejected it
    cut: bool = False  # the search was ended before all possibilities were tried


class GroupPlanner(Protocol):
    """Plans groups by the plugins of one profile."""

    def plan(
        self,
        pods: Sequence[ClusterPod],
        nodes: View,
        order: NodeOrder | None = None,
        *,
        dead_ends: int | None = None,
    ) -> GroupPlan | NoGroupPlan:
        """Return nodes for all pods, or why there are none.

        If some way to place them one after the other exists, one is found, unless the time of the
        attempt or a bound on dead ends is over first. Equal pods are placed in the order that is
        given. pods: at least one, none of them on a node. order: None: the best node first.
        dead_ends: that bound; None: the usual one.

        Raises:
            ExtensionPointError: a plugin has failed.
        """
