"""The binding cycle: from a reserved pod to a bound one, beside the cycles of other pods.

Source: Kubernetes, pkg/scheduler/schedule_one.go (bindingCycle).
"""

import asyncio
from random import Random

from koord.cluster import decoding
from koord.kube.client import ApiClient
from koord.kube.errors import PASSING, KubeError
from koord.kube.eventobjects import EventType
from koord.kube.resource import PODS
from koord.util.backoff import Backoff
from koord.util.clock import Clock
from koord.util.errors import KoordError
from koord.util.logs import LimitedLog, get_logger
from koord_scheduler.cache.assumed import SchedulerState
from koord_scheduler.extenders.chain import Extenders
from koord_scheduler.framework.status import SUCCESS, Code, Status
from koord_scheduler.framework.waitingpods import WaitingPods
from koord_scheduler.queue.schedulingqueue import SchedulingQueue
from koord_scheduler.scheduling.attempt import Attempt
from koord_scheduler.scheduling.metrics import SCHEDULED, SchedulingMetrics
from koord_scheduler.scheduling.podevents import PodEvents
from koord_scheduler.scheduling.podstatus import PodStatuses

AT_ONCE = 64  # requests for bindings on their way

log = get_logger("koord_scheduler.scheduling")


class BindingCycle:
    """Runs binding cycles, many at a time."""

    def __init__(
        self,
        state: SchedulerState,
        queue: SchedulingQueue,
        waiting: WaitingPods,
        statuses: PodStatuses,
        events: PodEvents,
        metrics: SchedulingMetrics,
        client: ApiClient,
        clock: Clock,
        draw: Random,
        extenders: Extenders | None = None,
    ) -> None:
        """draw lengthens the pauses before what is asked again."""
        self._client = client
        self._doubts = LimitedLog(log, clock)
        self._state = state
        self._queue = queue
        self._waiting = waiting
        self._statuses = statuses
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._draw = draw
        self._extenders = extenders
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self, attempt: Attempt) -> Status:
        """Bind the pod; anything but Success: it is not bound, as far as is known, and reserved.

        A rejection comes only from a plugin that refused it in its time.
        """
        status = await self._prepare(attempt)
        if status.ok:
            status = self._still_wanted(attempt)
        if not status.ok:
            return status
        status = await self._bind(attempt)
        if not status.ok and await self._was_bound(attempt):
            return SUCCESS
        return status

    async def bound(self, attempt: Attempt) -> None:
        """Report that the pod is bound, and call PostBind."""
        self._state.finish_binding(attempt.uid)
        self._note_bound(attempt)
        await attempt.profile.binding.post_bind(attempt.state, attempt.pod, attempt.node)

    async def _prepare(self, attempt: Attempt) -> Status:
        """Wait for the permit, and call PreBind."""
        binding, pod, node = attempt.profile.binding, attempt.pod, attempt.node
        flight = binding.pre_bind_pre_flight(attempt.state, pod, node)
        if not flight.ok and flight.code is not Code.SKIP:
            return flight
        waits = self._waiting.get(pod.uid) is not None
        if waits or flight.ok:
            await self._statuses.nominate(pod, node)
        if waits:
            status = await binding.wait_on_permit(pod)
            if not status.ok:
                return status
        self._queue.done(pod.uid)
        if not flight.ok:
            return SUCCESS
        status = self._still_wanted(attempt)
        return await binding.pre_bind(attempt.state, pod, node) if status.ok else status

    async def _bind(self, attempt: Attempt) -> Status:
        async with self._slots:
            status = self._still_wanted(attempt)
            if not status.ok:
                return status
            self._statuses.drop(attempt.pod)
            attempt.asked = True
            if self._extenders is not None:
                try:
                    if await self._extenders.bind(attempt.pod, attempt.node):
                        return SUCCESS
                except KoordError as err:
                    return Status.failed(err)
            return await attempt.profile.binding.bind(attempt.state, attempt.pod, attempt.node)

    async def _was_bound(self, attempt: Attempt) -> bool:
        """Whether the API server has the pod on its node, although the binding has failed.

        The answer may have been lost. Until that is known the pod keeps its room, so that no other
        is placed where it runs: the watch may say so much later.
        """
        pod, pauses = attempt.pod, Backoff(1.0, 30.0, draw=self._draw.random)
        path = PODS.object(pod.name, namespace=pod.namespace)
        while self._state.is_assumed(attempt.uid):
            try:
                found = await self._client.get(path)
            except PASSING as err:
                self._doubts.warning("binding.unknown", pod=pod.key, error=str(err))
                await self._clock.sleep(pauses.next())
            except KubeError:
                return False
            else:
                there = found.get("metadata", {}), found.get("spec", {})
                return (there[0].get("uid"), there[1].get("nodeName")) == (pod.uid, attempt.node)
        return False

    def _still_wanted(self, attempt: Attempt) -> Status:
        """An error, if the pod or its node have gone meanwhile: nothing needs to be asked."""
        pod = self._state.get(decoding.POD, attempt.pod.key)
        if pod is None or not self._state.is_assumed(attempt.uid):
            return Status.failed("the pod was deleted or bound by another scheduler meanwhile")
        if pod.deleting:
            return Status.failed("pod is being deleted")
        if pod.scheduler_name != attempt.profile.name:
            return Status.failed("schedulerName unmatched")
        if self._state.snapshot.node(attempt.node) is None:
            return Status.failed(f"node {attempt.node} was deleted meanwhile")
        return SUCCESS

    def _note_bound(self, attempt: Attempt) -> None:
        queued, now = attempt.queued, self._clock.monotonic()
        self._metrics.attempted(SCHEDULED, attempt.profile.name, now - attempt.began)
        first = attempt.began if queued.first_attempt is None else queued.first_attempt
        self._metrics.bound(queued.attempts, now - first)
        text = f"Successfully assigned {attempt.pod.key} to {attempt.node}"
        self._events.emit(attempt.pod, EventType.NORMAL, "Scheduled", text)
