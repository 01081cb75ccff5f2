"""The status of pods that are not scheduled: condition PodScheduled, and nominatedNodeName.

Patches of one pod that wait become one, what would change nothing is not sent, and only a few are
on their way at a time, so that bindings do not wait behind them for the client's rate. What
could not be written for a reason that passes is tried again after pauses that grow.

Source: Kubernetes, pkg/scheduler/schedule_one.go (updatePod).
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import heappop, heappush
from itertools import count
from typing import Any

from koord.cluster.facts import ClusterPod
from koord.kube.client import ApiClient
from koord.kube.errors import PASSING, KubeError, NotFound
from koord.kube.resource import PODS
from koord.kube.transport import METADATA
from koord.util.clock import Clock
from koord.util.logs import LimitedLog, get_logger
from koord.util.stop import Stop

AT_ONCE = 4  # patches on their way
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
CONDITION = "PodScheduled"
UNSCHEDULABLE, SCHEDULER_ERROR = "Unschedulable", "SchedulerError"
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds after a patch that failed
_MOST_REMEMBERED = 20_000  # pods

log = get_logger("koord_scheduler.scheduling")


@dataclass(frozen=True, slots=True)
class Unscheduled:
    """The status of a pod that is not scheduled."""

    reason: str  # UNSCHEDULABLE or SCHEDULER_ERROR
    message: str


@dataclass(slots=True)
class _Wanted:
    pod: ClusterPod
    condition: Unscheduled | None = None  # None: as it is
    nominated: str | None = None  # None: as it is; "": none
    pause: float = 0.0  # seconds after the last try, which failed; 0: there was none

    def merge(self, before: "_Wanted") -> None:
        """Take over from an earlier one, which failed, what is not said here."""
        self.pause = before.pause
        if self.nominated is None:
            self.nominated = before.nominated


@dataclass(slots=True)
class _Known:
    """What this process has written into the status of a pod."""

    condition: Unscheduled | None = None
    nominated: str | None = None


class PodStatuses:
    """Patches the status of pods. One event loop."""

    def __init__(self, client: ApiClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._waiting: OrderedDict[str, _Wanted] = OrderedDict()  # by uid
        self._sending: dict[str, _Wanted] = {}  # by uid; what is not void meanwhile
        self._later: dict[str, _Wanted] = {}  # by uid; what failed
        self._due: list[tuple[float, int, str]] = []  # a heap: when to try again, number, uid
        self._numbers = count()
        self._put_off = asyncio.Event()  # something has failed
        self._known: OrderedDict[str, _Known] = OrderedDict()  # by uid; the latest last
        self._woken = asyncio.Event()
        self._failures = LimitedLog(log, clock)

    def __len__(self) -> int:
        """How many patches wait."""
        return len(self._waiting) + len(self._later)

    def report(self, pod: ClusterPod, condition: Unscheduled, nominated: str | None) -> None:
        """Have a condition written soon, and the nominated node, if it is not None.

        pod is as the API server has it.
        """
        waiting = self._waiting.get(pod.uid) or self._later.pop(pod.uid, None)
        known = self._known.get(pod.uid, _Known())
        before = pod.nominated_node if known.nominated is None else known.nominated
        is_known = pod.uid not in self._sending
        has_it = condition == known.condition and nominated in (None, before)
        if waiting is None and is_known and has_it:
            return
        wanted = waiting or _Wanted(pod)
        wanted.pod, wanted.condition = pod, condition
        if nominated is not None:
            wanted.nominated = None if is_known and nominated == before else nominated
        self._waiting[pod.uid] = wanted
        self._woken.set()

    async def nominate(self, pod: ClusterPod, node: str) -> None:
        """Write the nominated node now; a failure is logged, as nothing depends on it."""
        self.drop(pod)
        if pod.nominated_node != node:
            await self._send(_Wanted(pod, nominated=node))

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
            for at in range(AT_ONCE):
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

    def _failed(self, uid: str, wanted: _Wanted) -> None:
        """Have a patch that failed be sent later, or be part of a newer one that waits already."""
        newer = self._waiting.get(uid)
        if newer is not None:
            newer.merge(wanted)
            return
        wanted.pause = min(wanted.pause * 2 or FIRST_PAUSE, LONGEST_PAUSE)
        self._later[uid] = wanted
        heappush(self._due, (self._clock.monotonic() + wanted.pause, next(self._numbers), uid))
        self._put_off.set()

    async def _keep_returning(self, stop: Stop) -> None:
        """Have patches that failed wait again when it is time."""
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

    async def _send(self, wanted: _Wanted) -> bool:
        """Send a patch; return whether it is over, and not to be tried again."""
        pod = wanted.pod
        path = PODS.object(pod.name, namespace=pod.namespace, subresource="status")
        try:
            await self._client.patch(path, self._body(wanted), STRATEGIC_PATCH, accept=METADATA)
        except NotFound:
            return True
        except KubeError as err:
            self._failures.warning("pod_status.unwritten", pod=pod.key, error=str(err))
            return not isinstance(err, PASSING)
        known = self._known.pop(pod.uid, None) or _Known()
        known.condition = wanted.condition or known.condition
        known.nominated = known.nominated if wanted.nominated is None else wanted.nominated
        self._known[pod.uid] = known
        if len(self._known) > _MOST_REMEMBERED:
            self._known.popitem(last=False)
        return True

    def _body(self, wanted: _Wanted) -> dict[str, Any]:
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
