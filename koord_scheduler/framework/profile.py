"""Profiles: the registry, one instance of each plugin, and queue order, gates and hints of all."""

import copy
import typing
from collections import Counter
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from enum import IntEnum
from functools import lru_cache
from inspect import isawaitable
from typing import Any, cast

from koord.cluster.facts import ClusterPod
from koord.cluster.keptfields import KeptFields, reads_of, union
from koord.cluster.kinds import NODE, NODE_METRIC, POD
from koord.component.plugins.args import args_type_of
from koord.component.plugins.execution import PluginCode
from koord.component.plugins.registry import FactoryRegistry, PluginError, class_defect
from koord.util.errors import KoordError, error_text
from koord.util.logs import get_logger
from koord_scheduler.config.profiles import KnownPlugin, KnownPlugins, Point, Profile
from koord_scheduler.framework.calls import ExtensionPointError, Loaded, PluginCalls, TimeLimits
from koord_scheduler.framework.customresources import CustomResources, seen_by
from koord_scheduler.framework.extension.numa import TopologyManager
from koord_scheduler.framework.extension.reservations import ReservationPlugins
from koord_scheduler.framework.groupplan import GroupPlanner
from koord_scheduler.framework.handle import Handle, NodeFilters, Services
from koord_scheduler.framework.interfaces import (
    BindPlugin,
    EnqueueExtensions,
    FilterPlugin,
    PermitPlugin,
    Plugin,
    PodClaims,
    PostBindPlugin,
    PostFilterPlugin,
    PreBindPlugin,
    PreEnqueuePlugin,
    PreFilterPlugin,
    PreScorePlugin,
    QueueSortPlugin,
    ReservePlugin,
    ScorePlugin,
    VectorFilterPlugin,
    VectorScorePlugin,
    pod_claims,
)
from koord_scheduler.framework.status import SUCCESS, UNREAD, CycleState, Status, status_of
from koord_scheduler.framework.types import (
    WILDCARD,
    ChangedRows,
    ClusterEvent,
    EventResource,
    HintedEvent,
    QueuedPod,
    QueueingHint,
    event_defect,
)

PluginFactory = Callable[[Any, Handle], Plugin | Awaitable[Plugin]]
"""Makes a plugin from its args (None: the profile has none) and the handle of its profile."""


class PluginRegistry(FactoryRegistry[PluginFactory]):
    """Factories in the order of registration."""

    group = "koord_scheduler.plugins"
    shipped = "koordlet"
    base = Plugin


Additions = Sequence[Callable[[PluginRegistry], None]]
"""Called with a registry when the installed plugins are in it, to register further ones."""

log = get_logger("koord_scheduler.framework")

INTERFACES: Mapping[Point, tuple[type[Plugin], ...]] = {
    Point.PRE_ENQUEUE: (PreEnqueuePlugin,),
    Point.QUEUE_SORT: (QueueSortPlugin,),
    Point.PRE_FILTER: (PreFilterPlugin,),
    Point.FILTER: (FilterPlugin, VectorFilterPlugin),
    Point.POST_FILTER: (PostFilterPlugin,),
    Point.PRE_SCORE: (PreScorePlugin,),
    Point.SCORE: (ScorePlugin, VectorScorePlugin),
    Point.RESERVE: (ReservePlugin,),
    Point.PERMIT: (PermitPlugin,),
    Point.PRE_BIND: (PreBindPlugin,),
    Point.BIND: (BindPlugin,),
    Point.POST_BIND: (PostBindPlugin,),
}
"""The interfaces by extension point; a plugin there must have one of them."""

DEFAULT_LIMITS = TimeLimits()
MAX_PARTS = 64  # of a profile; pods that need further ones have all plugins called
MAX_REMEMBERED = 256  # kinds of pods whose part of a profile is known
MAX_KIND = 8 << 10  # characters of annotations of such pods, which may have gone since
_ALWAYS = (Point.QUEUE_SORT, Point.POST_FILTER)  # called whether plugins are active or not
_POINTS, _NO_POINTS = frozenset(Point), frozenset[Point]()


class ProfileError(KoordError):
    """A profile cannot be built; the message has everything that is wrong with it."""

    def __init__(self, profile: str, errors: Sequence[str]) -> None:
        super().__init__(f"profile {profile}: {'; '.join(errors)}")
        self.errors = tuple(errors)


class ProfilePlugins:
    """A profile whose plugins are made; see build_profile."""

    def __init__(
        self,
        settings: Profile,
        services: Services,
        limits: TimeLimits,
        claims: PodClaims | None = None,
    ) -> None:
        """claims: what its plugins answer for in pods."""
        self.settings = settings
        self.services = services
        self.limits = limits
        self.calls = PluginCalls(
            settings.scheduler_name,
            services.metrics,
            services.clock,
            services.limits,
            limits.step,
        )
        self.handle = Handle(
            profile=settings.scheduler_name,
            services=services,
            filters=lambda: self.filters,
            claims=claims,
            reservations=lambda: self.reservations,
            numa=lambda: self.numa,
            groups=lambda: self.groups,
            reconsider=self.reconsider,
        )
        self._loaded: dict[str, Loaded] = {}
        self._choosy: tuple[Loaded, ...] = ()  # those that may be idle; set once all are made
        self._idle: frozenset[tuple[Point, str]] = frozenset()  # left out of this part
        self._parts: dict[tuple[frozenset[Point], ...], ProfilePlugins] = {}
        self._parts_of: dict[object, ProfilePlugins] = {}  # by kind of pods
        self._filters: NodeFilters | None = None
        self._reservations: ReservationPlugins | None = None
        self._numa: TopologyManager | None = None
        self._groups: GroupPlanner | None = None

    @property
    def plugins(self) -> Mapping[str, Plugin]:
        """The plugins that are made, by name."""
        return {name: loaded.plugin for name, loaded in self._loaded.items()}

    @property
    def filters(self) -> NodeFilters:
        """PreFilter and Filter of all its plugins, for plugins; LookupError: not there yet."""
        if self._filters is None:
            raise LookupError("the profile is not complete: ask for its filters in a cycle")
        return self._filters

    @property
    def reservations(self) -> ReservationPlugins:
        """Return the runner of its reservation plugins; LookupError: not there yet."""
        if self._reservations is None:
            raise LookupError("the profile is not complete: ask for reservations in a cycle")
        return self._reservations

    @property
    def numa(self) -> TopologyManager:
        """NUMA admission by its plugins; LookupError: they are not all made yet."""
        if self._filters is None:
            raise LookupError("the profile is not complete: ask for NUMA admission in a cycle")
        if self._numa is None:
            self._numa = TopologyManager(self)
        return self._numa

    @property
    def groups(self) -> GroupPlanner:
        """Return what plans groups of pods; LookupError: not there yet."""
        if self._groups is None:
            raise LookupError("the profile is not complete: ask for plans in a cycle")
        return self._groups

    def complete_groups(self, groups: GroupPlanner) -> None:
        """Give the profile what plans groups of pods."""
        self._groups = groups

    def complete_reservations(self, reservations: ReservationPlugins) -> None:
        """Give the profile what runs its plugins that look at reservations."""
        self._reservations = reservations

    def complete(self, filters: NodeFilters) -> None:
        """Give the profile what runs its PreFilter and Filter."""
        self._filters = filters

    def loaded(self, name: str) -> Loaded:
        """One of its plugins; KeyError: it has none of that name."""
        return self._loaded[name]

    def at(self, point: Point, *, idle: bool = False) -> tuple[Loaded, ...]:
        """The plugins of an extension point that do something, in the order in which they run.

        idle: also those that this part of a profile leaves out.
        """
        found = (self._loaded[one.name] for one in self.settings.enabled(point))
        left_out = frozenset() if idle else self.idle_at(point)
        return tuple(
            one
            for one in found
            if str(point) not in one.plugin.named_only_at and one.name not in left_out
        )

    def idle_at(self, point: Point) -> frozenset[str]:
        """Return the plugins that this part of a profile leaves out at an extension point."""
        return frozenset(name for at, name in self._idle if at == point)

    @property
    def is_part(self) -> bool:
        """Whether plugins are left out."""
        return bool(self._idle)

    def for_pod(self, pod: ClusterPod) -> "ProfilePlugins":
        """Return the part of the profile that is called for a pod; mostly it is the same one.

        It has the same plugins, of which at() leaves out those that are not active at a point.
        """
        if not self._choosy:
            return self
        kind = pod.label_set, pod.spec, pod.annotations, pod.priority, pod.workload_group
        found = self._parts_of.get(kind)
        if found is None:
            found = self._part(pod)
            if sum(len(value) for _, value in pod.annotations) <= MAX_KIND:
                if len(self._parts_of) >= MAX_REMEMBERED:
                    self._parts_of.clear()
                self._parts_of[kind] = found
        return found

    def reconsider(self) -> None:
        """Ask the plugins anew where they are active."""
        self._parts_of.clear()

    def _part(self, pod: ClusterPod) -> "ProfilePlugins":
        with self.calls.limits:
            idle = tuple([self._idle_of(loaded, pod) for loaded in self._choosy])
        if not any(idle):
            return self
        found = self._parts.get(idle)
        if found is None:
            if len(self._parts) >= MAX_PARTS:
                return self
            found = self._parts[idle] = copy.copy(self)
            both = zip(self._choosy, idle, strict=True)
            left_out = [(point, loaded.name) for loaded, points in both for point in points]
            found._choosy, found._idle = (), frozenset(left_out)
        return found

    def _idle_of(self, loaded: Loaded, pod: ClusterPod) -> frozenset[Point]:
        try:
            return self.calls.ask(loaded, Point.PRE_ENQUEUE, _idle_points_of, loaded, pod)
        except ExtensionPointError:
            return _NO_POINTS  # it is logged

    async def close(self) -> None:
        """Let the plugins clean up, the last one made first."""
        while self._loaded:
            name, loaded = self._loaded.popitem()
            try:
                await loaded.code.run(loaded.plugin.close, self.limits.build)
            except Exception as err:
                facts = {"profile": self.settings.scheduler_name, "plugin": name}
                log.warning("plugin.close_failed", **facts, error=error_text(err))

    async def make(self, registry: PluginRegistry) -> list[str]:
        """Make all plugins; return what is wrong with them."""
        errors = []
        for name in self.settings.names:
            try:
                self._loaded[name] = await self._make(registry, name)
            except PluginError as err:
                errors.append(str(err))
        self._choosy = tuple(
            one for one in self._loaded.values() if type(one.plugin).active_at is not _ANYWHERE
        )
        return errors

    def misplaced(self) -> list[str]:
        """Return the mistakes in where the profile names its plugins, one sentence each."""
        found = []
        for point in Point:
            enabled = self.settings.enabled(point)
            for name, times in Counter(one.name for one in enabled).items():
                if times > 1:
                    found.append(f'plugin "{name}" is enabled {times} times at {point}')
                loaded = self._loaded.get(name)
                if loaded is not None and not isinstance(loaded.plugin, INTERFACES[point]):
                    wanted = " or ".join(base.__name__ for base in INTERFACES[point])
                    found.append(f'plugin "{name}" does not extend {point}: it is no {wanted}')
            found += self._misordered(point, [one.name for one in enabled])
        sorts = len(self.settings.enabled(Point.QUEUE_SORT))
        if sorts != 1:
            found.append(f"wanted exactly one queueSort plugin, found {sorts}")
        if not self.settings.enabled(Point.BIND):
            found.append("wanted at least one bind plugin, found none")
        return found

    def _misordered(self, point: Point, names: Sequence[str]) -> Iterator[str]:
        for place, name in enumerate(names):
            loaded = self._loaded.get(name)
            other = None if loaded is None else loaded.plugin.comes_before.get(str(point))
            if other is not None and other in names[:place]:
                yield (
                    f'plugin "{name}" must come before "{other}" at {point}: disable "*" there, '
                    f"and enable both in this order"
                )

    async def _make(self, registry: PluginRegistry, name: str) -> Loaded:
        entry = registry.get(name)
        if entry is None:
            known = ", ".join(sorted(each.name for each in registry))
            raise PluginError(
                f'plugin "{name}" does not exist; registered are: {known or "none"}', name
            )
        if entry.error:
            raise PluginError(f'plugin "{name}" cannot be used: {entry.error}', name)
        code = PluginCode(
            name,
            self.services.clock,
            step_seconds=self.limits.step,
            limits=self.services.limits,
            accounted=False,
        )

        async def make() -> object:
            made = entry.plugin(self.settings.args.get(name), self.handle)
            return await made if isawaitable(made) else made

        try:
            plugin = await code.run(make, self.limits.build)
        except Exception as err:
            raise PluginError(
                f'plugin "{name}" from {entry.source} could not be made: {error_text(err)}',
                name,
            ) from err
        if isinstance(plugin, Plugin) and (defect := class_defect(type(plugin), Plugin)):
            raise PluginError(f'plugin "{name}" from {entry.source}: {defect}', name)
        if not isinstance(plugin, Plugin):
            raise PluginError(
                f'plugin "{name}" from {entry.source}: wanted a Plugin, found {plugin!r:.80}', name
            )
        for log in ("filter_changes", "score_changes"):
            if not isinstance(found := getattr(plugin, log, None), ChangedRows | None):
                wanted = f"wanted ChangedRows() as {log}, found {found!r:.80}"
                raise PluginError(f'plugin "{name}" from {entry.source}: {wanted}', name)
        plugin.name = name
        return Loaded(plugin, code, name)


_ANYWHERE = Plugin.active_at


def _idle_points_of(loaded: Loaded, pod: ClusterPod) -> frozenset[Point]:
    """Return the points at which a plugin has nothing to do for a pod.

    Raises:
        PluginError: it has named what is no point.
    """
    found: object = loaded.plugin.active_at(pod)
    if found is None:
        return _NO_POINTS
    if isinstance(found, Collection) and not isinstance(found, str):
        idle = _other_points(frozenset(found))
        if idle is not None:
            return idle
    wanted = "wanted names of extension points of active_at"
    raise PluginError(f"{wanted}, found {found!r:.80}", loaded.name)


@lru_cache(maxsize=256)  # asked for each kind of pods, and plugins have few answers
def _other_points(active: frozenset[object]) -> frozenset[Point] | None:
    """Return the points that can be left out and are not among these; None: one is no point."""
    if not _POINTS.issuperset(active):
        return None
    return _POINTS.difference(active, _ALWAYS)


async def build_profile(
    settings: Profile,
    registry: PluginRegistry,
    services: Services,
    limits: TimeLimits = DEFAULT_LIMITS,
) -> ProfilePlugins:
    """Make a profile and its plugins, one instance of each, in a fixed order.

    Raises:
        ProfileError: everything that is wrong; what was made is closed.
    """
    factories = [(each.name, each.plugin) for each in registry]
    claims = pod_claims(settings.scheduler_name, settings.names, factories)
    profile = ProfilePlugins(settings, services, limits, claims)
    errors = [*await profile.make(registry), *profile.misplaced()]
    if errors:
        await profile.close()
        raise ProfileError(settings.scheduler_name, errors)
    return profile


def fields_read(profiles: Iterable[Profile], registry: PluginRegistry) -> KeptFields:
    """Return what the plugins that profiles enable declare to read of pods and nodes."""
    entries = [registry.get(name) for profile in profiles for name in profile.names]
    return union(reads_of(entry.plugin) for entry in entries if entry is not None)


def known_plugins(registry: PluginRegistry) -> KnownPlugins:
    """Return what a configuration may say of the registered plugins.

    A plugin declares its arguments with takes_args. A class is for the extension points whose
    interfaces it has, and so is what a function is annotated to return; another function may make
    a plugin of any, until it is called.
    """
    return {entry.name: _known(entry.plugin) for entry in registry}


def _known(factory: PluginFactory) -> KnownPlugin:
    made = _made_by(factory)
    if made is None:
        return KnownPlugin(frozenset(Point), args_type_of(factory), is_opaque=True)
    points = (point for point, bases in INTERFACES.items() if issubclass(made, bases))
    return KnownPlugin(frozenset(points), args_type_of(factory))


def _made_by(factory: PluginFactory) -> type[Plugin] | None:
    """The class of the plugins that a factory makes; None: it is not known."""
    if isinstance(factory, type):
        return factory
    try:
        found = typing.get_type_hints(factory).get("return")
    except Exception:  # annotations of a third party's code
        return None
    return (
        found
        if isinstance(found, type) and found is not Plugin and issubclass(found, Plugin)
        else None
    )


def announce(services: Services) -> None:
    """Notify plugins, which are made by now, of what the cluster has; start hooks come after it."""
    cluster, notify = services.cluster, services.changes.notify
    for node in cluster.nodes():
        notify(NODE, None, node)
    for report in cluster.reports.values():
        notify(NODE_METRIC, None, report)
    for key in cluster.snapshot.pod_keys():
        notify(POD, None, cluster.pod(key))


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
        self._gates: dict[ProfilePlugins, tuple[Loaded, ...]] = {}  # by parts of the profiles
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
        profile = self._profiles[pod.scheduler_name].for_pod(pod)
        gates = self._gates.get(profile)
        if gates is None:
            gates = self._gates[profile] = profile.at(Point.PRE_ENQUEUE)
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
