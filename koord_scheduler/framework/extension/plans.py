"""Plugins that choose the node for others: by a plan, or among those that are feasible.

Source: Koordinator, pkg/scheduler/frameworkext/interface.go.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar, cast

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.component.plugins.errors import PluginError
from koord.util.logs import get_logger
from koord_scheduler.config.points import Point
from koord_scheduler.framework.answers import status_of
from koord_scheduler.framework.calls import Loaded, PointFailed
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.extension.transformers import Subject
from koord_scheduler.framework.interfaces import Plugin
from koord_scheduler.framework.profiles.profile import ProfilePlugins
from koord_scheduler.framework.results import PreFilterResult
from koord_scheduler.framework.status import Code, Status

P = TypeVar("P", bound=Plugin)

log = get_logger("koord_scheduler.framework")


class FindOneNodePlugin(Plugin, ABC):
    """Has a node for the pod already, as a plan for a whole job has; the first such plugin counts.

    Called at the end of PreFilter.
    """

    @abstractmethod
    def find_one_node(
        self, state: CycleState, pod: ClusterPod, nodes: View, result: PreFilterResult | None
    ) -> str | Status:
        """Return the name of the only node to look at; Skip: it has no plan; else end the cycle."""


class PreferNodesPlugin(Plugin, ABC):
    """Prefers nodes, whatever their scores; the first such plugin of a profile counts.

    Called at the end of PreFilter; the first of the nodes that is feasible is the only one then.
    """

    @abstractmethod
    def prefer_nodes(
        self, state: CycleState, pod: ClusterPod, nodes: View, result: PreFilterResult | None
    ) -> Sequence[str] | Status:
        """Return names of nodes in their order; Skip, or none: it prefers no node."""


class NodePlans:
    """The plugins of one profile that choose nodes."""

    def __init__(self, plugins: ProfilePlugins) -> None:
        self._calls = plugins.calls
        self._finds = _first(plugins, FindOneNodePlugin)  # type: ignore[type-abstract]
        self._prefers = _first(plugins, PreferNodesPlugin)  # type: ignore[type-abstract]

    def node(
        self, state: CycleState, subject: Subject, result: PreFilterResult | None
    ) -> str | None:
        """The node of a plan; None: there is no plan.

        Raises:
            PointFailed: the plugin has failed, or ends the cycle, or names no node.
        """
        if self._finds is None:
            return None
        loaded, plugin = self._finds
        work = partial(plugin.find_one_node, state, subject.pod, subject.nodes, result)
        answer = self._answer(loaded, state, work)
        if answer is None:
            return None
        if isinstance(answer, str) and subject.nodes.row(answer) is not None:
            return answer
        wrong = PluginError(f"wanted the name of a node, found {answer!r:.80}", loaded.name)
        raise PointFailed(self._calls.failed(loaded, Point.PRE_FILTER, wrong))

    def preferred(
        self, state: CycleState, subject: Subject, result: PreFilterResult | None
    ) -> Sequence[str]:
        """Nodes that are preferred, the first one most.

        Raises:
            PointFailed: the plugin has failed, or ends the cycle.
        """
        if self._prefers is None:
            return ()
        loaded, plugin = self._prefers
        work = partial(plugin.prefer_nodes, state, subject.pod, subject.nodes, result)
        answer = self._answer(loaded, state, work)
        if answer is None:
            return ()
        names = answer if isinstance(answer, Sequence) and not isinstance(answer, str) else (None,)
        if all(isinstance(name, str) for name in names):
            return cast("Sequence[str]", names)
        wrong = PluginError(f"wanted a list of names of nodes, found {answer!r:.80}", loaded.name)
        raise PointFailed(self._calls.failed(loaded, Point.PRE_FILTER, wrong))

    def _answer(self, loaded: Loaded, state: CycleState, work: Callable[[], object]) -> object:
        """What a plugin answers; None: it skips."""
        answer = self._calls.call(loaded, Point.PRE_FILTER, state, work)
        if not isinstance(answer, Status):
            return answer
        status = status_of(answer, loaded.name, Code.SKIP)
        if status.code is Code.SKIP:
            return None
        if status.rejected:
            raise PointFailed(status)
        raise PointFailed(self._calls.failed(loaded, Point.PRE_FILTER, PointFailed(status)))


def _first(plugins: ProfilePlugins, kind: type[P]) -> tuple[Loaded, P] | None:
    """The first plugin of a profile of this kind; others of it are named in the log."""
    found = [(name, one) for name, one in plugins.plugins.items() if isinstance(one, kind)]
    if len(found) > 1:
        others = [name for name, _ in found[1:]]
        log.warning("plugins.ignored", kind=kind.__name__, used=found[0][0], ignored=others)
    return (plugins.loaded(found[0][0]), found[0][1]) if found else None
