"""The scheduler: pops pods, runs a scheduling cycle for each, and starts its binding cycle."""

import asyncio
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from random import Random
from typing import Any, cast

from koord.cluster import kinds
from koord.cluster.account import FrozenAccount
from koord.cluster.decoder import ObjectKind
from koord.cluster.facts import ClusterNode, ClusterPod
from koord.component.plugins.execution import FailureLog, running_plugin
from koord.controlplane.clusterfeed import SCHEDULER_KINDS
from koord.kube.client import Resource
from koord.util.clock import Clock
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import LimitedLog, get_logger
from koord.util.stop import Stop, first_completed
from koord.util.timebudget import TimeBudget, Turn
from koord_scheduler.cache import SchedulerCache
from koord_scheduler.config.profiles import Point
from koord_scheduler.extenders import Extenders
from koord_scheduler.framework.calls import ExtensionPointError, Loaded
from koord_scheduler.framework.customresources import event_resource_of
from koord_scheduler.framework.extension.auditor import AuditRecord
from koord_scheduler.framework.handle import SchedulerControl, Services
from koord_scheduler.framework.interfaces import ForgetHandlers, NextPodPlugin
from koord_scheduler.framework.nominator import Nominator
from koord_scheduler.framework.profile import Enqueueing, ProfileError, ProfilePlugins
from koord_scheduler.framework.status import Status as PodStatus
from koord_scheduler.framework.types import (
    POD_DELETED,
    Action,
    ClusterEvent,
    EventResource,
    QueuedPod,
    Refresh,
    cluster_event,
)
from koord_scheduler.queue import (
    MAX_IN_UNSCHEDULABLE_PODS,
    BackoffOptions,
    SchedulingQueue,
)
from koord_scheduler.scheduling.cycle import (
    QUEUE,
    BindingCycle,
    Debugging,
    DiagnosisDump,
    SchedulingCycle,
)
from koord_scheduler.scheduling.failures import (
    CONDITION,
    UNSCHEDULABLE,
    Attempt,
    AttemptMonitor,
    AttemptTimeouts,
    FailedAttempts,
    Failure,
    PodEvents,
    PodScheduledCondition,
    PodStatuses,
    ProfileCycle,
    RecentAttempts,
    attempt_budget,
)
from koord_scheduler.scheduling.metrics import SchedulingMetrics

_STATUS = frozenset(
    {
        "phase",
        "qos",
        "nominated_node",
        "started",
        "ready",
        "status_reason",
        "containers",
        "conditions",
        "condition_times",
    }
)
_OTHER = operator.attrgetter(
    *(
        name
        for name in ClusterPod.__struct_fields__
        if name not in _STATUS | {"label_set", "spec", "scheduling_gates"}
    )
)
_SHORT = {resource.value.lower(): resource.value for resource in EventResource}


def pod_actions(old: ClusterPod, new: ClusterPod) -> tuple[Action, ...]:
    """Return the changes of a pod, one action for each event.

    It is empty if only the status has changed, and not the resources in it: most updates of pods
    are like this, above all those that this program writes itself.
    """
    found = []
    if old.label_set is not new.label_set and old.labels != new.labels:
        found.append(Action.UPDATE_POD_LABEL)
    if old.spec is not new.spec:
        if _asks_less(old.spec.requests, new.spec.requests):
            found.append(Action.UPDATE_POD_SCALE_DOWN)
        if old.spec.tolerations != new.spec.tolerations:
            found.append(Action.UPDATE_POD_TOLERATION)
    if old.scheduling_gates and not new.scheduling_gates:
        found.append(Action.UPDATE_POD_GATES_ELIMINATED)
    if not found and (old.spec is not new.spec or _OTHER(old) != _OTHER(new)):
        found.append(Action.UPDATE_OTHER)
    return tuple(found)


def node_actions(old: ClusterNode, new: ClusterNode) -> tuple[Action, ...]:
    """Return the changes of a node, one action for each event; empty if none concerns a pod."""
    found = []
    if old.allocatable != new.allocatable:
        found.append(Action.UPDATE_NODE_ALLOCATABLE)
    if old.labels != new.labels:
        found.append(Action.UPDATE_NODE_LABEL)
    if (old.taints, old.unschedulable) != (new.taints, new.unschedulable):
        found.append(Action.UPDATE_NODE_TAINT)
    if old.conditions != new.conditions:
        found.append(Action.UPDATE_NODE_CONDITION)
    if (old.annotations, old.raw_allocatable) != (new.annotations, new.raw_allocatable):
        found.append(Action.UPDATE_NODE_ANNOTATION)
    return tuple(found)


def events_of(kind: ObjectKind[Any], old: Any, new: Any) -> Iterator[ClusterEvent]:
    """The events of an object that is no pod; None: it is absent."""
    resource = RESOURCES[kind]
    if old is None or new is None:
        yield cluster_event(resource, Action.ADD if old is None else Action.DELETE)
    elif kind is kinds.NODE:
        for action in node_actions(old, new):
            yield cluster_event(resource, action)
    else:
        yield cluster_event(resource, Action.UPDATE)


def _asks_less(old: tuple[tuple[str, int], ...], new: tuple[tuple[str, int], ...]) -> bool:
    now = dict(new)
    return any(amount > now.get(name, 0) for name, amount in old)


def _resource_of(kind: ObjectKind[Any], served: Resource) -> str:
    """An EventResource, or resource.version.group as plugins of Koordinator register it."""
    known = _SHORT.get(kind.name.lower())
    if known is not None:
        return known
    return event_resource_of(served)


RESOURCES: Mapping[ObjectKind[Any], str] = {
    kind: _resource_of(kind, place.resource) for kind, place in SCHEDULER_KINDS.items()
}
"""The resource in events of a kind: "Node" or "nodemetrics.v1alpha1.slo.koordinator.sh"."""

_POD_ADDED = ClusterEvent(EventResource.ASSIGNED_POD, Action.ADD)


class _PodPlace(Enum):
    ABSENT = auto()  # or finished, which takes no resources any more
    UNSCHEDULED = auto()
    ASSIGNED = auto()


class EventHandlers:
    """Observes the state, for plugins and for the queue."""

    def __init__(
        self,
        state: SchedulerCache,
        services: Services,
        plugins: Enqueueing,
        queue: SchedulingQueue,
        statuses: PodStatuses,
    ) -> None:
        self._state = state
        self._changes = services.changes
        self._waiting = services.waiting
        self._nominator = services.nominator
        self._plugins = plugins
        self._queue = queue
        self._statuses = statuses

    def is_wanted(self, pod: ClusterPod) -> bool:
        """Whether a pod, as the API server has it, waits for us to schedule it."""
        return (
            _place(pod) is _PodPlace.UNSCHEDULED
            and self._is_ours(pod)
            and not self._state.is_assumed(pod.uid)
        )

    def __call__(self, kind: ObjectKind[Any], old: Any, new: Any) -> None:
        """Take note of a change; see OnStateChange."""
        self._changes.notify(kind, old, new)  # first, as hints may look at what plugins keep
        if kind is kinds.POD:
            self._pod_changed(old, new)
            return
        for event in events_of(kind, old, new):
            self._queue.on_cluster_event(event, old, new)

    def _pod_changed(self, old: ClusterPod | None, new: ClusterPod | None) -> None:
        before, after = _place(old), _place(new)
        if self._nominator.others is not None:
            self._others_nominate(self._nominator.others, old, new)
        if new is not None and after is _PodPlace.UNSCHEDULED:
            self._wanted(old if before is _PodPlace.UNSCHEDULED else None, new)
        elif old is not None and before is _PodPlace.UNSCHEDULED:
            self._unwanted(old, is_assigned=after is _PodPlace.ASSIGNED)
        if _PodPlace.ASSIGNED in (before, after):
            self._assigned_changed(
                old if before is _PodPlace.ASSIGNED else None,
                new if after is _PodPlace.ASSIGNED else None,
            )

    def _wanted(self, old: ClusterPod | None, new: ClusterPod) -> None:
        """An unscheduled pod was added or changed."""
        if not self._is_ours(new):
            if old is not None:
                self._unwanted(old)
            return
        if old is not None and old.scheduler_name != new.scheduler_name:
            self._unwanted(old)
            old = None
        if self._state.is_assumed(new.uid):
            return
        self._nominate(old, new)
        if old is None:
            self._queue.add(new)
        else:
            resource = EventResource.UNSCHEDULED_POD
            events = [cluster_event(resource, action) for action in pod_actions(old, new)]
            self._queue.update(new, events, old)

    def _nominate(self, old: ClusterPod | None, new: ClusterPod) -> None:
        """Take over what a pod's status says, unless it says nothing about it now and before."""
        before = "" if old is None else old.nominated_node
        if new.nominated_node and new.nominated_node != before:
            self._nominator.nominate(new, new.nominated_node)
        elif before and not new.nominated_node:
            self._nominator.forget(new.key)

    def _others_nominate(
        self, others: Nominator, old: ClusterPod | None, new: ClusterPod | None
    ) -> None:
        """Take over to which node another scheduler has nominated its pod."""
        waits = new is not None and _place(new) is _PodPlace.UNSCHEDULED and not new.deleting
        if new is not None and waits and new.nominated_node and not self._plugins.schedules(new):
            known = others.node_of(new.key)
            if known == new.nominated_node:
                others.update(new)
                return
            others.nominate(new, new.nominated_node)
            if known is not None:
                self._queue.on_cluster_event(POD_DELETED, old, None)
            return
        gone = old or new
        if gone is None or others.node_of(gone.key) is None:
            return
        others.forget(gone.key)
        if _place(new) is not _PodPlace.ASSIGNED:  # its resources are free for ours again
            self._queue.on_cluster_event(POD_DELETED, gone, None)

    def _unwanted(self, pod: ClusterPod, *, is_assigned: bool = False) -> None:
        """An unscheduled pod is not to be scheduled any more."""
        if not self._plugins.schedules(pod):
            return
        nominated = self._nominator.node_of(pod.key)
        self._queue.forget(pod)
        self._statuses.forget(pod.uid)
        if is_assigned:
            return
        self._waiting.reject(pod.uid, "the pod is being deleted")
        if nominated is not None:  # others of its priority left resources for it there
            self._queue.on_cluster_event(POD_DELETED, pod, None)

    def _assigned_changed(self, old: ClusterPod | None, new: ClusterPod | None) -> None:
        if old is None:
            self._queue.on_cluster_event(_POD_ADDED, None, new)
        elif new is None:
            self._queue.on_cluster_event(POD_DELETED, old, None)
        else:
            for action in pod_actions(old, new):
                event = cluster_event(EventResource.ASSIGNED_POD, action)
                self._queue.on_cluster_event(event, old, new)

    def _is_ours(self, pod: ClusterPod) -> bool:
        return not pod.deleting and self._plugins.schedules(pod)


def _place(pod: ClusterPod | None) -> _PodPlace:
    if pod is None or pod.finished:
        return _PodPlace.ABSENT
    return _PodPlace.ASSIGNED if pod.node else _PodPlace.UNSCHEDULED


class NextPod:
    """Asks the instance of the first profile that has the plugin."""

    def __init__(self, profile: ProfilePlugins, loaded: Loaded) -> None:
        self._calls = profile.calls
        self._loaded = loaded
        self._plugin = cast(NextPodPlugin, loaded.plugin)

    def uid(self) -> str | None:
        """The uid of the next pod; None: the queue's own order, as when the plugin fails."""
        try:
            if not self._plugin.has_next:
                return None
            return self._calls.ask(self._loaded, Point.QUEUE_SORT, self._plugin.next_pod)
        except ExtensionPointError:
            return None  # it is logged
        except Exception as err:  # a plugin's property
            self._calls.failed(self._loaded, Point.QUEUE_SORT, err)
            return None


def next_pod_of(profiles: Sequence[ProfilePlugins]) -> NextPod | None:
    """Return what asks for the next pod; None: no profile has such a plugin.

    Raises:
        ProfileError: profiles have different ones.
    """
    found: dict[str, ProfilePlugins] = {}
    for profile in profiles:
        for name, plugin in profile.plugins.items():
            if isinstance(plugin, NextPodPlugin):
                found.setdefault(name, profile)
    if len(found) > 1:
        names = ", ".join(sorted(found))
        wanted = "wanted one plugin that says which pod is next, in all profiles together"
        raise ProfileError(profiles[-1].settings.scheduler_name, [f"{wanted}, found {names}"])
    for name, profile in found.items():
        return NextPod(profile, profile.loaded(name))
    return None


class CacheControl(SchedulerControl):
    """See SchedulerControl. One event loop."""

    def __init__(
        self,
        state: SchedulerCache,
        forgotten: ForgetHandlers,
        clock: Clock,
        statuses: PodStatuses | None = None,
    ) -> None:
        """statuses: None: nothing is written into pods."""
        self._state = state
        self._forgotten = forgotten
        self._statuses = statuses
        self._failures = FailureLog(log, clock)

    def pod(self, key: str) -> ClusterPod | None:
        return self._state.pod(key)

    def is_assumed(self, uid: str) -> bool:
        return self._state.is_assumed(uid)

    def forget_pod(self, pod: ClusterPod) -> bool:
        was_assumed = self._state.forget(pod.uid)
        self._forgotten.forgotten(pod)
        return was_assumed

    def put_own_pod(self, pod: ClusterPod) -> None:
        self._state.put_own_pod(pod)

    def remove_own_pod(self, key: str) -> None:
        self._state.remove_own_pod(key)

    def put_smaller_pod(self, pod: ClusterPod) -> None:
        self._state.put_smaller_pod(pod)

    def refresh_own_pods(self, refresh: Refresh) -> None:
        plugin = running_plugin()

        def guarded(before: FrozenAccount, now: FrozenAccount) -> Iterable[ClusterPod]:
            try:
                return tuple(refresh(before, now))
            except Exception as err:  # of a plugin; a view must be there for all others
                self._failures.failed("own_pods.failed", plugin, err)
                return ()

        self._state.refresh_own_pods(guarded)

    def report_unschedulable(self, pod: ClusterPod, message: str) -> None:
        there, placed = self._state.get(kinds.POD, pod.key), self._state.pod(pod.key)
        if self._statuses is None or there is None or placed is None or there.uid != pod.uid:
            return
        has_one = any(one.type == CONDITION and one.status == "False" for one in there.conditions)
        if not (has_one or placed.node or there.deleting or self._state.is_own_pod(pod.key)):
            condition = PodScheduledCondition(UNSCHEDULABLE, message)
            self._statuses.report(there, condition, None)


TIME_SLICE = (
    0.005  # real seconds of cycles in a row before others on the event loop have their turn
)
DEFAULT_TIMEOUTS = AttemptTimeouts()
LAST_SECONDS = 2.0  # for bindings that were asked for when the end comes; the lease is held so long
MAX_BINDINGS = 1000  # that are ready to be bound, or almost; then the next cycle waits for them

log = get_logger("koord_scheduler.scheduling")


class Scheduler:
    """Schedules the pods of all profiles.

    It is made when the plugins are, and before the first list comes: it observes the state, and so
    keeps the queue also while another replica leads. One event loop.
    """

    def __init__(
        self,
        profiles: Sequence[ProfilePlugins],
        state: SchedulerCache,
        services: Services,
        metrics: SchedulingMetrics,
        *,
        backoff: BackoffOptions | None = None,
        draw: Random | None = None,
        resizes: bool = False,
        extenders: Extenders | None = None,
        debugging: Debugging | None = None,
        timeouts: AttemptTimeouts = DEFAULT_TIMEOUTS,
        max_in_unschedulable_pods: float = MAX_IN_UNSCHEDULABLE_PODS,
        diagnoses: int = QUEUE,
        budget: Callable[[], TimeBudget] = attempt_budget,
    ) -> None:
        """state is services.cluster. draw chooses among equally good nodes, and lengthens pauses.

        resizes: the feature gate ResizePod. extenders: services that are asked as well; None: there
        are none. timeouts: of attempts. max_in_unschedulable_pods: in seconds; see SchedulingQueue.
        diagnoses: that wait to be dumped at most. budget: makes that of an attempt.

        Raises:
            ProfileError: the profiles do not go together; see Enqueueing.
        """
        clock, nominator = services.clock, services.nominator
        self._clock = clock
        self._budget = budget
        self._limits = services.limits
        self._state = state
        choosing = extenders is not None and extenders.choosing
        self.profiles = {
            each.settings.scheduler_name: ProfileCycle(each, nominator, choosing=choosing)
            for each in profiles
        }
        plugins = Enqueueing(profiles)
        self.queue = SchedulingQueue(
            plugins,
            nominator,
            clock,
            backoff,
            metrics.incoming_pod,
            max_in_unschedulable_pods=max_in_unschedulable_pods,
        )
        self._statuses = PodStatuses(services.client, clock)
        self._changes = EventHandlers(state, services, plugins, self.queue, self._statuses)
        state.observe(self._changes)
        metrics.observe(self.queue, state)
        events = PodEvents(services.events)
        draw = draw or Random()  # noqa: S311 - it protects nothing
        debugging = debugging or Debugging()
        self._dump = DiagnosisDump(debugging, clock, most=diagnoses)
        self.cycle = SchedulingCycle(
            state,
            nominator,
            metrics,
            clock,
            draw,
            resizes=resizes,
            extenders=extenders,
            debugging=debugging,
            dump=self._dump,
        )
        self._binding = BindingCycle(
            state,
            self.queue,
            services.waiting,
            self._statuses,
            events,
            metrics,
            services.client,
            clock,
            draw,
            extenders,
        )
        self._failed = FailedAttempts(
            state,
            self.queue,
            nominator,
            self._statuses,
            events,
            metrics,
            services.failures,
            clock,
            services.auditor,
        )
        plugins.watch_custom(services.custom_resources, frozenset(RESOURCES.values()))
        services.custom_resources.deliver_to(self.queue.on_cluster_event)
        control = CacheControl(state, services.forgotten, clock, self._statuses)
        services.control.set(control)
        self._next_pod = next_pod_of(profiles)
        self._waiting = services.waiting
        self._auditor = services.auditor
        self._monitor = AttemptMonitor(timeouts, metrics, clock)
        self.recent = RecentAttempts(clock)
        self._trying: Attempt | None = None  # in its scheduling cycle
        self._bindings: dict[asyncio.Task[None], Attempt] = {}
        self._ended = asyncio.Event()  # a binding has
        self._crashes = LimitedLog(log, clock)

    @property
    def bindings(self) -> int:
        """How many pods are on their way from their reservation to the end of their binding."""
        return len(self._bindings)

    def activate(self, uids: Iterable[str]) -> None:
        """See Services.activate."""
        self.queue.activate(uids)

    def health(self) -> PartHealth:
        """Degraded while nothing is scheduled because bindings do not end."""
        if self._is_full:
            found = f"{self.bindings} bindings do not end; is the API server there?"
            return PartHealth(HealthStatus.DEGRADED, found)
        return OK

    async def run(self, stop: Stop) -> None:
        """Schedule pods until stop; then bindings that were asked for have LAST_SECONDS to end.

        Others, and all that are on their way when this is cancelled, are given up. Whether such a
        binding was carried out says the API server: until its word comes the pod is on no node, and
        in the queue.
        """
        background = Stop(self._clock)
        with self._limits:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.queue.run(background), name="queue")
                group.create_task(self._statuses.run(background), name="pod statuses")
                group.create_task(self._monitor.run(background, self._under_way), name="monitor")
                group.create_task(self._dump.run(background), name="diagnoses")
                try:
                    await stop.bound(self._schedule())
                    await self._finish_bindings()
                finally:
                    await self._give_up(tuple(self._bindings))
                    background.set()

    async def _schedule(self) -> None:
        turn = Turn(TIME_SLICE)
        while True:
            queued = self._pop()
            if queued is None:
                queued = await self.queue.pop()
                turn.begin()  # while this waited, all others had their turn
            await self._try(queued)
            if self._is_full:
                await self._wait_for_bindings()
            await turn.yield_if_over()

    def _pop(self) -> QueuedPod | None:
        """The pod that a plugin wants next, else the queue's; None: none is ready."""
        wanted = None if self._next_pod is None else self._next_pod.uid()
        queued = None if wanted is None else self.queue.pop_one(wanted)
        return queued or self.queue.pop_now()

    async def _try(self, queued: QueuedPod) -> None:
        """Run a scheduling cycle for a pod, and start its binding cycle."""
        pod = self._state.get(kinds.POD, queued.pod.key)
        profile = self.profiles.get(queued.pod.scheduler_name)
        if (
            pod is None
            or profile is None
            or pod.uid != queued.pod.uid
            or not self._changes.is_wanted(pod)
        ):
            self.queue.done(queued.pod.uid)
            return
        attempt = Attempt(
            queued=queued,
            pod=pod,
            profile=profile.for_pod(pod),
            began=self._clock.monotonic(),
            budget=self._budget(),
        )
        self._trying = attempt
        if self._auditor is not None:
            self._auditor.record(pod, AuditRecord.ATTEMPT)
        try:
            failure = await self.cycle.run(attempt)
        except asyncio.CancelledError:
            self._trying = None
            self._monitor.ended(attempt)
            self._return(attempt)
            raise
        except Exception as err:  # one bad pod must not hold up all others
            failure = self._crashed(attempt, err)
            if attempt.node:
                self.cycle.roll_back(attempt)
        self._trying = None
        self.queue.charge(pod.namespace, attempt.budget.spent)
        if failure is not None:
            self._monitor.ended(attempt)
            self._fail(attempt, failure)
            return
        task = asyncio.create_task(self._bind(attempt), name=f"binding of {pod.key}")
        self._bindings[task] = attempt
        task.add_done_callback(self._binding_ended)

    async def _bind(self, attempt: Attempt) -> None:
        """Run the binding cycle of a pod, and handle its failure."""
        try:
            status = await self._binding.run(attempt)
            failure = None if status.ok else Failure.on_node(status)
        except asyncio.CancelledError:
            if not self._is_bound(attempt):
                self.cycle.roll_back(attempt)
                self._return(attempt)
            raise
        except Exception as err:
            failure = self._crashed(attempt, err)
        if failure is None or self._is_bound(attempt):
            if self._auditor is not None:
                self._auditor.record(attempt.pod, AuditRecord.SCHEDULED)
            self.recent.note_bound(attempt)
            await self._binding.bound(attempt)
            return
        placed = attempt.pod
        self.cycle.roll_back(attempt)
        self._fail(attempt, failure)
        # Its room is free for others; it must not wake itself, or it would try again at once.
        self.queue.on_cluster_event(POD_DELETED, placed, None, without=attempt.uid)

    def _fail(self, attempt: Attempt, failure: Failure) -> None:
        self.recent.note_failed(attempt, failure)
        self._failed.handle(attempt, failure)

    def _is_bound(self, attempt: Attempt) -> bool:
        """Whether the API server says that the pod is on its node, whatever it answered to us."""
        pod = self._state.get(kinds.POD, attempt.pod.key)
        return pod is not None and (pod.uid, pod.node) == (attempt.uid, attempt.node)

    def _crashed(self, attempt: Attempt, error: Exception) -> Failure:
        """A fault of our own: log it, and have the pod be tried again."""
        text = f"{type(error).__name__}: {error}"
        self._crashes.error("attempt.crashed", pod=attempt.pod.key, error=text, exc_info=error)
        return Failure(status=PodStatus.failed(text))

    def _return(self, attempt: Attempt) -> None:
        """Put a pod into the queue as if it had never been tried: this process stops."""
        self.queue.done(attempt.uid)
        pod = self._state.get(kinds.POD, attempt.pod.key)
        if pod is not None and pod.uid == attempt.uid and self._changes.is_wanted(pod):
            self.queue.add(pod)

    @property
    def _is_full(self) -> bool:
        return len(self._bindings) - len(self._waiting) >= MAX_BINDINGS

    async def _wait_for_bindings(self) -> None:
        while self._is_full:
            self._ended.clear()
            await self._ended.wait()

    def _under_way(self) -> tuple[Attempt, ...]:
        """All attempts that have not ended."""
        bindings = tuple(self._bindings.values())
        return bindings if self._trying is None else (self._trying, *bindings)

    def _binding_ended(self, task: "asyncio.Task[None]") -> None:
        self._monitor.ended(self._bindings.pop(task))
        self._ended.set()

    async def _finish_bindings(self) -> None:
        """Wait for answers about bindings that were asked for, as long as they may take."""
        await self._give_up([task for task, one in self._bindings.items() if not one.asked])
        asked = tuple(self._bindings)
        if asked:
            timer = self._clock.timer(LAST_SECONDS)
            await first_completed(asyncio.wait(asked), timer)
            timer.cancel()

    async def _give_up(self, tasks: Sequence["asyncio.Task[None]"]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
