"""The descheduling cycle: every interval, the plugins of all profiles.

Source: Koordinator, pkg/descheduler/descheduler.go.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from koord.api.labelselector import LabelSelector
from koord.cluster.facts import ClusterNode
from koord.util.clock import Clock
from koord.util.errors import KoordError, error_text
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import get_logger
from koord.util.stop import Stop, first_completed
from koord_descheduler.framework.decisions import Decisions
from koord_descheduler.framework.evictor import EvictionLimiter, FrameworkMetrics
from koord_descheduler.framework.interfaces import Status
from koord_descheduler.framework.profile import ProfilePlugins
from koord_descheduler.rules.nodefit import FitTime

MIN_NODES = 2

ListNodes = Callable[[], Awaitable[Sequence[ClusterNode]]]
"""Returns all nodes of the cluster, in a stable order."""

log = get_logger("koord_descheduler.cycle")


class ClusterTooSmall(KoordError):
    """There are too few nodes for a pod to move anywhere."""


@dataclass(slots=True)
class CycleResult:
    """One cycle, for people and for tests."""

    nodes: int = 0  # ready, and selected by the configuration
    errors: list[str] = field(default_factory=list)  # each with its profile; empty: it went well
    evictions: dict[str, dict[str, int]] = field(default_factory=dict)  # profile -> plugin -> pods
    cut: dict[str, int] = field(default_factory=dict)  # NodeFit that took too long, by namespace
    seconds: float = 0.0  # wall time
    cpu_seconds: float = 0.0  # of the whole process


class Descheduler:
    """Runs cycles; they never overlap."""

    def __init__(
        self,
        profiles: Sequence[ProfilePlugins],
        nodes: ListNodes,
        limiter: EvictionLimiter,
        metrics: FrameworkMetrics,
        clock: Clock,
        *,
        decisions: Decisions,
        interval: float,
        node_selector: LabelSelector | None = None,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        """interval is in seconds, from start to start; 0: a single cycle.

        node_selector None: all nodes. cpu returns the CPU seconds of this process.
        """
        self.profiles = tuple(profiles)
        self._nodes = nodes
        self._limiter = limiter
        self._metrics = metrics
        self._clock = clock
        self._decisions = decisions
        self._interval = interval
        self._selector = node_selector
        self._cpu = cpu
        self._errors: list[str] = []  # of the last cycle
        self._turn = asyncio.Lock()  # of a cycle, or of a change between two
        self._changed = asyncio.Event()

    def health(self) -> PartHealth:
        """Degraded: something went wrong in the last cycle; the rest of it was done."""
        if self._errors:
            return PartHealth(HealthStatus.DEGRADED, f"the last cycle: {'; '.join(self._errors)}")
        return OK

    @asynccontextmanager
    async def between_cycles(self) -> AsyncIterator[None]:
        """Wait for the end of a cycle that runs; none begins inside."""
        async with self._turn:
            yield

    def change(
        self,
        *,
        profiles: Sequence[ProfilePlugins],
        interval: float,
        node_selector: LabelSelector | None,
    ) -> None:
        """Go on with these; only between cycles. Arguments as those of the constructor."""
        self.profiles, self._interval, self._selector = tuple(profiles), interval, node_selector
        self._changed.set()

    async def run(self, stop: Stop) -> None:
        """Run a cycle now and then every interval, until stop, which ends one in its middle.

        A cycle that takes longer than the interval is followed by the next one at once. With the
        interval 0, the next cycle waits until it is changed.
        """
        while not stop.is_set():
            began = self._clock.monotonic()
            await stop.bound(self.run_once())
            await self._pause(began, stop)

    async def _pause(self, began: float, stop: Stop) -> None:
        """Wait for the next cycle."""
        while not stop.is_set():
            self._changed.clear()
            if self._interval <= 0:
                await first_completed(self._changed.wait(), stop.wait())
                continue
            left = began + self._interval - self._clock.monotonic()
            if left <= 0:
                return
            await stop.sleep(left, self._changed)

    async def run_once(self) -> CycleResult:
        """Run one cycle and return its result. Raises nothing but CancelledError."""
        async with self._turn:
            return await self._cycle()

    async def _cycle(self) -> CycleResult:
        result = CycleResult()
        began, cpu, fit_time = self._clock.monotonic(), self._cpu(), FitTime()
        log.info("cycle.started", profiles=[profile.name for profile in self.profiles])
        try:
            with fit_time.in_force():
                await self._run(result)
        except Exception as err:  # of the list of nodes; the next cycle has its chance
            result.errors.append(error_text(err))
        finally:
            result.seconds = self._clock.monotonic() - began
            result.cpu_seconds = self._cpu() - cpu
            result.evictions = {
                profile.name: dict(profile.evictions)
                for profile in self.profiles
                if profile.evictions
            }
            result.cut = dict(fit_time.cut)
            self._errors = result.errors
            self._metrics.cycles.observe(result.seconds)
            log.info(
                "cycle.ended",
                seconds=round(result.seconds, 6),
                cpu_seconds=round(result.cpu_seconds, 6),
                nodes=result.nodes,
                evictions=result.evictions,
                node_fit_cut=result.cut,
                errors=result.errors,
            )
        return result

    async def _run(self, result: CycleResult) -> None:
        self._limiter.reset()
        self._decisions.begin(self._clock.wall())
        for profile in self.profiles:
            profile.evictions.clear()
        nodes = await self._selected()
        result.nodes = len(nodes)
        if len(nodes) < MIN_NODES:
            raise ClusterTooSmall(
                "the cluster size is 0 or 1 meaning eviction causes service disruption or "
                f"degradation: wanted {MIN_NODES} ready nodes, found {len(nodes)}"
            )
        ready = [profile for profile in self.profiles if not profile.waits_for()]
        for profile in self.profiles:
            if reason := profile.waits_for():  # what its plugins evict would be a guess
                result.errors.append(f"{profile.name}: left out: {reason}")
        for profile in ready:
            _note(result, profile, await profile.run_deschedule_plugins(profile.select(nodes)))
        for profile in ready:
            _note(result, profile, await profile.run_balance_plugins(profile.select(nodes)))

    async def _selected(self) -> tuple[ClusterNode, ...]:
        selector = self._selector
        return tuple(
            node
            for node in await self._nodes()
            if node.ready and (selector is None or selector.matches(node.labels))
        )


def _note(result: CycleResult, profile: ProfilePlugins, status: Status) -> None:
    if not status.ok:
        result.errors.append(f"{profile.name}: {status}")
