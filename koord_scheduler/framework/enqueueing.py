"""Queue order, gates and requeue decisions by the plugins of all profiles."""

from collections.abc import Container, Mapping, Sequence
from enum import IntEnum
from typing import cast

from koord.cluster.facts import ClusterPod
from koord.component.plugins.registry import PluginError
from koord.util.errors import error_text
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.calls import ExtensionPointError, Loaded
from koord_scheduler.framework.customresources import CustomResources, seen_by
from koord_scheduler.framework.interfaces import (
    EnqueueExtensions,
    PreEnqueuePlugin,
    QueueSortPlugin,
)
from koord_scheduler.framework.profile import ProfileError, ProfilePlugins
from koord_scheduler.framework.status import SUCCESS, UNREAD, CycleState, Status, status_of
from koord_scheduler.framework.types import (
    WILDCARD,
    ClusterEvent,
    EventResource,
    HintedEvent,
    QueuedPod,
    QueueingHint,
    event_defect,
)

EVERYTHING = (HintedEvent(WILDCARD),)
"""The events for an extender, and for a plugin that registers none."""


class RequeueDecision(IntEnum):
    """The decision about a rejected pod after an event."""

    SKIP = 0  # it stays where it is
    AFTER_BACKOFF = 1
    AT_ONCE = 2


class Enqueueing:
    """The plugins of all profiles, as far as the queue needs them."""

    def __init__(self, profiles: Sequence[ProfilePlugins]) -> None:
        """Raises ProfileError: the profiles have different QueueSort plugins, or arguments of it;
        or events that a plugin registers cannot be had.
        """
        self._profiles = {each.settings.scheduler_name: each for each in profiles}
        self._gates = {name: each.at(Point.PRE_ENQUEUE) for name, each in self._profiles.items()}
        self._sort = _the_queue_sort(profiles)
        self._events = {name: _events_of(each) for name, each in self._profiles.items()}
        self._state = CycleState()  # of calls that belong to no cycle: nothing is measured

    def schedules(self, pod: ClusterPod) -> bool:
        """Whether the pod asks for one of the profiles."""
        return pod.scheduler_name in self._profiles

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        """Whether the first pod is tried before the second; if the plugin fails, the older one."""
        try:
            return bool(self._sort.plugin.less(first, second))
        except (Exception, SystemExit) as err:  # a heap cannot do without an answer
            self._sort.failed(err)
            return first.timestamp < second.timestamp

    def gate(self, pod: ClusterPod, first: str = "") -> Status:
        """Call PreEnqueue until a plugin rejects the pod, the plugin named first before all."""
        profile = self._profiles[pod.scheduler_name]
        gates = self._gates[pod.scheduler_name]
        if first:
            gates = tuple(sorted(gates, key=lambda one: one.name != first))
        for loaded in gates:
            status = self._gate_of(profile, loaded, pod)
            if not status.ok:
                return status
        return SUCCESS

    def events(self, profile: str, plugin: str) -> tuple[HintedEvent, ...]:
        """Return the events that may help a pod that a plugin has rejected."""
        if plugin == UNREAD:  # nothing but another spec, for which a look now and then will do
            return ()
        return self._events[profile].get(plugin, EVERYTHING)

    def watch_custom(self, resources: CustomResources, known: Container[str]) -> None:
        """Follow the kinds whose events plugins have registered. known: those that are."""
        for events in self._events.values():
            for plugin, hinted in events.items():
                for each in hinted:
                    name = each.event.resource
                    if name not in known and name not in set(EventResource):
                        resources.watch(name, plugin)

    def interested(self, profile: str, plugin: str, event: ClusterEvent) -> bool:
        """Whether a plugin has registered such an event."""
        return any(each.event.covers(event) for each in self.events(profile, plugin))

    def requeue_decision(
        self,
        queued: QueuedPod,
        event: ClusterEvent,
        old: object,
        new: object,
        *,
        without_hints: bool = False,
    ) -> RequeueDecision:
        """Return the requeue decision for a pod after an event, by the plugins that rejected it.

        For a gated pod, only the plugin that gates it decides. without_hints: each event that a
        plugin has registered may help.
        """
        profile, gate = queued.pod.scheduler_name, queued.gating_plugin
        if gate and not self.interested(profile, gate, event):
            return RequeueDecision.SKIP
        if not queued.rejecting_plugins or event.wildcard:
            return RequeueDecision.AFTER_BACKOFF
        found = RequeueDecision.SKIP
        for plugin in (gate,) if gate else sorted(queued.rejecting_plugins):
            for each in self.events(profile, plugin):
                if each.event.covers(event) and (
                    without_hints or self._helps(plugin, each, queued.pod, old, new)
                ):
                    if plugin in queued.pending_plugins:
                        return RequeueDecision.AT_ONCE
                    found = RequeueDecision.AFTER_BACKOFF
                    break
        return found

    def _helps(
        self, plugin: str, each: HintedEvent, pod: ClusterPod, old: object, new: object
    ) -> bool:
        """A hint that fails counts as one that helps."""
        if each.hint is None:
            return True
        profile = self._profiles[pod.scheduler_name]
        loaded = profile.loaded(plugin)
        try:
            before, after = seen_by(plugin, old), seen_by(plugin, new)
            return loaded.code.call(each.hint, pod, before, after) is not QueueingHint.SKIP
        except Exception as err:
            profile.calls.failed(loaded, Point.PRE_ENQUEUE, err)
            return True

    def _gate_of(self, profile: ProfilePlugins, loaded: Loaded, pod: ClusterPod) -> Status:
        plugin = cast(PreEnqueuePlugin, loaded.plugin)
        try:
            answer = profile.calls.call(
                loaded, Point.PRE_ENQUEUE, self._state, plugin.pre_enqueue, pod
            )
            return status_of(answer, loaded.name)
        except ExtensionPointError as err:
            return err.status
        except PluginError as err:
            return profile.calls.failed(loaded, Point.PRE_ENQUEUE, err)


class _QueueSort:
    """The QueueSort plugin of the first profile, which speaks for all."""

    def __init__(self, profile: ProfilePlugins) -> None:
        (self._loaded,) = profile.at(Point.QUEUE_SORT)
        self._calls = profile.calls
        self.plugin = cast(QueueSortPlugin, self._loaded.plugin)

    def failed(self, err: BaseException) -> None:
        self._calls.failed(self._loaded, Point.QUEUE_SORT, err)


def _the_queue_sort(profiles: Sequence[ProfilePlugins]) -> _QueueSort:
    first = profiles[0].settings
    (wanted,) = first.enabled(Point.QUEUE_SORT)
    for each in profiles[1:]:
        (found,) = each.settings.enabled(Point.QUEUE_SORT)
        args = (settings.args.get(wanted.name) for settings in (first, each.settings))
        if found.name != wanted.name or len({repr(one) for one in args}) > 1:
            raise ProfileError(
                each.settings.scheduler_name,
                [
                    f"wanted the queueSort plugin of profile {first.scheduler_name}, "
                    f'"{wanted.name}" with the same arguments, found "{found.name}"'
                ],
            )
    return _QueueSort(profiles[0])


def _events_of(profile: ProfilePlugins) -> Mapping[str, tuple[HintedEvent, ...]]:
    found = {}
    for name, plugin in profile.plugins.items():
        if not isinstance(plugin, EnqueueExtensions):
            continue
        try:
            events = tuple(profile.loaded(name).code.call(plugin.events_to_register))
        except Exception as err:
            text = f'plugin "{name}": its events cannot be registered: {error_text(err)}'
            raise ProfileError(profile.settings.scheduler_name, [text]) from err
        wrong = [f'plugin "{name}": {text}' for each in events if (text := event_defect(each))]
        if wrong:
            raise ProfileError(profile.settings.scheduler_name, wrong)
        found[name] = events
    return found
