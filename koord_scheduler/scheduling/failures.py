"""Attempts to schedule a pod: their timeouts, the latest ones, and handling of failed ones."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from heapq import heappop, heappush
from itertools import count
from typing import Any

import numpy as np

from koord.cluster import kinds
from koord.cluster.facts import ClusterPod
from koord.kube.client import PODS, ApiClient
from koord.kube.errors import TRANSIENT_ERRORS, KubeError, NotFound
from koord.kube.events import Event, EventRecorder, EventType, ObjectRef
from koord.kube.transport import METADATA
from koord.util.clock import Clock
from koord.util.logs import LimitedLog, get_logger
from koord.util.stop import Stop
from koord.util.timebudget import TimeBudget
from koord_scheduler.cache import SchedulerCache
from koord_scheduler.framework.binding import PodBinding
from koord_scheduler.framework.extension.auditor import AuditRecord, WorkloadAuditor
from koord_scheduler.framework.interfaces import FailedPod, FailureFilters
from koord_scheduler.framework.nodes.filtering import NodeScoring
from koord_scheduler.framework.nodes.groupsearch import GroupSearch
from koord_scheduler.framework.nodes.search import NodeSearch
from koord_scheduler.framework.nominator import Nominator
from koord_scheduler.framework.profile import ProfilePlugins
from koord_scheduler.framework.status import CycleState, Diagnosis, NodeStatuses, Status
from koord_scheduler.framework.types import QueuedPod
from koord_scheduler.queue import SchedulingQueue
from koord_scheduler.scheduling.metrics import FAILED, REJECTED, SchedulingMetrics

ATTEMPT_SECONDS = 0.5  # of computing that the cycle of a pod may take: hundreds of ordinary ones


def attempt_budget() -> TimeBudget:
    """Return the computing that one attempt may take."""
    return TimeBudget(ATTEMPT_SECONDS)


class ProfileCycle:
    """The plugins of a profile, or of a part of it, at all points of a cycle."""

    def __init__(
        self,
        plugins: ProfilePlugins,
        nominator: Nominator,
        *,
        choosing: bool = False,
        whole: "ProfileCycle | None" = None,
    ) -> None:
        """choosing: extenders choose among nodes, too. whole: where plugins are a part of it."""
        self.name = plugins.settings.scheduler_name
        self.plugins = plugins
        self.whole = whole or self
        """That of the whole profile, for pods that transformers have changed."""
        self._nominator = nominator
        self._choosing = choosing
        self._parts: dict[ProfilePlugins, ProfileCycle] = {}
        self.search: NodeSearch = NodeSearch(
            plugins, nominator, choosing=choosing, whole=None if whole is None else whole.search
        )
        self.scoring: NodeScoring = NodeScoring(
            plugins, whole=None if whole is None else whole.scoring
        )
        self.groups: GroupSearch = (
            GroupSearch(plugins, self.search, self.scoring) if whole is None else whole.groups
        )
        self.binding = PodBinding(plugins)

    def for_pod(self, pod: ClusterPod) -> "ProfileCycle":
        """Return the part of the profile that has something to do for a pod."""
        part = self.plugins.for_pod(pod)
        if part is self.plugins:
            return self
        found = self._parts.get(part)
        if found is None:
            found = self._parts[part] = ProfileCycle(
                part, self._nominator, choosing=self._choosing, whole=self
            )
        return found


@dataclass(eq=False, kw_only=True, slots=True)
class Attempt:
    """A pod that was taken from the queue."""

    queued: QueuedPod
    pod: ClusterPod  # with its node, once it is assumed there
    profile: ProfileCycle
    began: float  # monotonic seconds
    node: str = ""  # that was chosen
    state: CycleState = field(default_factory=CycleState)
    asked: bool = False  # whether the API server may have been asked to bind it
    budget: TimeBudget = field(default_factory=attempt_budget)  # of its scheduling cycle

    @property
    def uid(self) -> str:
        return self.pod.uid


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why an attempt failed."""

    status: Status  # its message is for the event and the pod's condition
    unschedulable_plugins: frozenset[str] = frozenset()
    pending_plugins: frozenset[str] = frozenset()
    nominated_node: str | None = ""  # "": a nomination that there was is void; None: as it was
    cut: bool = False  # the attempt was ended for time

    @classmethod
    def diagnosed(
        cls, status: Status, diagnosis: Diagnosis, nominated_node: str | None = None
    ) -> "Failure":
        """No node is feasible; the diagnosis says why."""
        return cls(
            status=Status(status.code, (diagnosis.message(),), status.plugin),
            unschedulable_plugins=frozenset(diagnosis.unschedulable_plugins),
            pending_plugins=frozenset(diagnosis.pending_plugins),
            nominated_node=nominated_node,
        )

    @classmethod
    def on_node(cls, status: Status) -> "Failure":
        """After a node was chosen: a plugin rejects the pod there, or something has failed."""
        if not status.rejected:
            return cls(status=status)
        statuses = NodeStatuses(np.ones(1, np.int32), (status,))
        diagnosis = Diagnosis(nodes=1, node_statuses=statuses)
        diagnosis.note(status)
        return cls.diagnosed(status, diagnosis, "")


log = get_logger("koord_scheduler.scheduling")


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptTimeouts:
    """How long attempts may take, from leaving the queue to the end of their binding."""

    timeout: float = 30.0  # seconds of one attempt
    period: float = 10.0  # seconds between two looks at those that are under way


class AttemptMonitor:
    """Reports each attempt that exceeds the timeout once."""

    def __init__(self, timeouts: AttemptTimeouts, metrics: SchedulingMetrics, clock: Clock) -> None:
        self._timeouts = timeouts
        self._metrics = metrics
        self._clock = clock
        self._reported: set[Attempt] = set()  # of those that are under way

    async def run(self, stop: Stop, under_way: Callable[[], Iterable[Attempt]]) -> None:
        """Look at the attempts that are under way once in a period, until stop."""
        while not await stop.sleep(self._timeouts.period):
            for attempt in under_way():
                self._look_at(attempt)

    def ended(self, attempt: Attempt) -> None:
        """An attempt has ended, in whichever way."""
        self._look_at(attempt)
        self._reported.discard(attempt)

    def _look_at(self, attempt: Attempt) -> None:
        seconds = self._clock.monotonic() - attempt.began
        if seconds <= self._timeouts.timeout or attempt in self._reported:
            return
        self._reported.add(attempt)
        self._metrics.timed_out(attempt.profile.name)
        log.warning(
            "attempt.too_long",
            pod=attempt.pod.key,
            uid=attempt.uid,
            node=attempt.node,
            seconds=round(seconds, 3),
            timeout=self._timeouts.timeout,
        )


KEPT = 200
MAX_MESSAGE_LENGTH = 500  # characters


@dataclass(frozen=True, slots=True)
class RecentAttempt:
    """How one attempt ended."""

    at: float  # Unix seconds
    pod: str  # namespace/name
    node: str  # that it was bound to; "": none
    message: str  # why not
    seconds: float  # from the begin of the attempt
    attempts: int  # for this pod, with this one


class RecentAttempts:
    """The latest ones, the newest last, and how many there were. Belongs to the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.kept: deque[RecentAttempt] = deque(maxlen=KEPT)
        self.bound = 0
        self.failed = 0

    def note_bound(self, attempt: Attempt) -> None:
        """A pod is on its node."""
        self.bound += 1
        self._note(attempt, attempt.node, "")

    def note_failed(self, attempt: Attempt, failure: Failure) -> None:
        """A pod goes back into the queue."""
        self.failed += 1
        self._note(attempt, "", failure.status.message[:MAX_MESSAGE_LENGTH])

    def _note(self, attempt: Attempt, node: str, message: str) -> None:
        clock, queued = self._clock, attempt.queued
        seconds = clock.monotonic() - attempt.began
        ended = RecentAttempt(clock.wall(), queued.key, node, message, seconds, queued.attempts)
        self.kept.append(ended)


class PodEvents:
    """Reports events on pods; never waits."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def emit(self, pod: ClusterPod, type_: EventType, reason: str, message: str) -> None:
        """Queue an event to be written soon."""
        about = ObjectRef("v1", "Pod", pod.name, pod.namespace, pod.uid)
        self._recorder.emit(Event(about, type_, reason, message, pod.scheduler_name))


MAX_PATCHES = 4  # patches on their way
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
CONDITION = "PodScheduled"
UNSCHEDULABLE, SCHEDULER_ERROR = "Unschedulable", "SchedulerError"
INITIAL_BACKOFF, MAX_BACKOFF = 1.0, 30.0  # seconds after a patch that failed
_MAX_REMEMBERED = 20_000  # pods


@dataclass(frozen=True, slots=True)
class PodScheduledCondition:
    """The status of a pod that is not scheduled."""

    reason: str  # UNSCHEDULABLE or SCHEDULER_ERROR
    message: str


@dataclass(slots=True)
class _DesiredStatus:
    pod: ClusterPod
    condition: PodScheduledCondition | None = None  # None: as it is
    nominated: str | None = None  # None: as it is; "": none
    pause: float = 0.0  # seconds after the last try, which failed; 0: there was none

    def merge(self, before: "_DesiredStatus") -> None:
        """Take over from an earlier one, which failed, what is not said here."""
        self.pause = before.pause
        if self.nominated is None:
            self.nominated = before.nominated


@dataclass(slots=True)
class _WrittenStatus:
    """The values that this process has written into the status of a pod."""

    condition: PodScheduledCondition | None = None
    nominated: str | None = None


class PodStatuses:
    """Patches the status of pods. One event loop."""

    def __init__(self, client: ApiClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._waiting: OrderedDict[str, _DesiredStatus] = OrderedDict()  # by uid
        self._sending: dict[str, _DesiredStatus] = {}  # by uid; what is not void meanwhile
        self._later: dict[str, _DesiredStatus] = {}  # by uid; what failed
        self._due: list[tuple[float, int, str]] = []  # a heap: when to try again, number, uid
        self._numbers = count()
        self._put_off = asyncio.Event()  # something has failed
        self._known: OrderedDict[str, _WrittenStatus] = OrderedDict()  # by uid; the latest last
        self._woken = asyncio.Event()
        self._failures = LimitedLog(log, clock)

    def __len__(self) -> int:
        """How many patches wait."""
        return len(self._waiting) + len(self._later)

    def report(
        self, pod: ClusterPod, condition: PodScheduledCondition, nominated: str | None
    ) -> None:
        """Queue a condition to be written soon, and the nominated node, if it is not None.

        pod is as the API server has it.
        """
        waiting = self._waiting.get(pod.uid) or self._later.pop(pod.uid, None)
        known = self._known.get(pod.uid, _WrittenStatus())
        before = pod.nominated_node if known.nominated is None else known.nominated
        is_known = pod.uid not in self._sending
        has_it = condition == known.condition and nominated in (None, before)
        if waiting is None and is_known and has_it:
            return
        wanted = waiting or _DesiredStatus(pod)
        wanted.pod, wanted.condition = pod, condition
        if nominated is not None:
            wanted.nominated = None if is_known and nominated == before else nominated
        self._waiting[pod.uid] = wanted
        self._woken.set()

    async def nominate(self, pod: ClusterPod, node: str) -> None:
        """Write the nominated node now; a failure is logged, as nothing depends on it."""
        self.drop(pod)
        if pod.nominated_node != node:
            await self._send(_DesiredStatus(pod, nominated=node))

    def drop(self, pod: ClusterPod) -> None:
        """Nothing that waits is to be written any more."""
        for patches in (self._waiting, self._sending, self._later):
            patches.pop(pod.uid, None)

    def forget(self, uid: str) -> None:
        """A pod was deleted or bound."""
        for patches in (self._waiting, self._sending, self._later):
            patches.pop(uid, None)
        self._known.pop(uid, None)

    async def run(self, stop: Stop) -> None:
        """Write until stop; what still waits then is lost, and comes again with the next try."""
        async with asyncio.TaskGroup() as group:
            for at in range(MAX_PATCHES):
                group.create_task(self._keep_writing(stop), name=f"pod statuses {at}")
            group.create_task(self._keep_returning(stop), name="pod statuses that failed")

    async def _keep_writing(self, stop: Stop) -> None:
        while not stop.is_set():
            if not self._waiting:
                self._woken.clear()
                await stop.bound(self._woken.wait())
                continue
            uid, wanted = self._waiting.popitem(last=False)
            self._sending[uid] = wanted
            over = await stop.bound(self._send(wanted))
            if self._sending.get(uid) is not wanted:
                continue  # it was dropped, or a newer one is on its way
            del self._sending[uid]
            if over is False:
                self._failed(uid, wanted)

    def _failed(self, uid: str, wanted: _DesiredStatus) -> None:
        """Send a failed patch again later, or merge it into a newer one that waits already."""
        newer = self._waiting.get(uid)
        if newer is not None:
            newer.merge(wanted)
            return
        wanted.pause = min(wanted.pause * 2 or INITIAL_BACKOFF, MAX_BACKOFF)
        self._later[uid] = wanted
        heappush(self._due, (self._clock.monotonic() + wanted.pause, next(self._numbers), uid))
        self._put_off.set()

    async def _keep_returning(self, stop: Stop) -> None:
        """Move failed patches back to those that wait when their backoff is over."""
        while not stop.is_set():
            self._put_off.clear()
            if not self._due:
                await stop.bound(self._put_off.wait())
                continue
            left = self._due[0][0] - self._clock.monotonic()
            if left > 0:
                await stop.sleep(left, wake=self._put_off)
                continue
            _, _, uid = heappop(self._due)
            wanted = self._later.pop(uid, None)
            if wanted is not None:
                self._waiting[uid] = wanted
                self._woken.set()

    async def _send(self, wanted: _DesiredStatus) -> bool:
        """Send a patch; return whether it is over, and not to be tried again."""
        pod = wanted.pod
        path = PODS.object(pod.name, namespace=pod.namespace, subresource="status")
        try:
            await self._client.patch(path, self._body(wanted), STRATEGIC_PATCH, accept=METADATA)
        except NotFound:
            return True
        except KubeError as err:
            self._failures.warning("pod_status.patch_failed", pod=pod.key, error=str(err))
            return not isinstance(err, TRANSIENT_ERRORS)
        known = self._known.pop(pod.uid, None) or _WrittenStatus()
        known.condition = wanted.condition or known.condition
        known.nominated = known.nominated if wanted.nominated is None else wanted.nominated
        self._known[pod.uid] = known
        if len(self._known) > _MAX_REMEMBERED:
            self._known.popitem(last=False)
        return True

    def _body(self, wanted: _DesiredStatus) -> dict[str, Any]:
        status: dict[str, Any] = {}
        if wanted.condition is not None:
            condition = {
                "type": CONDITION,
                "status": "False",
                "reason": wanted.condition.reason,
                "message": wanted.condition.message,
            }
            if not any(
                one.type == CONDITION and one.status == "False" for one in wanted.pod.conditions
            ):
                moment = datetime.fromtimestamp(self._clock.wall(), UTC)
                condition["lastTransitionTime"] = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
            status["conditions"] = [condition]
        if wanted.nominated is not None:
            status["nominatedNodeName"] = wanted.nominated or None
        return {"metadata": {"uid": wanted.pod.uid}, "status": status}


class FailedAttempts:
    """Handles attempts that failed."""

    def __init__(
        self,
        state: SchedulerCache,
        queue: SchedulingQueue,
        nominator: Nominator,
        statuses: PodStatuses,
        events: PodEvents,
        metrics: SchedulingMetrics,
        filters: FailureFilters,
        clock: Clock,
        auditor: WorkloadAuditor | None = None,
    ) -> None:
        self._auditor = auditor
        self._filters = filters
        self._state = state
        self._queue = queue
        self._nominator = nominator
        self._statuses = statuses
        self._events = events
        self._metrics = metrics
        self._clock = clock

    def handle(self, attempt: Attempt, failure: Failure) -> None:
        """Requeue the pod, nominate it, and report why it is not scheduled.

        Plugins may do something else instead, and learn of it; see FailureFilters.
        """
        self._count(attempt, failure)
        failure = _renominated(attempt, failure)
        failed = FailedPod(
            profile=attempt.profile.name,
            pod=attempt.pod,
            queued=attempt.queued,
            status=failure.status,
            plugins=failure.unschedulable_plugins | failure.pending_plugins,
            nominated_node=failure.nominated_node,
        )
        if self._filters.before(failed):
            self._queue.done(attempt.uid)
        else:
            self._handle(attempt, failure)
        self._filters.after(failed)
        if self._auditor is not None:
            _audit(self._auditor, attempt, failure)

    def _handle(self, attempt: Attempt, failure: Failure) -> None:
        pod = self._requeue(attempt, failure)
        if pod is None:
            return
        if failure.cut:
            failure = self._cut(attempt, failure)
        self._nominate(pod, failure)
        self._report(pod, failure)

    def _cut(self, attempt: Attempt, failure: Failure) -> Failure:
        """Count an attempt that was ended for time; return a failure that says when the next is."""
        self._metrics.cut(attempt.profile.name)
        spent, wait = attempt.budget.spent, self._queue.wait_of(attempt.queued)
        text = f"ended after {spent:.1f} s of computing, tried again in {wait:g} s"
        status = failure.status
        return replace(failure, status=Status(status.code, (f"{text}: {status.message}",)))

    def _requeue(self, attempt: Attempt, failure: Failure) -> ClusterPod | None:
        """Return the pod to the queue as it is now; None: it is not to be scheduled any more."""
        pod = self._state.get(kinds.POD, attempt.pod.key)
        if pod is None or pod.uid != attempt.uid or pod.node or pod.finished or pod.deleting:
            self._queue.done(attempt.uid)
            return None
        attempt.queued.pod = pod
        self._queue.requeue(
            attempt.queued,
            unschedulable_plugins=failure.unschedulable_plugins,
            pending_plugins=failure.pending_plugins,
            cut=failure.cut,
        )
        return pod

    def _count(self, attempt: Attempt, failure: Failure) -> None:
        result = REJECTED if failure.status.rejected else FAILED
        seconds = self._clock.monotonic() - attempt.began
        self._metrics.attempted(result, attempt.profile.name, seconds)

    def _nominate(self, pod: ClusterPod, failure: Failure) -> None:
        node = failure.nominated_node
        if node and self._state.snapshot.node(node) is not None:
            self._nominator.nominate(pod, node)
        elif node is not None:
            self._nominator.forget(pod.key)

    def _report(self, pod: ClusterPod, failure: Failure) -> None:
        message = failure.status.message
        if not failure.status.rejected:
            log.warning("pod.unscheduled", pod=pod.key, error=message)
        if self._state.is_own_pod(pod.key):
            return  # its plugin reports, when it is notified of the failure
        self._events.emit(pod, EventType.WARNING, "FailedScheduling", message)
        reason = UNSCHEDULABLE if failure.status.rejected else SCHEDULER_ERROR
        self._statuses.report(pod, PodScheduledCondition(reason, message), failure.nominated_node)


def _audit(auditor: WorkloadAuditor, attempt: Attempt, failure: Failure) -> None:
    """Record a failure, and whether preemption for the pod is under way on another node."""
    message = failure.status.message
    auditor.record(attempt.pod, AuditRecord.SCHEDULE_FAILURE, message)
    if failure.nominated_node:
        auditor.record(attempt.pod, AuditRecord.PREEMPT_NOMINATED)
    elif failure.status.rejected and not attempt.node and attempt.profile.binding.has_post_filters:
        auditor.record(attempt.pod, AuditRecord.PREEMPT_FAILURE)


def _renominated(attempt: Attempt, failure: Failure) -> Failure:
    """The failure with the nomination that the rejection of a job's plugin stands for.

    Source: Koordinator, pkg/scheduler/frameworkext (error handlers of job preemption).
    """
    nominations = {
        "JobPreemptionSuccessPlugin": attempt.node,
        "JobRejectPlugin": None,
        "JobPreemptionFailurePlugin": "",
    }
    plugin = failure.status.plugin
    if not failure.status.rejected or plugin not in nominations:
        return failure
    return replace(failure, nominated_node=nominations[plugin])
