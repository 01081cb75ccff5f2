"""An evictor on simulated time with an API server that a test scripts."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from koord.util.ownedfiles import OwnedDirectory
from koord.util.stop import Stop
from koordlet.executor.evictions.decisions import Decisions, EvictionMetrics
from koordlet.executor.evictions.eviction import Eviction, EvictionRequest, KillResult
from koordlet.executor.evictions.evictor import Evictor
from koordlet.executor.evictions.limits import EvictionBudget
from koordlet.plugin.testing import ScriptedEvictions, SimulatedClock, make_pod
from tests.support.kube.inline_executor import InlineExecutor


class ScriptedKiller:
    """Kills whatever it is asked for, unless a test says what is left."""

    def __init__(self) -> None:
        self.killed: list[tuple[str, str]] = []  # cgroup and uid of each
        self.processes = 3
        self.error = ""

    async def kill(self, group: str, uid: str) -> KillResult:
        """As koordlet.executor's Kills."""
        self.killed.append((group, uid))
        return KillResult(self.processes, self.error)


class Bench:
    """An evictor and everything around it."""

    def __init__(
        self,
        clock: SimulatedClock,
        directory: Path | None = None,
        killer: ScriptedKiller | None = None,
        standalone: bool = False,
    ) -> None:
        self.clock = clock
        self.api = ScriptedEvictions(clock)
        self.dry_run: set[str] = set()
        self.limit = 20
        self.registry = CollectorRegistry()
        self.decisions = Decisions(clock)
        self.budget = EvictionBudget(
            lambda: self.limit,
            clock,
            directory=directory and OwnedDirectory.open(directory),
            boot_id="boot-1",
        )
        self.evictor = Evictor(
            None if standalone else self.api,
            clock=clock,
            dry_run=self._is_dry_run,
            budget=self.budget,
            decisions=self.decisions,
            metrics=EvictionMetrics("n1", clock, self.registry),
            killer=killer,
        )
        self.stop = Stop(clock)

    async def _is_dry_run(self, plugin: str) -> bool:
        return plugin in self.dry_run

    @staticmethod
    def request(
        name: str, *, plugin: str = "MemoryEvict", grace: int | None = None, **pod: Any
    ) -> EvictionRequest:
        meta = make_pod(name, namespace="jobs", **pod)
        reason = "memory 92 %, above 70 %"
        return EvictionRequest(
            plugin=plugin,
            feature=plugin,
            pod=meta.pod,
            reason=reason,
            grace_seconds=grace,
            cgroup=meta.cgroup,
        )

    async def evict(self, name: str, **more: Any) -> Eviction:
        """Evict a pod of this name and let what does not take time happen."""
        task = asyncio.ensure_future(self.evictor.evict(self.request(name, **more)))
        await self.clock.settle()
        return await task

    async def kill_overdue(self, name: str, **more: Any) -> Eviction:
        """Say that a pod has ignored its eviction."""
        return await self.evictor.kill_overdue(self.request(name, **more))

    def count(self, outcome: str, plugin: str = "MemoryEvict") -> float:
        labels = {"plugin": plugin, "reason": plugin, "outcome": outcome}
        return self.registry.get_sample_value("koordlet_evictions_total", labels) or 0


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
async def bench(clock: SimulatedClock) -> AsyncIterator[Bench]:
    asyncio.get_running_loop().set_default_executor(InlineExecutor())
    bench = Bench(clock)
    running = asyncio.create_task(bench.evictor.run(bench.stop))
    yield bench
    bench.stop.set()
    await running


@pytest.fixture
def killer() -> ScriptedKiller:
    return ScriptedKiller()


@pytest.fixture
async def lethal(clock: SimulatedClock, killer: ScriptedKiller) -> AsyncIterator[Bench]:
    """An evictor that may kill."""
    asyncio.get_running_loop().set_default_executor(InlineExecutor())
    bench = Bench(clock, killer=killer)
    running = asyncio.create_task(bench.evictor.run(bench.stop))
    yield bench
    bench.stop.set()
    await running


@pytest.fixture
async def alone(clock: SimulatedClock, killer: ScriptedKiller) -> AsyncIterator[Bench]:
    """An evictor that may kill, where there is no API server."""
    asyncio.get_running_loop().set_default_executor(InlineExecutor())
    bench = Bench(clock, killer=killer, standalone=True)
    running = asyncio.create_task(bench.evictor.run(bench.stop))
    yield bench
    bench.stop.set()
    await running


@pytest.fixture
def make_bench(clock: SimulatedClock) -> type[Bench]:
    """Another evictor, as after a restart."""
    return Bench
