"""Report to the cluster: one JSON patch that replaces the whole status of the NodeMetric."""

import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from koord.kube.client import NODE_METRICS, ApiClient
from koord.kube.errors import (
    ApiError,
    BadResponse,
    Conflict,
    Forbidden,
    KubeError,
    NotFound,
    PatchRejected,
    ServerError,
    TimedOut,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from koord.kube.transport import METADATA, Deadline
from koord.util.clock import Clock
from koord.util.timebudget import Backoff
from koordlet.reporter.status import ObserveOnly, Report, ReportNotRequested
from koordlet.statesinformer.kube_sources import FIELD_MANAGER
from koordlet.statesinformer.podmeta import ReportTarget

# Seconds until a new report after one that failed, doubled at most by jitter.
FIRST_PAUSE, MAX_PAUSE = 0.5, 4.0  # after an error that may pass by itself
FIRST_REST, MAX_REST = 4.0, 600.0  # the object is there, but the agent may not write it
DELIVERY_TIME = 8.0  # seconds that a report may take to arrive, half an interval at most
MISSING_AFTER = 30.0  # seconds of 404 after which no reports are made any more
MISSING_PAUSE = 10.0  # seconds until the server is asked for the object again, likewise

# Errors that may pass by themselves. A patch that tests the UID does no harm when it is sent twice.
# NotFound and PatchRejected: the object has changed and the watch will show it, or the server has
# just started and does not know its custom resources, tokens or RBAC rules yet.
_PASSING = (
    NotFound,
    PatchRejected,
    Unauthorized,
    Forbidden,
    Conflict,
    TooManyRequests,
    ServerError,
    Unreachable,
    BadResponse,
)


@dataclass(slots=True)
class _Missing:
    """An object that the watch shows and the server does not find: perhaps its CRD was removed."""

    uid: str
    since: float  # monotonic
    until: float = 0.0  # monotonic: the next look for the object; no reports before it


class ClusterSink:
    """Writes reports to the NodeMetric object of this node, which it never creates.

    The patch tests the object's UID, so a report never reaches another object of the same name.
    It replaces the whole status: a merge patch would leave vanished fields behind, under a new
    updateTime. Each report is sent once. After a failure a new report is due in a few seconds; it
    is sent once a small GET of the object has succeeded. While the object is not found for longer,
    only that GET is sent, until the object is there or the watch shows another one.
    """

    def __init__(
        self,
        client: ApiClient,
        node: str,
        target: Callable[[], ReportTarget | None],
        clock: Clock,
        *,
        observe_only: Callable[[], Awaitable[str]],
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._node = node
        self._observe_only = observe_only
        self._target = target
        self._clock = clock
        self._draw = draw  # a number from 0 to 1
        self._failing = False  # whether the latest report did not arrive
        self._retry_in = math.inf
        self._missing: _Missing | None = None
        self._reported_uid = ""  # of the object that the latest report has reached
        self._pauses = Backoff(FIRST_PAUSE, MAX_PAUSE, jitter=1.0, draw=draw)
        self._rests = Backoff(FIRST_REST, MAX_REST, jitter=1.0, draw=draw)

    def check(self) -> None:
        """Return if the cluster has a NodeMetric object, which is its request for reports.

        Raises:
            ReportNotRequested: there is none, or the API server does not know it any more.
        """
        uid, missing = self._uid(), self._missing
        if missing and missing.uid == uid and self._clock.monotonic() < missing.until:
            raise ReportNotRequested(
                f"wanted the NodeMetric object named {self._node}, found that the API server does "
                "not know it any more; install its CRD, it is looked for every few seconds"
            )

    async def write(self, report: Report) -> None:
        """Write the status of the NodeMetric object, once.

        Raises:
            ObserveOnly: another agent writes this object.
            KoordError: it did not arrive; the message says why.
        """
        if reason := await self._observe_only():
            raise ObserveOnly(reason)
        uid, path = self._uid(), NODE_METRICS.object(self._node)
        found = False  # whether the server has shown the object just now
        try:
            async with Deadline(self._clock, f"report to {path}") as deadline:
                deadline.enter("its arrival", min(DELIVERY_TIME, report.spec.report_interval / 2))
                if self._failing:
                    await self._client.get(path, accept=METADATA, attempts=1)
                    found = True
                await self._client.replace_status(
                    f"{path}/status",
                    uid,
                    report.status.to_json(),
                    field_manager=FIELD_MANAGER,
                    attempts=1,
                )
        except KubeError as err:
            self._failing = True
            self._retry_in = self._pause(err, uid, found=found)
            raise
        self._failing, self._missing, self._retry_in = False, None, math.inf
        self._reported_uid = uid
        self._pauses.reset()
        self._rests.reset()

    def retry_in(self) -> float:
        """Return the seconds until a new report is worth sending, if the latest failed.

        math.inf: not before the next one is due.
        """
        return self._retry_in

    def has_reported(self) -> bool:
        """Whether a report has reached the object that the watch shows."""
        target = self._target()
        return target is None or target.uid == self._reported_uid

    def _pause(self, err: KubeError, uid: str, *, found: bool) -> float:
        """Seconds until a new report is worth sending; infinite: it would fail as well."""
        target = self._target()
        if target is not None and target.uid != uid:
            return 0.0  # the object was made anew, and the watch has shown it meanwhile
        if isinstance(err, NotFound):
            return self._look_again(uid, found=found)
        self._missing = None
        if isinstance(err, TimedOut):
            self._pauses.reset()  # that was pause enough
        if isinstance(err, Forbidden) and found:
            return self._rests.next()
        if not isinstance(err, _PASSING):
            return math.inf
        wanted = err.retry_after if isinstance(err, ApiError) else None
        return max(self._pauses.next(), wanted or 0.0)

    def _look_again(self, uid: str, *, found: bool) -> float:
        """Seconds until the next look at an object that is not found.

        found: it was there, but has no status; that lasts until an operator mends it.
        """
        now = self._clock.monotonic()
        if self._missing is None or self._missing.uid != uid:
            self._missing = _Missing(uid, now)
        if now - self._missing.since < MISSING_AFTER:
            return self._pauses.next()
        pause = self._rests.next() if found else 0.0
        pause = max(pause, MISSING_PAUSE * (1 + self._draw()))
        self._missing.until = now + pause
        return pause

    def _uid(self) -> str:
        target = self._target()
        if target is None:
            raise ReportNotRequested(
                f"wanted a NodeMetric object named {self._node}, have seen none; "
                "koord-manager makes one for each node, without it --manager-duties does"
            )
        return target.uid
