"""Limits of evictions: hourly budget, backoff after a rejection, and permits to kill a pod."""

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from koord.api.eviction import EvictionOutcome, EvictionResponse
from koord.api.pod import Pod
from koord.util import documents
from koord.util.clock import Clock
from koord.util.errors import InvalidObject, UnsafeFile
from koord.util.filewatch import FileReadError
from koord.util.logs import LogState, get_logger
from koord.util.ownedfiles import FileWriteError, OwnedDirectory
from koord.util.timebudget import Backoff
from koordlet.executor.evictions.eviction import Eviction, EvictionRequest

HOUR = 3600.0  # seconds
MAX_BUDGET = 1000  # evictions in an hour that a limit may allow, and that are remembered
MAX_BUDGET_BYTES = 64 << 10  # of the file

log = get_logger("koordlet.executor")


class EvictionBudget:
    """Counts evictions of the past hour, in `evictions.json` of a directory until the next boot.

    limit is asked each time, as it may change; 0 is no bound.
    """

    def __init__(
        self,
        limit: Callable[[], int],
        clock: Clock,
        *,
        directory: OwnedDirectory | None,
        boot_id: str,
    ) -> None:
        """Load what was used. directory None: keep it in memory only."""
        self._limit = limit
        self._clock = clock
        self._file = directory / "evictions.json" if directory else None
        self._boot_id = boot_id
        self._used = self._load()  # seconds since boot, of each
        self._saving = asyncio.Lock()
        self._unsaved = LogState(log)
        self.problem = ""  # why the file is not up to date

    @property
    def limit(self) -> int:
        """Evictions in an hour; 0: no bound."""
        return self._limit()

    @property
    def used(self) -> int:
        """Evictions of the past hour."""
        return len(self._recent())

    @property
    def wait(self) -> float:
        """Seconds until there is one to use; 0: there is."""
        recent, limit = self._recent(), self._limit()
        if not limit or len(recent) < limit:
            return 0.0
        return sorted(recent)[len(recent) - limit] + HOUR - self._clock.boottime()

    def take(self) -> float:
        """Use one up and return its moment, for refund. Look at wait first."""
        now = self._clock.boottime()
        self._used.append(now)
        return now

    def refund(self, moment: float) -> None:
        """Return one that was not needed."""
        if moment in self._used:
            self._used.remove(moment)

    async def save(self) -> None:
        """Save what is used; if the file cannot be written, problem has the reason, for health."""
        if self._file is None:
            return
        async with self._saving:
            content = json.dumps({"boot_id": self._boot_id, "used": self._recent()})
            try:
                await asyncio.to_thread(self._file.write, content.encode() + b"\n")
            except FileWriteError as err:
                self.problem = str(err)
                self._unsaved.failed("eviction_budget.not_saved", error=self.problem)
            else:
                self.problem = ""
                self._unsaved.ended("eviction_budget.saved")

    def _recent(self) -> list[float]:
        since = self._clock.boottime() - HOUR
        self._used = [at for at in self._used[-MAX_BUDGET:] if at > since]
        return self._used

    def _load(self) -> list[float]:
        if self._file is None:
            return []
        try:
            data = self._file.read(MAX_BUDGET_BYTES)
            if data is None:
                return []
            stored: Any = documents.decode(data, str(self._file))
            if stored["boot_id"] != self._boot_id:
                return []
            return [_moment(at, self._clock.boottime()) for at in stored["used"]]
        except (FileReadError, UnsafeFile, InvalidObject, ValueError, KeyError, TypeError) as err:
            log.warning("eviction_budget.dropped", path=str(self._file), error=repr(err))
            return []


def _moment(value: object, now: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"wanted seconds since boot, found {value!r:.60}")
    return min(float(value), now)


INITIAL_BACKOFF, MAX_BACKOFF = 10.0, 300.0  # seconds; doubled with each response in a row
MAX_BACKOFF_ENTRIES = 256  # pods
_ALL_PODS = ""  # in place of a pod's UID


@dataclass(slots=True)
class _BackoffEntry:
    backoff: Backoff
    response: EvictionResponse
    until: float  # monotonic


class EvictionBackoff:
    """Pause after a rejected eviction: for the pod or, when the server is busy, for every pod.

    The pause is what the server asked for, and at least one of our own that grows: a plugin looks
    each second, and a PodDisruptionBudget does not open within one.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pauses: dict[str, _BackoffEntry] = {}  # by UID; latest last

    def begin(self, uid: str, response: EvictionResponse) -> float:
        """Hold off after this response; return for how many seconds."""
        key = _ALL_PODS if response.busy else uid
        earlier = self._pauses.pop(key, None)
        now = self._clock.monotonic()
        if earlier is None or now - earlier.until > MAX_BACKOFF:
            backoff = Backoff(INITIAL_BACKOFF, MAX_BACKOFF)
        else:
            backoff = earlier.backoff
        seconds = max(backoff.next(), response.retry_after or 0.0)
        self._pauses[key] = _BackoffEntry(backoff, response, now + seconds)
        if len(self._pauses) > MAX_BACKOFF_ENTRIES:
            del self._pauses[next(iter(self._pauses))]
        return seconds

    def end(self, uid: str) -> None:
        """The server has accepted an eviction: it is not busy."""
        self._pauses.pop(uid, None)
        self._pauses.pop(_ALL_PODS, None)

    def find(self, uid: str) -> Eviction | None:
        """Return the response that still holds for this pod; None: ask."""
        now = self._clock.monotonic()
        for key in (_ALL_PODS, uid):
            pause = self._pauses.get(key)
            if pause is not None and pause.until > now:
                response = pause.response
                return Eviction(response.outcome, response.message, pause.until - now)
        return None


MAX_ACCEPTED_ENTRIES = 256  # pods


@dataclass(frozen=True, slots=True)
class _AcceptedEviction:
    grace: int  # seconds
    over: float  # monotonic; the end of the grace period


class KillPermits:
    """Remembers accepted evictions. The latest response about a pod counts, and only a yes permits.

    Nothing is kept over a restart: the API server is asked again, and says yes to a pod that ends.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._accepted: dict[str, _AcceptedEviction] = {}  # by UID; latest last

    def record(self, request: EvictionRequest, response: EvictionResponse) -> None:
        """Take what the API server answered."""
        uid = request.pod.uid
        earlier = self._accepted.pop(uid, None)
        if response.outcome is not EvictionOutcome.EVICTED:
            return
        own = request.pod.grace_seconds
        grace = own if request.grace_seconds is None else request.grace_seconds
        over = self._clock.monotonic() + grace
        if earlier is not None and earlier.over < over:
            grace, over = earlier.grace, earlier.over  # a pod that ends gets no second period
        self._accepted[uid] = _AcceptedEviction(grace, over)
        if len(self._accepted) > MAX_ACCEPTED_ENTRIES:
            del self._accepted[next(iter(self._accepted))]

    def reject_reason(self, pod: Pod) -> Eviction | None:
        """Return why a pod may not be killed now; None: it may."""
        accepted = self._accepted.get(pod.uid)
        if accepted is None:
            message = "the API server has not accepted an eviction of this pod"
            return Eviction(EvictionOutcome.IGNORED, message)
        left = max(
            accepted.over - self._clock.monotonic(), (pod.gone_by or 0.0) - self._clock.wall()
        )
        if left <= 0:
            return None
        message = f"accepted; its grace period of {accepted.grace} s is not over"
        return Eviction(EvictionOutcome.UNDER_WAY, message, left)
