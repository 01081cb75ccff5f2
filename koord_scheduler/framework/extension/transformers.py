"""Plugins that change what others see of a pod and of nodes, or choose the node themselves."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar, cast

import numpy as np

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.component.plugins.registry import PluginError
from koord.util.logs import get_logger
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.calls import ExtensionPointError, Loaded, SequentialCalls
from koord_scheduler.framework.interfaces import Plugin
from koord_scheduler.framework.profile import ProfilePlugins
from koord_scheduler.framework.status import (
    Code,
    CycleInput,
    CycleState,
    NodeStatuses,
    PostFilterResult,
    PreFilterResult,
    Status,
    status_of,
)

P = TypeVar("P", bound=Plugin)
W = ParamSpec("W")


@dataclass(frozen=True, slots=True)
class Transformed:
    """The changes by a transformer; None: that part is unchanged.

    A changed pod is the same one, by key and uid. Changed nodes come from a HypotheticalCluster:
    they are the same ones in the same rows, with other pods on them.
    """

    pod: ClusterPod | None = None
    nodes: View | None = None
    feasible: Mask | None = None  # of before_score: fewer nodes than there were
    stable: bool = False
    """The nodes come from a HypotheticalCluster that is kept from cycle to cycle. So a row keeps
    its generation while its pods stay the same, and results of plugins can be reused."""


class SchedulingTransformer(Plugin):
    """Base of all transformers."""


class PreFilterTransformer(SchedulingTransformer):
    """Runs around PreFilter of all plugins."""

    def before_pre_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View
    ) -> Transformed | Status | None:
        """Change what is seen from now on, or end the cycle with a status."""
        return None

    def after_pre_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View, result: PreFilterResult | None
    ) -> Transformed | Status | None:
        """The same, when PreFilter of all plugins was a success; result None: all nodes."""
        return None


class FilterTransformer(SchedulingTransformer):
    """Runs before Filter: once for all nodes, as Filter in the vector form does."""

    def before_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View
    ) -> Transformed | Status | None:
        """Change what Filter sees, or end the cycle with a status."""
        return None


class ScoreTransformer(SchedulingTransformer):
    """Runs before PreScore and Score."""

    def before_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Transformed | Status | None:
        """Change what they see, or end the cycle with a status."""
        return None


class PostFilterTransformer(SchedulingTransformer):
    """Learns of PostFilter's outcome."""

    def after_post_filter(
        self,
        state: CycleState,
        pod: ClusterPod,
        statuses: NodeStatuses,
        result: PostFilterResult,
    ) -> None:
        """Take note of it."""


class Transformers:
    """The transformers of one profile, in the order in which it names their plugins.

    One that has nothing to do for the pod is called once another one has changed the pod.

    Raises ExtensionPointError: a rejection where a transformer ends the cycle, else a failure.
    """

    def __init__(self, plugins: ProfilePlugins) -> None:
        self._calls = plugins.calls
        self._pre_filter = _transformers(plugins, Point.PRE_FILTER, PreFilterTransformer)
        first = [one for one in self._pre_filter if not one[2]]
        before = [plugin.before_pre_filter for _, plugin, _ in first]
        self._first = [loaded for loaded, _, _ in first]
        self._before_pre_filter = SequentialCalls(
            plugins.calls, Point.PRE_FILTER, self._first, before
        )
        self._after_pre_filter = tuple(one for one in self._pre_filter if _looks_after(one[1]))
        self._filter = _transformers(plugins, Point.FILTER, FilterTransformer)
        self._score = _transformers(plugins, Point.SCORE, ScoreTransformer)
        self._post_filter = _transformers(plugins, Point.POST_FILTER, PostFilterTransformer)

    def before_pre_filter(self, cycle: CycleInput) -> CycleInput:
        pod = cycle.pod
        answers = self._before_pre_filter.until(
            _is_something, cycle.state, cycle.state, pod, cycle.nodes
        )
        if not answers or answers[-1] is None:
            return cycle  # nothing is changed, as for most pods
        last = self._first[len(answers) - 1]
        cycle = _changed(cycle, self._checked(last, Point.PRE_FILTER, answers[-1]))
        place = [loaded for loaded, _, _ in self._pre_filter].index(last)
        for loaded, plugin, is_idle in self._pre_filter[place + 1 :]:
            if is_idle and cycle.pod is pod:
                continue
            work, args = plugin.before_pre_filter, (cycle.state, cycle.pod, cycle.nodes)
            cycle = _changed(cycle, self._call(loaded, Point.PRE_FILTER, cycle.state, work, *args))
        return cycle

    def after_pre_filter(self, cycle: CycleInput, result: PreFilterResult | None) -> CycleInput:
        pod = cycle.pod
        for loaded, plugin, is_idle in self._after_pre_filter:
            if is_idle and cycle.pod is pod:
                continue
            work, args = plugin.after_pre_filter, (cycle.state, cycle.pod, cycle.nodes, result)
            cycle = _changed(cycle, self._call(loaded, Point.PRE_FILTER, cycle.state, work, *args))
        return cycle

    def before_filter(self, cycle: CycleInput) -> CycleInput:
        pod = cycle.pod
        for loaded, plugin, is_idle in self._filter:
            if is_idle and cycle.pod is pod:
                continue
            work, args = plugin.before_filter, (cycle.state, cycle.pod, cycle.nodes)
            cycle = _changed(cycle, self._call(loaded, Point.FILTER, cycle.state, work, *args))
        return cycle

    def before_score(self, cycle: CycleInput, feasible: Mask) -> tuple[CycleInput, Mask]:
        pod = cycle.pod
        for loaded, plugin, is_idle in self._score:
            if is_idle and cycle.pod is pod:
                continue
            work, args = plugin.before_score, (cycle.state, cycle.pod, cycle.nodes, feasible)
            found = self._call(loaded, Point.SCORE, cycle.state, work, *args)
            cycle = _changed(cycle, found)
            if found is not None and found.feasible is not None:
                feasible = self._narrowed(loaded, feasible, found.feasible)
        return cycle, feasible

    def _narrowed(self, loaded: Loaded, feasible: Mask, wanted: Mask) -> Mask:
        """The feasible nodes that are left. Of them there must be one."""
        usable = isinstance(wanted, np.ndarray) and wanted.dtype == np.bool_
        if usable and wanted.shape == feasible.shape and (feasible & wanted).any():
            return feasible & wanted
        text = f"wanted a mask of shape {feasible.shape} with a feasible node, found {wanted!r:.80}"
        raise ExtensionPointError(
            self._calls.failed(loaded, Point.SCORE, PluginError(text, loaded.name))
        )

    def after_post_filter(
        self, state: CycleState, pod: ClusterPod, statuses: NodeStatuses, result: PostFilterResult
    ) -> None:
        """Raises nothing: all are called, whatever becomes of each."""
        for loaded, plugin, _ in self._post_filter:
            work = partial(plugin.after_post_filter, state, pod, statuses, result)
            with suppress(ExtensionPointError):  # it is logged
                self._calls.call(loaded, Point.POST_FILTER, state, work)

    def _call(
        self,
        loaded: Loaded,
        point: Point,
        state: CycleState,
        work: Callable[W, Transformed | Status | None],
        *args: W.args,
        **kwargs: W.kwargs,
    ) -> Transformed | None:
        """Return what a transformer changes; None: nothing, as for most pods."""
        return self._checked(
            loaded, point, self._calls.call(loaded, point, state, work, *args, **kwargs)
        )

    def _checked(self, loaded: Loaded, point: Point, answer: object) -> Transformed | None:
        if answer is None or isinstance(answer, Transformed):
            return answer
        try:
            status = status_of(answer, loaded.name)
        except PluginError as err:
            raise ExtensionPointError(self._calls.failed(loaded, point, err)) from err
        if status.ok:
            return None
        if status.rejected:
            raise ExtensionPointError(status)
        raise ExtensionPointError(self._calls.failed(loaded, point, ExtensionPointError(status)))


def _is_something(answer: object) -> bool:
    """Whether transformers after this one may see something else, or nothing."""
    return answer is not None


def _looks_after(plugin: PreFilterTransformer) -> bool:
    """Whether a transformer has something to do after PreFilter."""
    return type(plugin).after_pre_filter is not PreFilterTransformer.after_pre_filter


def _transformers(
    plugins: ProfilePlugins, point: Point, kind: type[P]
) -> tuple[tuple[Loaded, P, bool], ...]:
    """The plugins of an extension point that are such transformers, and whether each is idle."""
    idle = plugins.idle_at(point)
    there = ((loaded, loaded.plugin) for loaded in plugins.at(point, idle=True))
    return tuple(
        (loaded, plugin, loaded.name in idle)
        for loaded, plugin in there
        if isinstance(plugin, kind)
    )


log = get_logger("koord_scheduler.framework")


class FindOneNodePlugin(Plugin, ABC):
    """Has a node for the pod already, as a plan for a whole job has; the first such plugin counts.

    Called at the end of PreFilter, unless the plugin's own PreFilter has skipped the pod.
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


class NodeChoices:
    """The plugins of one profile that choose nodes."""

    def __init__(self, plugins: ProfilePlugins) -> None:
        self._calls = plugins.calls
        self._finds = _first(plugins, FindOneNodePlugin)  # type: ignore[type-abstract]
        self._prefers = _first(plugins, PreferNodesPlugin)  # type: ignore[type-abstract]

    def node(self, cycle: CycleInput, result: PreFilterResult | None) -> str | None:
        """The node of a plan; None: there is no plan.

        Raises:
            ExtensionPointError: the plugin has failed, or ends the cycle, or names no node.
        """
        if self._finds is None:
            return None
        loaded, plugin = self._finds
        if loaded.name in cycle.state.skipped_filters:
            return None
        work = partial(plugin.find_one_node, cycle.state, cycle.pod, cycle.nodes, result)
        answer = self._answer(loaded, cycle.state, work)
        if answer is None:
            return None
        if isinstance(answer, str) and cycle.nodes.row(answer) is not None:
            return answer
        wrong = PluginError(f"wanted the name of a node, found {answer!r:.80}", loaded.name)
        raise ExtensionPointError(self._calls.failed(loaded, Point.PRE_FILTER, wrong))

    def preferred(self, cycle: CycleInput, result: PreFilterResult | None) -> Sequence[str]:
        """Nodes that are preferred, the first one most.

        Raises:
            ExtensionPointError: the plugin has failed, or ends the cycle.
        """
        if self._prefers is None:
            return ()
        loaded, plugin = self._prefers
        work = partial(plugin.prefer_nodes, cycle.state, cycle.pod, cycle.nodes, result)
        answer = self._answer(loaded, cycle.state, work)
        if answer is None:
            return ()
        names = answer if isinstance(answer, Sequence) and not isinstance(answer, str) else (None,)
        if all(isinstance(name, str) for name in names):
            return cast("Sequence[str]", names)
        wrong = PluginError(f"wanted a list of names of nodes, found {answer!r:.80}", loaded.name)
        raise ExtensionPointError(self._calls.failed(loaded, Point.PRE_FILTER, wrong))

    def _answer(self, loaded: Loaded, state: CycleState, work: Callable[[], object]) -> object:
        """Return the answer of a plugin; None: it skips."""
        answer = self._calls.call(loaded, Point.PRE_FILTER, state, work)
        if not isinstance(answer, Status):
            return answer
        status = status_of(answer, loaded.name, Code.SKIP)
        if status.code is Code.SKIP:
            return None
        if status.rejected:
            raise ExtensionPointError(status)
        raise ExtensionPointError(
            self._calls.failed(loaded, Point.PRE_FILTER, ExtensionPointError(status))
        )


def _first(plugins: ProfilePlugins, kind: type[P]) -> tuple[Loaded, P] | None:
    """The first plugin of a profile of this kind; others of it are named in the log.

    In a part of the profile that leaves it out there is none.
    """
    found = [(name, one) for name, one in plugins.plugins.items() if isinstance(one, kind)]
    if found and found[0][0] in plugins.idle_at(Point.PRE_FILTER):
        return None
    if len(found) > 1 and not plugins.is_part:
        others = [name for name, _ in found[1:]]
        log.warning("plugins.ignored", kind=kind.__name__, used=found[0][0], ignored=others)
    return (plugins.loaded(found[0][0]), found[0][1]) if found else None


def _changed(cycle: CycleInput, found: Transformed | None) -> CycleInput:
    """Return the input with what a transformer changes; the same one if that is nothing."""
    if found is None:
        return cycle
    return cycle.changed(found.pod, found.nodes, stable=found.stable)
