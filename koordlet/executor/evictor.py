"""The one way in which plugins end pods: dry-run, budget, one request, one record."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextvars import Context

from koordlet.api.eviction import EvictionAnswer, EvictionOutcome
from koordlet.api.pod import Pod
from koordlet.executor.budget import EvictionBudget
from koordlet.executor.decisions import Decision, Decisions
from koordlet.executor.eviction import Eviction, EvictionApi, EvictionRequest
from koordlet.executor.holdoff import HoldOffs
from koordlet.executor.metrics import EvictionMetrics
from koordlet.util.clock import Clock
from koordlet.util.health import OK, PartHealth, Status
from koordlet.util.logs import get_logger
from koordlet.util.stop import Stop

ENDING_FOR = 120.0  # seconds that an accepted eviction counts as under way, as in Koordinator

log = get_logger("koordlet.executor")


class Evictor:
    """Evicts pods through the API server, never twice at once, and says what it did and why.

    A request goes on when the plugin that waits for it is cancelled: what became of it is always
    recorded. All methods belong to the event loop.
    """

    def __init__(
        self,
        api: EvictionApi,
        *,
        clock: Clock,
        dry_run: Callable[[str], Awaitable[bool]],
        budget: EvictionBudget,
        decisions: Decisions,
        metrics: EvictionMetrics,
    ) -> None:
        """dry_run tells of a plugin whether it only pretends; it may have to find out first."""
        self._api = api
        self._clock = clock
        self._dry_run = dry_run
        self._budget = budget
        # Pretended evictions take nothing away from real ones, but would end at the same number.
        self._pretended = EvictionBudget(lambda: budget.limit, clock, directory=None, boot_id="")
        self._decisions = decisions
        self._metrics = metrics
        self._hold_offs = HoldOffs(clock)
        self._ending: dict[tuple[bool, str], float] = {}  # (dry-run, UID): until, monotonic
        self._requests: set[asyncio.Task[Eviction]] = set()
        self._forbidden = ""  # why the latest request was not allowed; empty: it was

    async def evict(self, request: EvictionRequest) -> Eviction:
        """As Evicts.evict."""
        dry, uid = await self._dry_run(request.plugin), request.pod.uid
        self._forget_ended()
        if (dry, uid) in self._ending:
            return Eviction(EvictionOutcome.UNDER_WAY)
        budget = self._pretended if dry else self._budget
        found = self._refusal(request.pod, budget)
        if found is not None:
            return self._conclude(request, found, dry=dry, asked=False)
        moment = budget.take()
        if dry:
            self._ending[dry, uid] = self._clock.monotonic() + ENDING_FOR
            would = Eviction(EvictionOutcome.WOULD_EVICT)
            return self._conclude(request, would, dry=True, asked=True)
        self._ending[dry, uid] = math.inf
        # In a context of its own, so that the plugin is not charged for it.
        task = asyncio.create_task(self._ask(request, moment), name="evict", context=Context())
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        return await asyncio.shield(task)

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
        return PartHealth(Status.DEGRADED, reason) if reason else OK

    def _refusal(self, pod: Pod, budget: EvictionBudget) -> Eviction | None:
        """Why the API server need not be asked; None: it shall be."""
        if pod.static:
            message = "a static pod: it ends when its file is taken away"
            return Eviction(EvictionOutcome.NOT_ALLOWED, message, math.inf)
        if held := self._hold_offs.find(pod.uid):
            return held
        if wait := budget.wait:
            message = f"{budget.limit} in the past hour (--evict-budget-per-hour)"
            return Eviction(EvictionOutcome.OVER_BUDGET, message, wait)
        return None

    async def _ask(self, request: EvictionRequest, moment: float) -> Eviction:
        """Ask the API server, and settle what follows from its answer."""
        answer = EvictionAnswer(EvictionOutcome.FAILED, "koordlet ended meanwhile", certain=False)
        try:
            await self._budget.save()  # before: a crash must not make room for more
            answer = await self._api.evict(request.pod, request.grace_seconds)
        except Exception as err:
            log.exception("eviction.crashed", plugin=request.plugin, pod=request.pod.name)
            answer = EvictionAnswer(EvictionOutcome.FAILED, repr(err), certain=False)
        finally:
            eviction = self._settle(request, answer, moment)
        return eviction

    def _settle(self, request: EvictionRequest, answer: EvictionAnswer, moment: float) -> Eviction:
        uid, outcome = request.pod.uid, answer.outcome
        pause = 0.0
        if outcome is EvictionOutcome.EVICTED:
            self._ending[False, uid] = self._clock.monotonic() + ENDING_FOR
            self._hold_offs.end(uid)
        else:
            del self._ending[False, uid]
            pause = self._hold_offs.begin(uid, answer)
            if answer.certain:
                self._budget.give_back(moment)
        self._forbidden = answer.message if outcome is EvictionOutcome.NOT_ALLOWED else ""
        eviction = Eviction(outcome, answer.message, pause)
        return self._conclude(request, eviction, dry=False, asked=True)

    def _conclude(
        self, request: EvictionRequest, eviction: Eviction, *, dry: bool, asked: bool
    ) -> Eviction:
        """Record a decision; tell it unless it was told before and still holds."""
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
        )
        if self._decisions.note(decision) or asked:
            self._metrics.count(request, outcome)
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
            if outcome is EvictionOutcome.WOULD_EVICT or not dry:
                self._announce(request, eviction)
        return eviction

    def _announce(self, request: EvictionRequest, eviction: Eviction) -> None:
        """Tell it as an event on the pod, in Koordinator's words and then the reason."""
        pod, outcome = request.pod, eviction.outcome
        text = (
            f"evict Pod:{pod.namespace}/{pod.name}, reason: evicted, message: trigger by koordlet "
            f"feature {request.feature}, kill pod: {pod.name}, {request.reason}"
        )
        if outcome is EvictionOutcome.EVICTED:
            self._api.announce(pod, warning=True, reason="evictPodSuccess", message=text)
        elif outcome is EvictionOutcome.WOULD_EVICT:
            text = f"dry-run, the pod stays: {text}"
            self._api.announce(pod, warning=False, reason="wouldEvictPod", message=text)
        elif outcome is not EvictionOutcome.GONE:  # then nobody is left to be told
            text = f"{text}, error {outcome}: {eviction.message}"
            self._api.announce(pod, warning=True, reason="evictPodFail", message=text)

    def _forget_ended(self) -> None:
        now = self._clock.monotonic()
        for key in [key for key, until in self._ending.items() if until <= now]:
            del self._ending[key]
