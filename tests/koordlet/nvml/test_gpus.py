"""Asking helpers for GPUs, in simulated time: hangs, crashes, recovery, and what is remembered."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from koord.util.clock import SystemClock
from koord.util.health import OK
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop
from koordlet.nvml.gpus import (
    NO_DRIVER_INTERVAL,
    OPEN_TIMEOUT,
    RESPONSE_TIMEOUT,
    GpuMonitor,
    GpuObservers,
    GpuReading,
)
from koordlet.nvml.process import HelperError, HelperProcess
from koordlet.rules.devices import DeviceTopology, GpuSet
from tests.support.node.nvml_stub import NvmlStub, gpu

PLACE = DeviceTopology(1, "pci0000:3a", "0000:3b:00.0")


def card(number: int, error: str = "") -> dict[str, Any]:
    return {
        "uuid": f"GPU-{number}",
        "minor": number,
        "model": "NVIDIA T4",
        "memory": 100,
        "bus": f"0000:3{number}:00.0",
        "error": error,
        "processes": [],
    }


class FakeHelper:
    """Answers what its scene says, hangs, or has ended."""

    def __init__(self, scene: "Scene") -> None:
        self._scene = scene
        self.exited = False

    async def request(self) -> bytes:
        self._scene.asked += 1
        if self._scene.hangs:
            await asyncio.Event().wait()
        if self._scene.broken:
            raise HelperError("it has ended")
        return json.dumps(self._scene.answer).encode()

    async def end(self) -> bool:
        self.exited = self._scene.can_be_killed
        return self.exited


class Scene:
    """The watch of a node's GPUs, and what its helpers do."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.registry = CollectorRegistry()
        self.present = True
        self.hangs = self.broken = False
        self.can_be_killed = True
        self.answer: dict[str, Any] = {"driver": "550", "gpus": [card(0)]}
        self.asked = self.started = 0
        self.helpers: list[FakeHelper] = []
        self.published: list[GpuSet] = []
        self.readings: list[GpuReading | None] = []
        self.stop = Stop(self.clock)
        self.task: asyncio.Task[None] | None = None
        self.gpus = GpuMonitor(
            self._start,
            GpuObservers(gpus=self.published.append, reading=self.readings.append),
            self.clock,
            self.registry,
            present=lambda: self.present,
            locate=lambda _: PLACE,
            interval=1.0,
        )

    async def _start(self) -> FakeHelper:
        self.helpers.append(FakeHelper(self))
        return self.helpers[-1]

    async def seconds(self, count: float) -> None:
        """Let time pass; the first call starts the watch."""
        if self.task is None:
            self.task = asyncio.create_task(self.gpus.run(self.stop))
        for _ in range(int(count)):
            for _ in range(3):
                await asyncio.to_thread(lambda: None)  # what it reads on a thread is done
                await self.clock.settle()
            await self.clock.advance(1.0)
        await self.clock.settle()

    @property
    def failures(self) -> float:
        return self.registry.get_sample_value("koordlet_gpu_helper_failures_total") or 0.0

    def errors(self) -> list[str]:
        return [gpu.error for gpu in self.published[-1].gpus]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    yield scene
    scene.stop.set()
    await scene.clock.settle()
    assert scene.task is not None
    await asyncio.wait_for(scene.task, 10)
    assert all(helper.exited for helper in scene.helpers) or not scene.can_be_killed


async def test_one_helper_is_asked_each_interval(scene: Scene) -> None:
    await scene.seconds(10)
    assert len(scene.helpers) == 1
    assert 9 <= scene.asked <= 11
    assert len(scene.published) == 1
    assert scene.published[0].driver == "550"
    assert scene.published[0].gpus[0].topology == PLACE
    assert scene.gpus.health() == OK


async def test_a_node_without_the_driver_starts_no_helper(scene: Scene) -> None:
    """It has no GPUs: that is known, and all is well."""
    scene.present = False
    await scene.seconds(3 * NO_DRIVER_INTERVAL)
    assert scene.helpers == []
    assert scene.published == [GpuSet("", ())]
    assert scene.gpus.health() == OK
    scene.present = True
    await scene.seconds(NO_DRIVER_INTERVAL + 3)
    assert [gpu.uuid for gpu in scene.published[-1].gpus] == ["GPU-0"]


async def test_one_that_hangs_is_killed_and_the_gpus_stay_as_they_were(scene: Scene) -> None:
    await scene.seconds(3)
    readings = len(scene.readings)
    scene.hangs = True
    await scene.seconds(RESPONSE_TIMEOUT + 3)
    assert scene.helpers[0].exited
    assert "did not answer within 5 s" in scene.gpus.health().reason
    assert scene.failures >= 1
    assert len(scene.published) == 1
    assert len(scene.readings) <= readings + 2
    scene.hangs = False
    await scene.seconds(OPEN_TIMEOUT + 10)
    assert scene.gpus.health() == OK
    assert len(scene.published) == 1


async def test_attempts_become_rare(scene: Scene) -> None:
    scene.broken = True
    await scene.seconds(3600)
    assert 10 <= len(scene.helpers) <= 30
    assert scene.failures == len(scene.helpers)


async def test_helpers_that_cannot_be_killed_do_not_pile_up(scene: Scene) -> None:
    scene.hangs, scene.can_be_killed = True, False
    await scene.seconds(3600)
    assert len(scene.helpers) == 2
    assert "cannot be killed" in scene.gpus.health().reason
    for helper in scene.helpers:
        helper.exited = True
    scene.hangs, scene.can_be_killed = False, True
    await scene.seconds(700)
    assert scene.gpus.health() == OK


async def test_a_critical_xid_lasts_until_the_gpu_is_gone(scene: Scene) -> None:
    """Also over another helper, which has not seen it."""
    scene.answer["gpus"] = [card(0, "Xid79"), card(1)]
    await scene.seconds(3)
    assert scene.errors() == ["Xid79", ""]
    scene.answer["gpus"] = [card(0), card(1)]
    scene.broken = True
    await scene.seconds(3)
    scene.broken = False
    await scene.seconds(10)
    assert len(scene.helpers) > 1
    assert scene.errors() == ["Xid79", ""]
    scene.answer["gpus"] = [card(1)]
    await scene.seconds(3)
    assert scene.errors() == [""]
    scene.answer["gpus"] = [card(0), card(1)]
    await scene.seconds(3)
    assert scene.errors() == ["", ""]


async def test_a_lost_gpu_recovers_when_it_answers(scene: Scene) -> None:
    scene.answer["gpus"] = [card(0, "DeviceLost")]
    await scene.seconds(3)
    assert scene.errors() == ["DeviceLost"]
    scene.answer["gpus"] = [card(0)]
    await scene.seconds(3)
    assert scene.errors() == [""]


async def test_nonsense_is_a_failure(scene: Scene) -> None:
    scene.answer = {"driver": "550", "gpus": [{"uuid": 7}]}
    await scene.seconds(3)
    assert scene.published == []
    assert "uuid: wanted a text" in scene.gpus.health().reason


async def test_a_stop_does_not_wait_for_an_answer(scene: Scene) -> None:
    scene.hangs = True
    await scene.seconds(2)
    scene.stop.set()
    await scene.seconds(1)
    assert scene.helpers[0].exited
    assert scene.readings[-1] is None


async def test_the_real_helper(tmp_path: Path) -> None:
    """The whole way from a library to what is published, once round a hang."""
    nvml = NvmlStub(tmp_path)
    nvml.say(gpu(0), "hang nvmlDeviceGetName")
    clock, found, readings = SystemClock(), asyncio.Queue(), []
    gpus = GpuMonitor(
        lambda: HelperProcess.start(nvml.environ, clock),
        GpuObservers(gpus=found.put_nowait, reading=readings.append),
        clock,
        CollectorRegistry(),
        present=lambda: True,
        locate=lambda _: None,
        interval=0.01,
        limits=(0.5, 5.0),
    )
    stop = Stop(clock)
    task = asyncio.create_task(gpus.run(stop))
    async with asyncio.timeout(20):
        while gpus.health() == OK:  # noqa: ASYNC110 - nothing reports a change of health
            await asyncio.sleep(0.02)
        nvml.say(gpu(0))
        assert [each.uuid for each in (await found.get()).gpus] == ["GPU-0000"]
        nvml.say(gpu(0), "xid 0 79")
        assert [each.error for each in (await found.get()).gpus] == ["Xid79"]
        stop.set()
        await task
    assert readings[-1] is None
