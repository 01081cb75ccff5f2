"""Carry out preemptions: delete the victims, and clear nominations of lower priority."""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

from koord.cluster.facts import ClusterPod
from koord.cluster.kinds import POD
from koord.component.plugins.shared import SharedPart
from koord.kube.client import PODS, STRATEGIC_MERGE_PATCH
from koord.kube.errors import Conflict, KubeError, NotFound
from koord.kube.events import Event, EventType, ObjectRef
from koord.kube.transport import Deadline
from koord.util.health import OK, PartHealth
from koord.util.logs import get_logger
from koord.util.stop import Stop
from koord_scheduler.framework.handle import Services
from koord_scheduler.rules.preemption import Candidate, may_preempt

PART = "preemption"
READY_TIMEOUT = 30.0  # seconds for all requests about one victim
MAX_PARALLEL_DELETIONS = 16  # victims of one preemptor
UNCERTAIN_SECONDS = 5.0  # seconds in which the watch says, too, that a victim has gone
FAILED_PAUSE = 1.0  # seconds from a failure until its preemptor is tried again

DISRUPTION_TARGET, BY_SCHEDULER = "DisruptionTarget", "PreemptionByScheduler"

log = get_logger("koord_scheduler.preemption")


def preempted(pod: ClusterPod) -> bool:
    """Whether a pod has the condition that it is to leave for one of higher priority."""
    for one in pod.conditions:
        if one.type == DISRUPTION_TARGET:
            return one.status == "True" and one.reason == BY_SCHEDULER
    return False


@dataclass(frozen=True, eq=False, slots=True)
class Preemption:
    """A preemption decision: the victims leave their nodes for the pod.

    They may be on other nodes than the chosen one, where their quota has no room for all, or where
    pods are placed that must be placed together with it.
    """

    profile: str  # scheduler name
    plugin: str
    pod: ClusterPod
    chosen: Candidate
    others: tuple[tuple[ClusterPod, str], ...] = ()  # nominated with it, and their nodes

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes on which pods are to be placed."""
        return frozenset((self.chosen.node, *(node for _, node in self.others)))


class PreemptionMetrics:
    """Metrics of preemption, with kube-scheduler's names."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.attempts = Counter(
            "scheduler_preemption_attempts_total",
            "Total preemption attempts in the cluster till now.",
            registry=registry,
        )
        self.victims = Histogram(
            "scheduler_preemption_victims",
            "Number of selected preemption victims.",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=registry,
        )
        self.runs = Counter(
            "scheduler_preemption_goroutines_execution_total",
            "Number of preemptions whose victims were deleted, by result: success or error.",
            ["result"],
            registry=registry,
        )
        self.durations = Histogram(
            "scheduler_preemption_goroutines_duration_seconds",
            "Duration of deleting the victims of a preemption, by result: success or error.",
            ["result"],
            buckets=tuple(0.01 * 2**power for power in range(20)),
            registry=registry,
        )


class Preemptions(SharedPart):
    """Preemptions of all profiles, from when they are decided until the victims are leaving."""

    def __init__(self, services: Services) -> None:
        self.metrics = services.metrics.own(PreemptionMetrics)
        self._services = services
        self._clock = services.clock
        self._by_pod: dict[str, Preemption] = {}  # by uid of the preemptor
        self._decided: deque[Preemption] = deque()
        self._void: deque[ClusterPod] = deque()  # pods whose status names a node in vain
        self._woken = asyncio.Event()
        services.changes.subscribe(POD, self._on_pod)

    @classmethod
    def of(cls, services: Services) -> "Preemptions":
        """The one of this process."""
        return services.shared.get(PART, lambda: cls(services))

    def begin(self, preemption: Preemption) -> None:
        """Queue victims to be removed soon; if none of them is on its node, remove nothing.

        Returns at once.
        """
        self.metrics.victims.observe(len(preemption.chosen.victims))
        for pod, node in preemption.others:
            self._services.nominator.nominate(pod, node)
        stays = any(self._stays(one) for one in preemption.chosen.victims)
        if stays or preemption.others:
            self._by_pod[preemption.pod.uid] = preemption
            self._decided.append(preemption)
            self._woken.set()

    def drop_nominations(self, pods: Iterable[ClusterPod]) -> None:
        """End the nominations of pods, and clear soon what their statuses say of them."""
        for pod in pods:
            self._services.nominator.forget(pod.key)
            if pod.nominated_node:
                self._void.append(pod)
                self._woken.set()

    def under_way(self, uid: str) -> bool:
        """Whether victims of a preemptor, by uid, have not begun to leave yet."""
        preemption = self._by_pod.get(uid)
        return preemption is not None and any(self._stays(one) for one in preemption.chosen.victims)

    async def run(self, stop: Stop) -> None:
        """Act on what is decided until stop; what is not done by then is given up."""
        try:
            await stop.bound(self._act())
        finally:
            waiting = list(self._by_pod)
            self._by_pod.clear()
            self._decided.clear()
            self._void.clear()
            self._services.activate(waiting)

    async def wait_ready(self) -> None:
        """It knows enough from the beginning."""

    def health(self) -> PartHealth:
        return OK

    async def _act(self) -> None:
        turns = asyncio.Semaphore(MAX_PARALLEL_DELETIONS)
        async with asyncio.TaskGroup() as group:
            while True:
                while self._decided:
                    group.create_task(self._make_room(self._decided.popleft()))
                while self._void:
                    pod = self._void.popleft()
                    group.create_task(self._write_nomination(pod, None, turns))
                self._woken.clear()
                await self._woken.wait()

    async def _make_room(self, preemption: Preemption) -> None:
        began, result = self._clock.monotonic(), "success"
        turns, doubtful = asyncio.Semaphore(MAX_PARALLEL_DELETIONS), list[ClusterPod]()
        try:
            async with asyncio.TaskGroup() as group:
                own = {pod.key for pod, _ in preemption.others}
                for node in preemption.nodes:
                    for pod in self._services.nominator.pods_of(node):
                        if may_preempt(preemption.pod, pod) and pod.key not in own:
                            group.create_task(self._end_nomination(pod))
                for pod, node in preemption.others:
                    group.create_task(self._write_nomination(pod, node, turns))
                for victim in preemption.chosen.victims:
                    group.create_task(self._remove(victim, preemption, turns, doubtful))
        except* KubeError as errors:
            result = "error"
            facts = {"pod": preemption.pod.key, "node": preemption.chosen.node}
            log.warning("preemption.failed", **facts, error=str(errors.exceptions[0]))
        self.metrics.runs.labels(result).inc()
        self.metrics.durations.labels(result).observe(self._clock.monotonic() - began)
        if doubtful and self._is_current(preemption):
            await self._clock.sleep(UNCERTAIN_SECONDS)
            if any(self._stays(one) for one in doubtful):
                self._forget(preemption)
        if not self._is_current(preemption):  # something failed, or the node is of no use
            self._forget(preemption)
            try:
                await self._clock.sleep(FAILED_PAUSE if result == "error" else 0.0)
            finally:
                self._services.activate([preemption.pod.uid])

    async def _remove(
        self,
        victim: ClusterPod,
        preemption: Preemption,
        turns: asyncio.Semaphore,
        doubtful: list[ClusterPod],
    ) -> None:
        """Remove a victim; if the API server says it has gone already, add it to doubtful."""
        async with turns:
            if not self._is_current(preemption) or not self._stays(victim):
                return
            waiting = self._services.waiting.get(victim.uid)
            if waiting is not None:
                waiting.reject(preemption.plugin, "preempted")
            elif not await self._delete(victim, preemption):
                doubtful.append(victim)
                return
        facts = {"victim": victim.key, "node": victim.node}
        log.info("pod.preempted", pod=preemption.pod.key, **facts)
        message = f"Preempted by pod {preemption.pod.uid} on node {victim.node}"
        about = ObjectRef("v1", "Pod", victim.name, victim.namespace, victim.uid)
        self._services.events.emit(
            Event(about, EventType.NORMAL, "Preempted", message, preemption.profile)
        )

    async def _delete(self, victim: ClusterPod, preemption: Preemption) -> bool:
        """Delete exactly this pod; False: it has gone meanwhile."""
        path = _path(victim)
        try:
            async with Deadline(self._clock, f"preemption of {victim.key}") as deadline:
                deadline.enter("an answer", READY_TIMEOUT)
                if not preempted(victim):
                    await self._patch_status(victim, self._condition(preemption))
                await self._services.client.delete(path, uid=victim.uid)
        except (NotFound, Conflict):  # it has gone, or its name is another pod's now
            return False
        except KubeError:
            self._forget(preemption)  # so that no other victim leaves for nothing
            raise
        return True

    def _condition(self, preemption: Preemption) -> dict[str, Any]:
        text = f"{preemption.profile}: preempting to accommodate a higher priority pod"
        moment = datetime.fromtimestamp(self._clock.wall(), UTC)
        condition = {
            "type": DISRUPTION_TARGET,
            "status": "True",
            "reason": BY_SCHEDULER,
            "message": text,
            "lastTransitionTime": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        return {"conditions": [condition]}

    async def _end_nomination(self, pod: ClusterPod) -> None:
        """Clear the nomination of a pod that may not fit any more, and retry the pod now."""
        self._services.nominator.forget(pod.key)
        try:
            async with Deadline(self._clock, f"nomination of {pod.key}") as deadline:
                deadline.enter("an answer", READY_TIMEOUT)
                await self._patch_status(pod, {"nominatedNodeName": None})
        except (NotFound, Conflict):
            return
        except KubeError as err:  # the pod's next cycle writes it anew
            log.warning("nomination.clear_failed", pod=pod.key, error=str(err))
        self._services.activate([pod.uid])

    async def _write_nomination(
        self, pod: ClusterPod, node: str | None, turns: asyncio.Semaphore
    ) -> None:
        """Write the nominated node into the status of a pod, for the next leader."""
        try:
            async with turns, Deadline(self._clock, f"nomination of {pod.key}") as deadline:
                deadline.enter("an answer", READY_TIMEOUT)
                await self._patch_status(pod, {"nominatedNodeName": node})
        except (NotFound, Conflict):
            return
        except KubeError as err:  # it counts here all the same
            log.warning("nomination.write_failed", pod=pod.key, error=str(err))

    async def _patch_status(self, pod: ClusterPod, status: Mapping[str, Any]) -> None:
        body = {"metadata": {"uid": pod.uid}, "status": status}
        await self._services.client.patch(f"{_path(pod)}/status", body, STRATEGIC_MERGE_PATCH)

    def _stays(self, victim: ClusterPod) -> bool:
        """Whether a victim is still on its node, neither deleted nor finished."""
        known = self._services.cluster.pod(victim.key)
        return (
            known is not None
            and known.uid == victim.uid
            and known.node == victim.node
            and not known.deleting
            and not known.finished
        )

    def _is_current(self, preemption: Preemption) -> bool:
        """Whether the preemption is of use: nothing has failed, and the preemptor waits for it."""
        pod = preemption.pod
        known = self._services.cluster.pod(pod.key)
        waits = known is not None and known.uid == pod.uid and not known.node
        view = self._services.cluster.view()
        there = all(view.row(node) is not None for node in preemption.nodes)
        return waits and there and self._by_pod.get(pod.uid) is preemption

    def _forget(self, preemption: Preemption) -> None:
        if self._by_pod.get(preemption.pod.uid) is preemption:
            del self._by_pod[preemption.pod.uid]

    def _on_pod(self, old: ClusterPod | None, new: ClusterPod | None) -> None:
        """A preemptor that was deleted or bound needs no resources any more."""
        if old is not None and (new is None or new.uid != old.uid or new.node):
            self._by_pod.pop(old.uid, None)


def _path(pod: ClusterPod) -> str:
    return PODS.object(pod.name, namespace=pod.namespace)
