"""Evictions by plugins: dry-run, budget, one request and one record for each."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import Context
from typing import Any

from koord.api.eviction import EvictionOutcome, EvictionResponse
from koord.api.pod import Pod
from koord.util.clock import Clock
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import get_logger
from koord.util.stop import Stop
from koordlet.executor.audit.files import EVICTION, AuditEvent, AuditSubject
from koordlet.executor.evictions.decisions import Decision, Decisions, EvictionMetrics
from koordlet.executor.evictions.eviction import (
    Eviction,
    EvictionApi,
    EvictionRequest,
    KillResult,
    PodProcessKiller,
    SuppressedEviction,
    unavailable,
)
from koordlet.executor.evictions.limits import EvictionBackoff, EvictionBudget, KillPermits

ENDING_TIMEOUT = 120.0  # seconds that an accepted eviction counts as under way, as in Koordinator

_NOT_ALLOWED = EvictionOutcome.NOT_ALLOWED
_STANDALONE = "standalone: there is no API server, and --evict-fallback=kill is not set"
_NO_CGROUP = "standalone: there is no API server, and the cgroup of the pod is not known"
_RUNS_ON = "accepted, but the pod still runs after its grace period"
_ENDING = (EvictionOutcome.EVICTED, EvictionOutcome.KILLED)

log = get_logger("koordlet.executor")


class Evictor:
    """Evicts pods through the API server, never twice at once, and reports each outcome.

    With a killer, a pod is killed in two cases: the API server has accepted the eviction of this
    very pod, and it runs on after its grace period; or there is no API server that could know the
    pod and its PodDisruptionBudgets. After every other response, and after silence, it runs on.

    A request goes on when the plugin that waits for it is cancelled: what became of it is always
    recorded. All methods belong to the event loop.
    """

    def __init__(
        self,
        api: EvictionApi | None,
        *,
        clock: Clock,
        dry_run: Callable[[str], Awaitable[bool]],
        budget: EvictionBudget,
        decisions: Decisions,
        metrics: EvictionMetrics,
        killer: PodProcessKiller | None = None,
        audit: Callable[[AuditEvent], None] = lambda event: None,
    ) -> None:
        """dry_run returns whether a plugin is in dry-run; it may have to find out first.

        api None: there is no API server. killer None: nothing is killed. With neither, pods can
        only be evicted in dry-run. audit is called for each pod that ends by this, or in dry-run
        would.
        """
        self._api = api
        self._killer = killer
        self._permits = KillPermits(clock)
        self._clock = clock
        self._dry_run = dry_run
        self._budget = budget
        # Evictions in dry-run take nothing from the real budget, but have the same bound.
        self._dry_budget = EvictionBudget(lambda: budget.limit, clock, directory=None, boot_id="")
        self._decisions = decisions
        self._metrics = metrics
        self._audit = audit
        self._backoff = EvictionBackoff(clock)
        self._ending: dict[tuple[bool, str], float] = {}  # (dry-run, UID): until, monotonic
        self._requests: set[asyncio.Task[Eviction]] = set()
        self._forbidden = ""  # why the latest request was not allowed; empty: it was

    async def evict(self, request: EvictionRequest) -> Eviction:
        """Evict the pod, or in dry-run record that; return the response within about ten seconds.

        Raises:
            Unavailable: there is no API server.
        """
        dry, uid = await self._dry_run(request.plugin), request.pod.uid
        self._forget_ended()
        if (dry, uid) in self._ending:
            return Eviction(EvictionOutcome.UNDER_WAY)
        budget = self._dry_budget if dry else self._budget
        if self._api is None and self._killer is None and not dry:
            self._conclude(request, Eviction(_NOT_ALLOWED, _STANDALONE), dry=False, asked=False)
            raise unavailable(request.pod)
        found = self._reject_reason(request, budget)
        if found is not None:
            return self._conclude(request, found, dry=dry, asked=False)
        moment = budget.take()
        if dry:
            self._ending[dry, uid] = self._clock.monotonic() + ENDING_TIMEOUT
            would = Eviction(EvictionOutcome.WOULD_EVICT)
            return self._conclude(request, would, dry=True, asked=True)
        self._ending[dry, uid] = math.inf
        return await self._run_shielded(self._evict_and_record(request, moment))

    async def kill_overdue(self, request: EvictionRequest) -> Eviction:
        """Kill a pod that outlives its accepted eviction and its grace period.

        Without a killer or a permit, and in dry-run, only record that the pod stays.
        """
        dry, killer = await self._dry_run(request.plugin), self._killer
        if dry or killer is None or not request.cgroup:
            ignored = Eviction(EvictionOutcome.IGNORED, _RUNS_ON)
            return self._conclude(request, ignored, dry=dry, asked=True)
        reject_reason = self._permits.reject_reason(request.pod)
        if reject_reason is not None:
            return self._conclude(request, reject_reason, dry=False, asked=True)
        return await self._run_shielded(self._kill_and_record(request, killer))

    def record_freed(self, pod: Pod, freed: Mapping[str, float | str]) -> None:
        """Add the released resources to the record of a pod's eviction."""
        self._decisions.record_freed(pod.uid, freed)

    def record_suppressed(self, held: SuppressedEviction) -> None:
        """Record and count evictions that were not requested."""
        decision = Decision(
            plugin=held.plugin,
            feature=held.feature,
            action="evict",
            namespace="",
            pod="",
            uid="",
            reason=held.reason,
            outcome=held.outcome.value,
            message=held.message,
            dry_run=False,
        )
        if self._decisions.record(decision):
            self._metrics.count(held.plugin, held.feature, held.outcome)
            log.info(
                "eviction.suppressed",
                plugin=held.plugin,
                feature=held.feature,
                outcome=held.outcome.value,
                reason=held.reason,
                message=held.message,
            )

    def announce(self, pod: Pod, *, warning: bool, reason: str, message: str) -> None:
        """Report an event on the pod, if there is an API server. Never waits."""
        if self._api is not None:
            self._api.announce(pod, warning=warning, reason=reason, message=message)

    async def run(self, stop: Stop) -> None:
        """Wait for stop, then give up what is still under way."""
        await stop.wait()
        for task in self._requests:
            task.cancel()
        if self._requests:
            await asyncio.wait(self._requests)

    def health(self) -> PartHealth:
        """Degraded while evictions are wanted but cannot be, for a reason other than the pod's."""
        wait = self._budget.wait
        over = f"{self._budget.limit} pods were evicted in the past hour, as many as may be"
        problems = [
            self._budget.problem,
            f"{over} (--evict-budget-per-hour); the next in {wait:.0f} s" if wait else "",
            self._forbidden,
        ]
        reason = "; ".join(filter(None, problems))
        return PartHealth(HealthStatus.DEGRADED, reason) if reason else OK

    async def _run_shielded(self, work: Coroutine[Any, Any, Eviction]) -> Eviction:
        """Do it even if the plugin that waits for it is cancelled, and at this daemon's expense."""
        task = asyncio.create_task(work, name="evict", context=Context())
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        return await asyncio.shield(task)

    def _reject_reason(self, request: EvictionRequest, budget: EvictionBudget) -> Eviction | None:
        """Return why nothing need be tried; None: it shall be."""
        if request.pod.static:
            message = "a static pod: it ends when its file is taken away"
            return Eviction(EvictionOutcome.NOT_ALLOWED, message, math.inf)
        held = self._backoff.find(request.pod.uid)
        if held is not None:
            return held
        if wait := budget.wait:
            message = f"{budget.limit} in the past hour (--evict-budget-per-hour)"
            return Eviction(EvictionOutcome.OVER_BUDGET, message, wait)
        return None

    async def _evict_and_record(self, request: EvictionRequest, moment: float) -> Eviction:
        """End the pod, and settle what follows from the response."""
        response = EvictionResponse(
            EvictionOutcome.FAILED, "koordlet ended meanwhile", certain=False
        )
        try:
            await self._budget.save()  # first: a crash must not add to the budget
            response = await self._end(request)
        except Exception as err:
            log.exception("eviction.crashed", plugin=request.plugin, pod=request.pod.name)
            response = EvictionResponse(EvictionOutcome.FAILED, repr(err), certain=False)
        finally:
            eviction = self._settle(request, response, moment)
        return eviction

    async def _end(self, request: EvictionRequest) -> EvictionResponse:
        """Ask the API server for the eviction; where there is none, kill the pod."""
        if self._api is not None:
            return await self._api.evict(request.pod, request.grace_seconds)
        if self._killer is None or not request.cgroup:
            return EvictionResponse(EvictionOutcome.FAILED, _NO_CGROUP)
        return await _kill(self._killer, request, "standalone: there is no API server")

    async def _kill_and_record(
        self, request: EvictionRequest, killer: PodProcessKiller
    ) -> Eviction:
        """Kill a pod whose eviction was accepted; that one is in the budget already."""
        response = await _kill(killer, request, _RUNS_ON)
        if response.outcome in _ENDING:
            self._ending[False, request.pod.uid] = self._clock.monotonic() + ENDING_TIMEOUT
        eviction = Eviction(response.outcome, response.message)
        return self._conclude(request, eviction, dry=False, asked=True, again=True)

    def _settle(
        self, request: EvictionRequest, response: EvictionResponse, moment: float
    ) -> Eviction:
        """Record which pods may be killed, and which are not to be asked for again yet."""
        uid, pause = request.pod.uid, 0.0
        self._permits.record(request, response)
        if response.outcome in _ENDING:
            self._backoff.end(uid)
            self._ending[False, uid] = self._clock.monotonic() + ENDING_TIMEOUT
        else:
            pause = self._backoff.begin(uid, response)
            del self._ending[False, uid]
            if response.certain:
                self._budget.refund(moment)
        self._forbidden = (
            response.message if response.outcome is EvictionOutcome.NOT_ALLOWED else ""
        )
        eviction = Eviction(response.outcome, response.message, pause)
        return self._conclude(request, eviction, dry=False, asked=True)

    def _conclude(
        self,
        request: EvictionRequest,
        eviction: Eviction,
        *,
        dry: bool,
        asked: bool,
        again: bool = False,
    ) -> Eviction:
        """Record a decision; report it unless it was reported before and still holds.

        again: the pod's end was counted when its eviction was accepted.
        """
        pod, outcome = request.pod, eviction.outcome
        decision = Decision(
            plugin=request.plugin,
            feature=request.feature,
            action="evict",
            namespace=pod.namespace,
            pod=pod.name,
            uid=pod.uid,
            reason=request.reason,
            outcome=outcome.value,
            message=eviction.message,
            dry_run=dry,
            inputs=request.inputs,
            candidates=request.candidates,
        )
        if self._decisions.record(decision) or asked:
            self._metrics.count(request.plugin, request.feature, outcome)
            if outcome in _ENDING and not again:
                self._metrics.count_pod(pod)
            log.info(
                "eviction.decided",
                plugin=request.plugin,
                feature=request.feature,
                pod=f"{pod.namespace}/{pod.name}",
                outcome=outcome.value,
                reason=request.reason,
                message=eviction.message,
                dry_run=dry,
            )
            if eviction.accepted:
                self._audit(_audit_event(request, outcome))
            if outcome is EvictionOutcome.WOULD_EVICT or not dry:
                self._announce(request, eviction)
        return eviction

    def _announce(self, request: EvictionRequest, eviction: Eviction) -> None:
        """Report it as an event on the pod, in Koordinator's words and then the reason."""
        pod, outcome = request.pod, eviction.outcome
        text = (
            f"evict Pod:{pod.namespace}/{pod.name}, reason: evicted, message: trigger by koordlet "
            f"feature {request.feature}, kill pod: {pod.name}, {request.reason}"
        )
        if outcome in _ENDING:
            text = f"{text} ({eviction.message})" if eviction.message else text
            self.announce(pod, warning=True, reason="evictPodSuccess", message=text)
        elif outcome is EvictionOutcome.WOULD_EVICT:
            text = f"dry-run, the pod stays: {text}"
            self.announce(pod, warning=False, reason="wouldEvictPod", message=text)
        elif outcome is not EvictionOutcome.GONE:  # then there is no pod to report on
            text = f"{text}, error {outcome}: {eviction.message}"
            self.announce(pod, warning=True, reason="evictPodFail", message=text)

    def _forget_ended(self) -> None:
        now = self._clock.monotonic()
        for key in [key for key, until in self._ending.items() if until <= now]:
            del self._ending[key]


async def _kill(killer: PodProcessKiller, request: EvictionRequest, why: str) -> EvictionResponse:
    """Kill a pod; the response's message begins with why it was not evicted."""
    killing = await killer.kill(request.cgroup, request.pod.uid)
    if killing == KillResult(0):
        return EvictionResponse(EvictionOutcome.GONE, _joined(why, "no process is in its cgroup"))
    killed = _joined(why, f"{killing.killed} processes killed")
    if killing.error:
        message = _joined(killed, killing.error)
        return EvictionResponse(EvictionOutcome.FAILED, message, certain=not killing.killed)
    return EvictionResponse(EvictionOutcome.KILLED, killed)


def _audit_event(request: EvictionRequest, outcome: EvictionOutcome) -> AuditEvent:
    """The audit event of a pod that ends by this request, or in dry-run would."""
    pod = request.pod
    words = f"trigger by koordlet feature {request.feature}, kill pod: {pod.name}"
    return AuditEvent(
        verbosity=EVICTION,
        type=AuditSubject.POD,
        namespace=pod.namespace,
        name=pod.name,
        reason=outcome.value,
        message=f"{words}, {request.reason}",
    )


def _joined(*texts: str) -> str:
    return "; ".join(filter(None, texts))
