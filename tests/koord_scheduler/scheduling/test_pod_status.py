"""Conditions of pods on their way to the API server."""

import asyncio
from typing import Any

from koord.kube.errors import Unreachable
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop
from koord_scheduler.scheduling.failures import PodScheduledCondition, PodStatuses
from tests.support.scheduler.framework import make_pod


class Away:
    """A client whose requests wait, and fail; when they are answered."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[None]] = []
        self.bodies: list[Any] = []

    async def patch(self, path: str, body: Any, *args: Any, **more: Any) -> None:
        self.bodies.append(body)
        self.asked.append(asyncio.get_running_loop().create_future())
        await self.asked[-1]


async def test_a_condition_is_sent_again_when_two_of_one_pod_were_on_their_way() -> None:
    """The older one that fails is not taken for the newer one."""
    clock, client = SimulatedClock(), Away()
    statuses, stop = PodStatuses(client, clock), Stop(clock)  # type: ignore[arg-type]
    running = asyncio.create_task(statuses.run(stop))
    for message in ("first", "second"):
        statuses.report(make_pod(), PodScheduledCondition("Unschedulable", message), None)
        await clock.settle()
    assert len(client.asked) == 2
    for each in tuple(client.asked):
        each.set_exception(Unreachable("no route"))
        await clock.settle()
    await clock.advance(60)

    assert len(client.asked) == 3
    assert "second" in str(client.bodies[-1])
    stop.set()
    await running
