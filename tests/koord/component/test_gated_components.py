"""Parts that run while their gate is on."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from koord.component.flags import FeatureGates, FeatureSpec
from koord.component.supervisor import GatedComponent
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop

GATE = "TopologyReport"
GATES = {GATE: FeatureSpec(default=True), "Another": FeatureSpec()}
ILL = PartHealth(HealthStatus.DEGRADED, "it is ill")


class Part:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.error: Exception | None = None

    async def run(self, stop: Stop) -> None:
        self.calls.append("run")
        if self.error is not None:
            raise self.error
        try:
            await stop.wait()
            self.calls.append("returned")
        except asyncio.CancelledError:
            self.calls.append("cancelled")
            raise


class Scene:
    def __init__(self) -> None:
        self.clock, self.gates, self.part = SimulatedClock(), FeatureGates(GATES, "daemon"), Part()
        self.stop = Stop(self.clock)
        self.gated = GatedComponent(self.gates, GATE, self.clock, self.part.run, lambda: ILL)
        self.task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.task = asyncio.create_task(self.gated.run(self.stop))
        await self.clock.settle()

    async def switch(self, *values: bool) -> None:
        for value in values:
            self.gates.replace_map({GATE: value})
        await self.clock.settle()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    yield scene
    scene.stop.set()
    if scene.task is not None:
        await asyncio.wait({scene.task})


async def test_a_gate_that_is_on(scene):
    """The part runs until the daemon stops, and returns by itself."""
    await scene.start()
    assert scene.part.calls == ["run"]
    assert scene.gated.health() == ILL

    scene.stop.set()
    await asyncio.wait_for(scene.task, 60)
    assert scene.part.calls == ["run", "returned"]


async def test_a_gate_that_is_switched(scene):
    """The part starts and stops with it; off, it has no troubles."""
    await scene.switch(False)
    await scene.start()
    assert scene.part.calls == []
    assert scene.gated.health() == OK

    await scene.switch(True)
    assert scene.part.calls == ["run"]
    await scene.switch(False)
    assert scene.part.calls == ["run", "returned"]
    await scene.switch(True, False, True)
    assert scene.part.calls[-1] == "run"
    scene.gates.replace_map({GATE: True, "Another": True})
    await scene.clock.settle()
    assert scene.part.calls[-1] == "run"


async def test_what_the_part_raises_is_raised(scene):
    """So that it is supervised as if it ran alone."""
    scene.part.error = ValueError("no")
    await scene.start()
    with pytest.raises(ValueError, match="no"):
        await scene.task


async def test_a_daemon_that_gives_it_up(scene):
    """The part does not stay behind."""
    await scene.start()
    scene.task.cancel()
    await asyncio.wait({scene.task})
    assert scene.part.calls == ["run", "cancelled"]
