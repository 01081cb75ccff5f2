"""One attempt to schedule a pod, its timeouts, and the latest attempts."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from koord.cluster.facts import ClusterPod
from koord.util.clock import Clock
from koord.util.logs import get_logger
from koord.util.stop import Stop
from koord.util.timebudget import TimeBudget
from koord_scheduler.framework.binding import PodBinding
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.nodes.groupsearch import GroupSearch
from koord_scheduler.framework.nodes.scoring import NodeScoring
from koord_scheduler.framework.nodes.search import NodeSearch
from koord_scheduler.framework.nominator import Nominator
from koord_scheduler.framework.profile import ProfilePlugins
from koord_scheduler.framework.status import Diagnosis, NodeStatuses, Status
from koord_scheduler.framework.types import QueuedPod
from koord_scheduler.scheduling.metrics import SchedulingMetrics

ATTEMPT_SECONDS = 0.5  # of computing that the cycle of a pod may take: hundreds of ordinary ones


def attempt_budget() -> TimeBudget:
    """Return the computing that one attempt may take."""
    return TimeBudget(ATTEMPT_SECONDS)


class ProfileCycle:
    """The plugins of a profile at all points of a cycle."""

    def __init__(
        self, plugins: ProfilePlugins, nominator: Nominator, *, choosing: bool = False
    ) -> None:
        """choosing: extenders choose among nodes, too."""
        self.name = plugins.settings.scheduler_name
        self.plugins = plugins
        self.search = NodeSearch(plugins, nominator, choosing=choosing)
        self.scoring = NodeScoring(plugins)
        self.groups = GroupSearch(plugins, self.search, self.scoring)
        self.binding = PodBinding(plugins)


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
