"""Transformers: plugins that change what the others see of a pod and of the nodes.

One is active where the profile enables its plugin: at preFilter, filter, score or postFilter.

Source: Koordinator, pkg/scheduler/frameworkext/interface.go.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.component.plugins.errors import PluginError
from koord_scheduler.config.points import Point
from koord_scheduler.framework.answers import status_of
from koord_scheduler.framework.calls import Loaded, PointFailed
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.diagnosis import NodeStatuses
from koord_scheduler.framework.interfaces import Plugin
from koord_scheduler.framework.profiles.profile import ProfilePlugins
from koord_scheduler.framework.results import PostFilterResult, PreFilterResult
from koord_scheduler.framework.status import Status

P = TypeVar("P", bound=Plugin)


@dataclass(frozen=True, slots=True)
class Transformed:
    """What a transformer has changed; None: that is as it was.

    A changed pod is the same one, by key and uid. Changed nodes come from nodes.what_if(): they are
    the same ones in the same rows, with other pods on them.
    """

    pod: ClusterPod | None = None
    nodes: View | None = None
    feasible: Mask | None = None  # of before_score: fewer nodes than there were


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


@dataclass(frozen=True, slots=True)
class Subject:
    """What plugins see in a cycle."""

    pod: ClusterPod
    nodes: View
    is_altered: bool = False  # the nodes are not the cluster's any more: nothing kept is right

    def changed(self, by: Transformed) -> "Subject":
        """The same with what a transformer has changed."""
        if by.pod is None and by.nodes is None:
            return self
        altered = self.is_altered or by.nodes is not None
        pod = self.pod if by.pod is None else by.pod
        return Subject(pod, self.nodes if by.nodes is None else by.nodes, altered)


class Transformers:
    """The transformers of one profile, in the order in which it names their plugins.

    Raises PointFailed with a rejection where a transformer ends the cycle, else where one failed.
    """

    def __init__(self, plugins: ProfilePlugins) -> None:
        self._calls = plugins.calls
        self._pre_filter = _active(plugins, Point.PRE_FILTER, PreFilterTransformer)
        self._filter = _active(plugins, Point.FILTER, FilterTransformer)
        self._score = _active(plugins, Point.SCORE, ScoreTransformer)
        self._post_filter = _active(plugins, Point.POST_FILTER, PostFilterTransformer)

    def before_pre_filter(self, state: CycleState, subject: Subject) -> Subject:
        for loaded, plugin in self._pre_filter:
            work = partial(plugin.before_pre_filter, state, subject.pod, subject.nodes)
            subject = subject.changed(self._call(loaded, Point.PRE_FILTER, state, work))
        return subject

    def after_pre_filter(
        self, state: CycleState, subject: Subject, result: PreFilterResult | None
    ) -> Subject:
        for loaded, plugin in self._pre_filter:
            work = partial(plugin.after_pre_filter, state, subject.pod, subject.nodes, result)
            subject = subject.changed(self._call(loaded, Point.PRE_FILTER, state, work))
        return subject

    def before_filter(self, state: CycleState, subject: Subject) -> Subject:
        for loaded, plugin in self._filter:
            work = partial(plugin.before_filter, state, subject.pod, subject.nodes)
            subject = subject.changed(self._call(loaded, Point.FILTER, state, work))
        return subject

    def before_score(
        self, state: CycleState, subject: Subject, feasible: Mask
    ) -> tuple[Subject, Mask]:
        for loaded, plugin in self._score:
            work = partial(plugin.before_score, state, subject.pod, subject.nodes, feasible)
            found = self._call(loaded, Point.SCORE, state, work)
            subject = subject.changed(found)
            if found.feasible is not None:
                feasible = self._narrowed(loaded, feasible, found.feasible)
        return subject, feasible

    def _narrowed(self, loaded: Loaded, feasible: Mask, wanted: Mask) -> Mask:
        """The feasible nodes that are left. Of them there must be one."""
        usable = isinstance(wanted, np.ndarray) and wanted.dtype == np.bool_
        if usable and wanted.shape == feasible.shape and (feasible & wanted).any():
            return feasible & wanted
        text = f"wanted a mask of shape {feasible.shape} with a feasible node, found {wanted!r:.80}"
        raise PointFailed(self._calls.failed(loaded, Point.SCORE, PluginError(text, loaded.name)))

    def after_post_filter(
        self, state: CycleState, pod: ClusterPod, statuses: NodeStatuses, result: PostFilterResult
    ) -> None:
        """Raises nothing: all are called, whatever becomes of each."""
        for loaded, plugin in self._post_filter:
            work = partial(plugin.after_post_filter, state, pod, statuses, result)
            with suppress(PointFailed):  # it is logged
                self._calls.call(loaded, Point.POST_FILTER, state, work)

    def _call(
        self, loaded: Loaded, point: Point, state: CycleState, work: Callable[[], object]
    ) -> Transformed:
        answer = self._calls.call(loaded, point, state, work)
        if isinstance(answer, Transformed):
            return answer
        try:
            status = status_of(answer, loaded.name)
        except PluginError as err:
            raise PointFailed(self._calls.failed(loaded, point, err)) from err
        if status.ok:
            return Transformed()
        if status.rejected:
            raise PointFailed(status)
        raise PointFailed(self._calls.failed(loaded, point, PointFailed(status)))


def _active(plugins: ProfilePlugins, point: Point, kind: type[P]) -> tuple[tuple[Loaded, P], ...]:
    """The plugins of an extension point that are such transformers."""
    there = ((loaded, loaded.plugin) for loaded in plugins.at(point))
    return tuple((loaded, plugin) for loaded, plugin in there if isinstance(plugin, kind))
