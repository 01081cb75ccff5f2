"""Reports to the cluster: one JSON patch that replaces the whole status of the NodeMetric."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from koordlet.kube.client import ApiClient
from koordlet.kube.errors import (
    ApiError,
    BadAnswer,
    Conflict,
    KubeError,
    NotFound,
    PatchRefused,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from koordlet.kube.resource import NODE_METRICS
from koordlet.reporter.report import LeftToAnother, Report
from koordlet.reporter.status import NotAsked
from koordlet.statesinformer.model import ReportTarget
from koordlet.statesinformer.statuswriters import FIELD_MANAGER
from koordlet.util.backoff import Backoff
from koordlet.util.clock import Clock

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0  # seconds between attempts, doubled at most by jitter
PATIENCE = 0.5  # share of the report interval in which a report is sent again
FIRST_REST, LONGEST_REST = 60.0, 600.0  # seconds without reports to what is not found, likewise

# Those that may pass. A patch that tests the UID does no harm when it is sent twice. NotFound and
# PatchRefused: the object has changed and the watch will tell, or the server has just started and
# does not know its custom resources yet.
_PASSING = (
    NotFound,
    PatchRefused,
    Conflict,
    TooManyRequests,
    ServerError,
    Unreachable,
    BadAnswer,
)


@dataclass(frozen=True, slots=True)
class _Lost:
    """An object that the watch shows and the server does not find: perhaps its CRD was removed."""

    uid: str
    until: float  # monotonic: when to try again


class ClusterSink:
    """Writes reports to the NodeMetric object of this node, which it never creates.

    The patch tests the object's UID, so a report never lands on another object of the same name,
    and replaces the status whole: of a merge patch, what has vanished would stay, under a new
    updateTime. An object that is not found for a whole round is tried rarely and once, until the
    watch tells of another.
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
        self._path = NODE_METRICS.object(node, subresource="status")
        self._target = target
        self._clock = clock
        self._draw = draw  # a number from 0 to 1
        self._lost: _Lost | None = None
        self._rest = Backoff(FIRST_REST, LONGEST_REST, jitter=1.0, draw=draw)

    def check(self) -> None:
        """As Sink.check: NodeMetric objects are how the cluster asks."""
        uid, lost = self._uid(), self._lost
        if lost and lost.uid == uid and self._clock.monotonic() < lost.until:
            raise NotAsked(
                f"wanted the NodeMetric object named {self._node}, found that the API server does "
                "not know it any more; install its CRD, it is looked for every few minutes"
            )

    async def write(self, report: Report) -> None:
        """As Sink.write. What was lost on the way is sent again for half an interval."""
        if reason := await self._observe_only():
            raise LeftToAnother(reason)
        status = report.status.to_json()
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, jitter=1.0, draw=self._draw)
        end = self._clock.monotonic() + PATIENCE * report.spec.report_interval
        while True:
            uid = self._uid()
            try:
                await self._client.replace_status(
                    self._path, uid, status, field_manager=FIELD_MANAGER
                )
            except KubeError as err:
                pause = self._pause(err, uid, backoff)
                if pause is None or self._clock.monotonic() + pause > end:
                    self._note(err, uid)
                    raise
            else:
                self._note(None, uid)
                return
            await self._clock.sleep(pause)

    def _pause(self, err: KubeError, uid: str, backoff: Backoff) -> float | None:
        """Seconds until the next attempt; None: it would fare no better."""
        if not isinstance(err, _PASSING):
            return None
        if self._uid() != uid:
            return 0.0  # the object was made anew, and we have heard of it meanwhile
        if isinstance(err, NotFound) and self._lost and self._lost.uid == uid:
            return None
        wanted = err.retry_after if isinstance(err, ApiError) else None
        return max(backoff.next(), wanted or 0.0)

    def _note(self, err: KubeError | None, uid: str) -> None:
        """Remember how a round ended."""
        if isinstance(err, NotFound):
            self._lost = _Lost(uid, self._clock.monotonic() + self._rest.next())
        else:
            self._lost = None
            self._rest.reset()

    def _uid(self) -> str:
        target = self._target()
        if target is None:
            raise NotAsked(
                f"wanted a NodeMetric object named {self._node}, have seen none; "
                "koord-manager makes one for each node, without it --manager-duties does"
            )
        return target.uid
