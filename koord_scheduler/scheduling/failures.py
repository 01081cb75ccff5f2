"""What becomes of a pod whose attempt failed, step by step.

Source: Kubernetes, pkg/scheduler/schedule_one.go (handleSchedulingFailure).
"""

from dataclasses import replace

from koord.cluster import decoding
from koord.cluster.facts import ClusterPod
from koord.kube.eventobjects import EventType
from koord.util.clock import Clock
from koord.util.logs import get_logger
from koord_scheduler.cache.assumed import SchedulerState
from koord_scheduler.framework.extension.auditor import AuditRecord, WorkloadAuditor
from koord_scheduler.framework.extension.handlers import FailedPod, FailureFilters
from koord_scheduler.framework.nominator import Nominator
from koord_scheduler.framework.status import Status
from koord_scheduler.queue.schedulingqueue import SchedulingQueue
from koord_scheduler.scheduling.attempt import Attempt, Failure
from koord_scheduler.scheduling.metrics import FAILED, REJECTED, SchedulingMetrics
from koord_scheduler.scheduling.podevents import PodEvents
from koord_scheduler.scheduling.podstatus import (
    SCHEDULER_ERROR,
    UNSCHEDULABLE,
    PodStatuses,
    Unscheduled,
)

log = get_logger("koord_scheduler.scheduling")


class FailedAttempts:
    """Handles attempts that failed."""

    def __init__(
        self,
        state: SchedulerState,
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
        pod = self._state.get(decoding.POD, attempt.pod.key)
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
        self._events.emit(pod, EventType.WARNING, "FailedScheduling", message)
        reason = UNSCHEDULABLE if failure.status.rejected else SCHEDULER_ERROR
        self._statuses.report(pod, Unscheduled(reason, message), failure.nominated_node)


def _audit(auditor: WorkloadAuditor, attempt: Attempt, failure: Failure) -> None:
    """Record a failure, and whether room is being made for the pod on another node."""
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
