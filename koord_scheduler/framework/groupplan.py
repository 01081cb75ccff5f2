"""Plans for pods that must be placed together, as plugins ask for them and get them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.calls import LoadedPlugins
from koord_scheduler.framework.interfaces import Plugin
from koord_scheduler.framework.status import Diagnosis, NodeStatuses, Status
from koord_scheduler.framework.types import NodeInfo


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

    def members(self, pod: ClusterPod) -> Sequence[ClusterPod] | Status:
        """Return the pods that are placed with a pod; see PodGroupPlugin. Itself: it is alone.

        Raises:
            ExtensionPointError: a plugin has failed.
        """

    def plan_members(self, pod: ClusterPod, nodes: View) -> GroupPlan | NoGroupPlan | Status:
        """Plan these pods on the nodes of a view, such as a what-if; a rejection: it cannot be.

        Raises:
            ExtensionPointError: a plugin has failed.
        """


class PodGroupPlugin(Plugin, ABC):
    """Knows which pods are placed together. For plugins that make room for all of them at once."""

    @abstractmethod
    def group_members(self, pod: ClusterPod) -> Sequence[ClusterPod] | Status:
        """Return the pods without which none of a pod's group is placed, it among them.

        Only itself: it has no group, or is placed alone. A rejection: they are too few now.
        """

    @abstractmethod
    def plan_group(self, pod: ClusterPod, nodes: View) -> GroupPlan | NoGroupPlan | Status:
        """Plan these pods by the rules of their group, on whatever nodes. Nothing is changed."""


class PlannedReservePlugin(Plugin, ABC):
    """Chooses in Reserve what a pod holds, and can say it beforehand."""

    @abstractmethod
    def planned_annotations(self, pod: ClusterPod, node: NodeInfo) -> Mapping[str, str]:
        """Return the annotations that Reserve would set on a pod, which is not on the node yet.

        Empty: none, also where Reserve would reject it. Nothing is changed.
        """


class PlannedReserve:
    """The annotations that Reserve would set on pods that a what-if places one after the other.

    An account reads from a pod what it holds, such as devices. In a what-if no Reserve is called,
    so its plugin says what would be written; the pods after it see what is left. Without such
    plugins nothing is asked.
    """

    def __init__(self, plugins: LoadedPlugins) -> None:
        self._calls = plugins.calls
        self._plugins = [
            (plugins.loaded(name), plugin)
            for name, plugin in plugins.plugins.items()
            if isinstance(plugin, PlannedReservePlugin)
        ]

    def placed(self, pod: ClusterPod, nodes: View, node: str) -> ClusterPod:
        """Return a pod as it would be on a node of a view.

        Raises:
            ExtensionPointError: a plugin has failed.
        """
        row = nodes.row(node) if self._plugins else None
        if row is None:
            return pod
        annotations = dict(pod.annotations)
        for loaded, plugin in self._plugins:
            work = partial(plugin.planned_annotations, pod, NodeInfo(nodes, row))
            annotations.update(self._calls.ask(loaded, Point.RESERVE, work))
        found = tuple(sorted(annotations.items()))
        return pod if found == pod.annotations else replace(pod, annotations=found)
