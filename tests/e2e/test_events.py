"""An eviction and the events about it, as the daemon's parts send them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from koord.api.eviction import EvictionOutcome
from koord.api.pod import Pod
from koord.kube.client import EVENTS, ApiClient
from koord.kube.credentials import ApiConfig
from koord.kube.events import EventRecorder
from koord.kube.eviction import PodEvictions
from koord.kube.transport import Transport
from koord.util.stop import Stop
from koordlet.plugin.testing import SimulatedClock
from tests.support.real_apiserver.accounts import Accounts
from tests.support.real_apiserver.cluster_objects import ClusterObjects
from tests.support.real_apiserver.recorder import Recorder

JOBS = "jobs"
TIMEOUT = 30.0  # real seconds


@pytest.fixture
async def crunch(objects: ClusterObjects, node_name: str) -> Pod:
    """A pod of our node."""
    await objects.add_node(node_name, {"capacity": {"cpu": "4", "memory": "16Gi"}})
    made = await objects.add_pod("crunch", {"nodeName": node_name}, namespace=JOBS)
    return Pod(JOBS, "crunch", made["metadata"]["uid"])


@pytest.fixture
async def evictions(
    recorder: Recorder, accounts: Accounts, clock: SimulatedClock, crunch: Pod, node_name: str
) -> AsyncIterator[PodEvictions]:
    """Of an agent on that node, with a recorder of events that runs."""
    token = await accounts.agent(node_name, "events", "evictions")
    config = ApiConfig(server=recorder.url, source="the test", token=token)
    client = ApiClient(Transport(config, clock), clock)
    events, stop = EventRecorder(client, node_name, clock), Stop(clock)
    task = asyncio.create_task(events.run(stop))
    yield PodEvictions(client, events, clock, "koordlet")
    stop.set()
    await asyncio.wait_for(task, TIMEOUT)
    await client.close()


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


async def pass_time(clock: SimulatedClock, until: Callable[[], Any]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not until():
            await asyncio.sleep(0.005)  # the network takes real time
            await clock.advance(1)


async def test_a_pod_is_evicted_and_gets_an_event(
    recorder: Recorder, client: ApiClient, objects: ClusterObjects, evictions: PodEvictions,
    crunch: Pod, clock: SimulatedClock,
) -> None:  # fmt: skip
    """The pod is gone; what happens again is the same event with a higher count."""
    answer = await evictions.evict(crunch, None)
    assert answer.outcome is EvictionOutcome.EVICTED
    assert await objects.names(namespace=JOBS) == []

    for verb in ("create", "patch"):
        evictions.announce(crunch, warning=True, reason="evictPodSuccess", message="memory 92 %")
        await pass_time(clock, lambda verb=verb: recorder.asked(verb, EVENTS.collection(JOBS)))

    [event] = (await client.list(EVENTS.collection(JOBS))).items
    assert event["count"] == 2
