"""An eviction and the events about it, as the daemon's parts send them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from front import Front

from koord.api.eviction import EvictionOutcome
from koord.api.pod import Pod
from koord.kube.client import PODS, ApiClient
from koord.kube.credentials import ApiConfig
from koord.kube.events import EventRecorder
from koord.kube.eviction import PodEvictions
from koord.kube.transport import Transport
from koord.util.stop import Stop
from koordlet.plugin.testing import SimulatedClock

CRUNCH = Pod("jobs", "crunch", "uid-crunch")
EVENTS = "/api/v1/namespaces/jobs/events"
PATIENCE = 30.0  # real seconds


@pytest.fixture
async def front(api_config: ApiConfig) -> AsyncIterator[Front]:
    front = Front(api_config)
    pod = {"metadata": {"namespace": "jobs", "name": "crunch", "uid": CRUNCH.uid}}
    front.objects.create(PODS.collection(), pod)
    await front.start()
    yield front
    await front.stop()


@pytest.fixture
async def evictions(front: Front, clock: SimulatedClock) -> AsyncIterator[PodEvictions]:
    """With a recorder that runs."""
    transport = Transport(ApiConfig(server=front.url, source="the test"), clock)
    client = ApiClient(transport, clock)
    recorder, stop = EventRecorder(client, "n1", clock), Stop(clock)
    task = asyncio.create_task(recorder.run(stop))
    yield PodEvictions(client, recorder, clock, "koordlet")
    stop.set()
    await asyncio.wait_for(task, PATIENCE)
    await client.close()


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


async def pass_time(clock: SimulatedClock, until: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not until():
            await asyncio.sleep(0.005)  # the network takes real time
            await clock.advance(1)


async def test_a_pod_is_evicted_and_gets_an_event(
    front: Front, evictions: PodEvictions, clock: SimulatedClock
) -> None:
    """The pod is gone; what happens again is the same event with a higher count."""
    answer = await evictions.evict(CRUNCH, None)
    assert answer.outcome is EvictionOutcome.EVICTED
    assert front.objects.all(PODS.collection()) == []

    for verb in ("create", "patch"):
        evictions.announce(CRUNCH, warning=True, reason="evictPodSuccess", message="memory 92 %")
        await pass_time(clock, lambda verb=verb: front.asked(verb, EVENTS))

    [event] = front.objects.all("/api/v1/events")
    assert event["count"] == 2
