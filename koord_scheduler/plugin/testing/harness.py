"""Run plugins on a fake cluster: one in a profile of its own, or the profiles of a file."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from koord.cluster.decoder import Decoder, ObjectKind
from koord.cluster.facts import ClusterPod
from koord.cluster.kinds import POD
from koord.cluster.view import View
from koord.component.plugins.discovery import discover
from koord.controlplane.testing import CapturedEvents, FakeCluster, FakeInformers, ScriptedServer
from koord.kube.client import ApiClient, Resource
from koord.kube.events import Event
from koord.util.simulatedclock import SimulatedClock
from koord_scheduler.cache import SchedulerCache
from koord_scheduler.config.configuration import parse_configuration
from koord_scheduler.config.profiles import Point, Profile
from koord_scheduler.config.v1 import GROUP_VERSION, KIND
from koord_scheduler.framework.binding import PodBinding
from koord_scheduler.framework.calls import ExtensionPointError
from koord_scheduler.framework.handle import SchedulerControl, Services, new_services
from koord_scheduler.framework.interfaces import BindPlugin, Plugin, QueueSortPlugin, pod_changes
from koord_scheduler.framework.nodes.search import NodeSearch
from koord_scheduler.framework.profile import (
    Enqueueing,
    PluginFactory,
    PluginRegistry,
    ProfilePlugins,
    RequeueDecision,
    announce,
    build_profile,
    fields_read,
    known_plugins,
)
from koord_scheduler.framework.status import ABSENT, SUCCESS, Code, CycleState, NodeStatuses, Status
from koord_scheduler.framework.types import ClusterEvent, QueuedPod
from koord_scheduler.plugin.testing.vectorforms import costs
from koord_scheduler.scheduling.failures import ProfileCycle
from koord_scheduler.scheduling.scheduler import RESOURCES, CacheControl

if TYPE_CHECKING:
    pass


def fake_services(
    cluster: FakeCluster,
    *,
    server: ScriptedServer | None = None,
    activate: Callable[[Iterable[str]], None] = lambda uids: None,
    exposition: CollectorRegistry | None = None,
    decoder: Decoder | None = None,
) -> Services:
    """Return services on the cluster's time. server answers the client; None: one of its own.

    decoder: of pods of the plugins' own.
    """
    clock = cluster.clock
    return new_services(
        client=ApiClient(server or ScriptedServer(cluster), clock, draw=lambda: 0.0),
        events=CapturedEvents(),
        informers=FakeInformers(),
        cluster=cluster.state,
        activate=activate,
        clock=clock,
        registry=exposition or CollectorRegistry(),
        decoder=decoder,
    )


SORT, BINDER = "OldestFirst", "RecordingBinder"

Json = dict[str, Any]


def fake_cluster(clock: SimulatedClock | None = None) -> FakeCluster:
    """A cluster that knows of assumed pods, as the scheduler's does."""
    clock = clock or SimulatedClock()
    return FakeCluster(clock, SchedulerCache(clock))


class OldestFirst(QueueSortPlugin):
    """The pod that waits longest is next."""

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        return first.timestamp < second.timestamp


class RecordingBinder(BindPlugin):
    """Records bindings."""

    def __init__(self, args: object = None, handle: object = None) -> None:
        self.bound: dict[str, str] = {}  # node by pod

    async def bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        self.bound[pod.key] = node_name
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class DecideResult:
    """The decision of the plugins of a profile about a pod."""

    node: str | None  # with the highest total, the first one by name; None: there is none
    status: Status  # Success; a rejection: no node is feasible; Error: a plugin failed
    feasible: tuple[str, ...]  # nodes by name
    scores: Mapping[str, Mapping[str, int]]  # normalized, times weight: by plugin, by node
    rejected: Mapping[str, Status]  # by node
    filtered: tuple[str, ...]  # nodes that Filter was asked about: all, or those of PreFilter
    candidates: tuple[str, ...]  # of the rejected nodes those that evictions may make feasible
    statuses: NodeStatuses | None = field(repr=False, compare=False)  # for PostFilter
    nodes: View = field(repr=False, compare=False)  # as plugins have seen them in the end

    @property
    def message(self) -> str:
        """Return the text of the event FailedScheduling; "" when there is a node."""
        return "" if self.status.ok else self.status.message

    @property
    def rejections(self) -> Mapping[str, str]:
        """Why nodes are rejected, by node."""
        return {node: status.message for node, status in self.rejected.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleResult:
    """The result of scheduling a pod."""

    node: str | None  # that it is bound to; None: it is not
    status: Status  # Success, or what ended it, with the plugin that it comes from
    decided: DecideResult
    nominated: str | None = None  # by PostFilter
    victims: tuple[ClusterPod, ...] = ()  # that PostFilter says it evicts


class ProfileHarness:
    """The profiles of a configuration on a fake cluster; `async with` it.

    OldestFirst and RecordingBinder can be enabled in it.
    """

    def __init__(
        self,
        config: str | Json,
        cluster: FakeCluster | None = None,
        plugins: Mapping[str, PluginFactory] | None = None,
        *,
        installed: bool = False,
    ) -> None:
        """config is a KubeSchedulerConfiguration, as text or as JSON; cluster a fake_cluster().

        plugins are those that it may name beside the kit's; with installed also those that entry
        points name.

        Raises:
            InvalidConfig, InvalidObject: the configuration has faults.
            PluginError: a plugin cannot be registered.
            TypeError: the cluster knows nothing of assumed pods.
        """
        self.cluster = fake_cluster() if cluster is None else cluster
        if not isinstance(self.cluster.state, SchedulerCache):
            raise TypeError("wanted a cluster made by fake_cluster(), found another one")
        self._state = self.cluster.state
        self.clock = self.cluster.clock
        self.registry = PluginRegistry()
        self.exposition = CollectorRegistry()
        self.server = ScriptedServer(self.cluster)
        self._decoder = Decoder()
        self._resource_events: list[tuple[ClusterEvent, object, object]] = []
        self.activated: list[str] = []  # uids of pods that plugins have had tried at once
        self.services = fake_services(
            self.cluster,
            server=self.server,
            activate=self.activated.extend,
            exposition=self.exposition,
            decoder=self._decoder,
        )
        self.services.custom_resources.deliver_to(self._record_event)
        if installed:
            discover(self.registry)
        own: dict[str, PluginFactory] = {SORT: _oldest_first, BINDER: RecordingBinder}
        for name, factory in {**own, **(plugins or {})}.items():
            self.registry.register(name, factory)
        text = config if isinstance(config, str) else json.dumps(config)
        read = parse_configuration(text.encode(), Path("config"), known_plugins(self.registry))
        self.configuration = read.configuration
        self._decoder.kept = fields_read(self.configuration.profiles, self.registry)
        self.cluster.keep(self._decoder.kept)
        self.warnings = [str(fault) for fault in read.warnings]
        self._profiles: dict[str, _Made] = {}

    async def __aenter__(self) -> Self:
        """Make the plugins; they learn of the cluster as it is, then of each change of it."""
        try:
            for settings in self.configuration.profiles:
                plugins = await build_profile(settings, self.registry, self.services)
                self._profiles[settings.scheduler_name] = _Made(settings, plugins)
            self._enqueueing = Enqueueing([made.plugins for made in self._profiles.values()])
            known = frozenset(RESOURCES.values())
            self._enqueueing.watch_custom(self.services.custom_resources, known)
            self.services.control.set(self._control())
            announce(self.services)
            for key in self._state.snapshot.pod_keys():
                self._nominate(None, self._state.pod(key))
            self._state.observe(self._changed)
            await self.services.hooks.run()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._close()

    def decide(self, pod: ClusterPod) -> DecideResult:
        """Where a pod would go now, looking at all nodes that PreFilter names. Nothing is changed.

        Raises:
            AssertionError: what is reused from equal pods, or found without plugins that are not
                active, differs from what all plugins say anew.
        """
        pod, nominator = self.cluster.declared(pod), self.services.nominator
        is_new = bool(pod.nominated_node) and nominator.node_of(pod.key) is None
        if is_new:
            nominator.nominate(pod, pod.nominated_node)
        try:
            return self._decide(self._profile(pod), pod, CycleState())[0]
        finally:
            if is_new:
                nominator.forget(pod.key)

    async def schedule(self, pod: ClusterPod) -> ScheduleResult:
        """Schedule a pod, from PreFilter to PostBind; then it is on its node, or as it was.

        A pod that waits for a permit needs this in a task, and a response, or the clock advanced.
        """
        pod = self.cluster.declared(pod)
        made, state = self._profile(pod), CycleState()
        decided, cycle = self._decide(made, pod, state)
        if decided.node is None:
            return await self._not_decided(made, pod, state, decided)
        if self._state.pod(pod.key) is None:
            self._state.put(POD, pod)
        node, binding = decided.node, cycle.binding
        resized = binding.resize(state, pod, node)
        if isinstance(resized, Status):
            return ScheduleResult(node=None, status=resized, decided=decided)
        nominated = binding.nominate(state, resized, node)
        placed = self._state.assume(resized, node, dict(pod_changes(state).annotations))
        try:
            status = await self._bind(binding, state, placed, node, nominated)
        except BaseException:
            self._roll_back(binding, state, placed, node)
            raise
        if not status.ok:
            self._roll_back(binding, state, placed, node)
            return ScheduleResult(node=None, status=status, decided=decided)
        self._confirm(placed, node, pod_changes(state).annotations)
        await binding.post_bind(state, placed, node)
        return ScheduleResult(node=node, status=SUCCESS, decided=decided)

    def gate(self, pod: ClusterPod) -> Status:
        """Return the status of PreEnqueue for a pod."""
        return self._enqueueing.gate(self._named(pod))

    def is_retried(
        self, pod: ClusterPod, by: str, event: ClusterEvent, old: object, new: object
    ) -> bool:
        """Whether an event has a pod tried again that the plugin `by` has rejected."""
        queued = QueuedPod(
            pod=self._named(pod), timestamp=0.0, unschedulable_plugins=frozenset((by,))
        )
        return (
            self._enqueueing.requeue_decision(queued, event, old, new) is not RequeueDecision.SKIP
        )

    def is_retried_by(
        self,
        pod: ClusterPod,
        by: str,
        resource: Resource,
        manifest: Mapping[str, Any] | None = None,
        *,
        deleted: str = "",
    ) -> bool:
        """Whether an object of a plugin's own kind has a pod tried again that `by` has rejected.

        manifest: the object, which is added or changed now; None: the one of the key deleted is.
        """
        self._resource_events.clear()
        if manifest is None:
            self.informers.delete(resource, deleted)
        else:
            self.informers.apply(resource, manifest)
        return any(self.is_retried(pod, by, *each) for each in self._resource_events)

    def plugin(self, name: str, profile: str = "") -> Plugin:
        """The instance of a plugin; profile "": of the first one that has it."""
        return next(
            made.plugins.plugins[name]
            for each, made in self._profiles.items()
            if name in made.plugins.plugins and profile in ("", each)
        )

    @property
    def informers(self) -> FakeInformers:
        """The kinds that plugins follow beside the cluster; apply puts an object into one."""
        assert isinstance(self.services.informers, FakeInformers)  # noqa: S101 - the kit's
        return self.services.informers

    @property
    def bound(self) -> Mapping[str, str]:
        """Return the bindings of RecordingBinder: node by pod, of all profiles."""
        made = [each.plugins.plugins.get(BINDER) for each in self._profiles.values()]
        binders = [one for one in made if isinstance(one, RecordingBinder)]
        return {key: node for each in binders for key, node in each.bound.items()}

    @property
    def events(self) -> list[Event]:
        """Return the events that plugins have emitted, the latest one last."""
        assert isinstance(self.services.events, CapturedEvents)  # noqa: S101 - the kit's services
        return self.services.events.events

    def metric(self, name: str, **labels: str) -> float | None:
        """Value of a metric of the framework; None: no such series."""
        return self.exposition.get_sample_value(name, labels)

    def _profile(self, pod: ClusterPod) -> "_Made":
        """The pod's profile; where there is only one, that."""
        return self._profiles[self._named(pod).scheduler_name]

    def _named(self, pod: ClusterPod) -> ClusterPod:
        """The pod as it would be decoded, asking for a profile that there is."""
        pod = self.cluster.declared(pod)
        if pod.scheduler_name not in self._profiles and len(self._profiles) == 1:
            return replace(pod, scheduler_name=next(iter(self._profiles)))
        return pod

    def _decide(
        self, made: "_Made", pod: ClusterPod, state: CycleState
    ) -> tuple[DecideResult, ProfileCycle]:
        """Return a decision, and the part of the profile that has to do with the pod."""
        part = made.cycle.for_pod(pod)
        decided, part = made.decide(part, part.search, pod, state, self._state, reuse=True)
        if made.settings.percentage_of_nodes_to_score is None:
            anew = NodeSearch(made.plugins, self.services.nominator, choosing=True)
            made.plugins.complete(made.cycle.search)
            fresh, _ = made.decide(made.cycle, anew, pod, CycleState(), self._state, reuse=False)
            if fresh != decided:
                raise AssertionError(
                    f"pod {pod.key}: wanted results that are reused to be those computed anew, "
                    f"found {decided} and {fresh}; a reuse key leaves out what they depend on, "
                    "or active_at an extension point"
                )
        return decided, part

    async def _not_decided(
        self, made: "_Made", pod: ClusterPod, state: CycleState, decided: DecideResult
    ) -> ScheduleResult:
        statuses, nominated = decided.statuses, None
        victims: tuple[ClusterPod, ...] = ()
        if statuses is not None and made.binding.has_post_filters:
            result = await made.binding.post_filter(state, pod, decided.nodes, statuses)
            nominated, victims = result.nominated_node, result.victims
        return ScheduleResult(
            node=None,
            status=decided.status,
            decided=decided,
            nominated=nominated,
            victims=victims,
        )

    def _record_event(self, event: ClusterEvent, old: object, new: object) -> None:
        self._resource_events.append((event, old, new))

    def _changed(self, kind: ObjectKind[Any], old: object, new: object) -> None:
        """Notify plugins of a change, as the scheduler does."""
        self._nominate(old, new)
        self.services.changes.notify(kind, old, new)

    def _nominate(self, old: object, new: object) -> None:
        """Take over what the status of a pod says, as the scheduler does."""
        pod, nominator = new if isinstance(new, ClusterPod) else old, self.services.nominator
        if not isinstance(pod, ClusterPod):
            return
        if new is not None and pod.nominated_node and not pod.node and not pod.finished:
            nominator.nominate(pod, pod.nominated_node)
        else:
            nominator.forget(pod.key)

    def _control(self) -> SchedulerControl:
        """Return the object for handle.scheduler(): the cluster."""
        return CacheControl(self._state, self.services.forgotten, self.clock)

    async def _bind(
        self,
        binding: PodBinding,
        state: CycleState,
        pod: ClusterPod,
        node: str,
        nominated: Status,
    ) -> Status:
        """Reserve, Permit, PreBind and Bind; Success, or what ended it."""
        status = binding.reserve(state, pod, node, nominated)
        if status.ok:
            chosen = pod_changes(state).annotations
            pod = self._state.annotate(pod.uid, chosen) or pod
            status = binding.permit(state, pod, node)
        if status.code is Code.WAIT:
            status = await binding.wait_on_permit(pod)
        if status.ok:
            status = binding.pre_bind_pre_flight(state, pod, node)
        if status.ok:
            status = await binding.pre_bind(state, pod, node)
        if status.ok or status.code is Code.SKIP:
            status = await binding.bind(state, pod, node)
        return status

    def _confirm(self, pod: ClusterPod, node: str, changed: Mapping[str, str | None]) -> None:
        """Take over the pod as the API server has it then, as far as plugins declare to read it."""
        merged = {**dict(pod.annotations), **changed}
        annotations = tuple(
            (key, value) for key, value in sorted(merged.items()) if value is not None
        )
        bound = replace(pod, node=node, annotations=annotations)
        self._state.put(POD, self.cluster.declared(bound))

    def _roll_back(
        self, binding: PodBinding, state: CycleState, pod: ClusterPod, node: str
    ) -> None:
        binding.unreserve(state, pod, node)
        self._state.forget(pod.uid)

    async def _close(self) -> None:
        while self._profiles:
            await self._profiles.popitem()[1].plugins.close()


class PluginHarness(ProfileHarness):
    """One plugin, in a profile that has nothing else but the kit's QueueSort and Bind."""

    def __init__(
        self,
        plugin: PluginFactory,
        cluster: FakeCluster | None = None,
        *,
        name: str = "",
        args: object = None,
        points: Collection[str] = (),
        weight: int = 1,
        extra_plugins: Mapping[str, PluginFactory] | None = None,
    ) -> None:
        """args as in a file; they are read, completed and checked. name: by default the class's.

        points: where it runs; by default wherever its class can. weight is that of its scores.
        beside: further plugins, by name, which run after it wherever their classes can.

        Raises:
            InvalidConfig: args have faults.
            PluginError: it cannot be registered.
        """
        self.name = name or getattr(plugin, "__name__", type(plugin).__name__)
        self._factory, self._args = plugin, args
        own = {self.name: plugin, **(extra_plugins or {})}
        registry = PluginRegistry()
        for each, factory in own.items():
            registry.register(each, factory)
        known = known_plugins(registry)
        enabled: dict[str, list[Json]] = {}
        for each in own:
            here = points if each == self.name and points else known[each].points
            for point in here:
                enabled.setdefault(point, []).append({"name": each})
        for one in enabled.get(Point.SCORE, ()):
            one["weight"] = weight if one["name"] == self.name else 1
        enabled.setdefault(Point.QUEUE_SORT, [{"name": SORT}])
        enabled.setdefault(Point.BIND, [{"name": BINDER}])
        profile: Json = {
            "schedulerName": "test",
            "plugins": {
                "multiPoint": {"disabled": [{"name": "*"}]},
                **{point: {"enabled": plugins} for point, plugins in enabled.items()},
            },
            "pluginConfig": [] if args is None else [{"name": self.name, "args": args}],
        }
        config = {"apiVersion": GROUP_VERSION, "kind": KIND, "profiles": [profile]}
        super().__init__(config, cluster, own)

    @property
    def subject(self) -> Plugin:
        """The plugin under test."""
        return self.plugin(self.name)

    async def costs(
        self,
        pod: ClusterPod,
        *,
        nodes: int = 5000,
        fill: Callable[[FakeCluster, int], object] = lambda cluster, at: cluster.node(f"n{at}"),
    ) -> Mapping[str, float]:
        """Microseconds of each method of the plugin for a pod, on so many nodes; see costs.

        The plugin is made again, in a cluster of its own, which fill(cluster, number) makes node by
        node; at the end all of them report.
        """
        cluster = fake_cluster()
        for at in range(nodes):
            fill(cluster, at)
        cluster.report()
        harness = PluginHarness(self._factory, cluster, name=self.name, args=self._args)
        async with harness:
            return costs(harness.subject, pod, cluster.state.view())

    def is_retried_after(
        self, pod: ClusterPod, event: ClusterEvent, old: object = None, new: object = None
    ) -> bool:
        """Whether an event has a pod tried again that the plugin under test has rejected."""
        return self.is_retried(pod, self.name, event, old, new)


class _Made:
    """A profile whose plugins are made."""

    def __init__(self, settings: Profile, plugins: ProfilePlugins) -> None:
        self.settings = settings
        self.plugins = plugins
        self.cycle = ProfileCycle(plugins, plugins.services.nominator, choosing=True)
        self.binding = self.cycle.binding

    def decide(
        self,
        cycle: ProfileCycle,
        search: NodeSearch,
        pod: ClusterPod,
        state: CycleState,
        cluster: SchedulerCache,
        *,
        reuse: bool,
    ) -> tuple[DecideResult, ProfileCycle]:
        nodes = cluster.view()
        if reuse:
            search.cached(pod)  # already for the second pod
        found = search.search(state, pod, nodes)
        if found.cycle.pod is not pod:
            cycle = cycle.whole
        status, node = found.status, None
        scores: dict[str, dict[str, int]] = {}
        feasible = [nodes.node(row).name for row in np.flatnonzero(found.feasible).tolist()]
        if status.ok:
            cached = found.cached if reuse else None
            try:
                table = cycle.scoring.scores(found.cycle, found.feasible, cached)
            except ExtensionPointError as err:
                status = err.status
            else:
                if table.pod is not pod:
                    cycle = cycle.whole
                names = [nodes.node(row).name for row in table.rows.tolist()]
                for plugin, column in table.columns.items():
                    scores[plugin] = dict(zip(names, column.tolist(), strict=True))
                totals = zip((-table.totals).tolist(), names, strict=True)
                node = min(totals)[1]
        rejected = {}
        if found.statuses is not None:
            rejected = {
                nodes.node(row).name: one
                for row in range(len(nodes))
                if not found.feasible[row] and (one := found.statuses.status(row)) is not None
            }
        looked, candidates = list[str](), list[str]()
        if found.statuses is not None:
            helps = found.statuses.having(Code.UNSCHEDULABLE)
            for row in range(len(nodes)):
                if found.statuses.numbers[row] != ABSENT:
                    looked.append(nodes.node(row).name)
                if helps[row]:
                    candidates.append(nodes.node(row).name)
        result = DecideResult(
            filtered=tuple(sorted(looked)),
            candidates=tuple(sorted(candidates)),
            node=node,
            status=status,
            feasible=tuple(sorted(feasible)),
            scores=scores,
            rejected=rejected,
            statuses=found.diagnosis.node_statuses,
            nodes=found.cycle.nodes,
        )
        return result, cycle


def _oldest_first(args: object, handle: object) -> OldestFirst:
    return OldestFirst()
