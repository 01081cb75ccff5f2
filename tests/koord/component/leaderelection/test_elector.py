"""Two candidates and a real API server over HTTP, on simulated time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from koord.component.leaderelection import ElectionConfig, LeaderElector, LeaderMetrics, LeaseLost
from koord.kube.client import LEASES, ApiClient
from koord.kube.events import Event
from koord.util.health import HealthStatus
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop
from tests.support.kube.apiserver import ApiServer, Handler
from tests.support.kube.faults import answer, drop, hang, refuse
from tests.support.kube.loopback_network import network_is_quiet

COLLECTION = LEASES.collection()
KEY = "koordinator-system/koord-descheduler"


class Candidate:
    """One replica: an elector, and work that records when it runs."""

    def __init__(self, name: str, client: ApiClient, clock: SimulatedClock, **settings: Any):
        self.name = name
        self.working = False
        self.saw_stop = False
        self.cleanup = 0.0  # seconds that the work takes to end
        self.fails: Exception | None = None
        self.stubborn = False  # ignores that it is cancelled
        self.let_go = asyncio.Event()
        self.blocker = ""
        self.events: list[Event] = []
        self.registry = CollectorRegistry()
        self.stop = Stop(clock)
        self.clock = clock
        self.elector = LeaderElector(
            client,
            ElectionConfig(
                namespace="koordinator-system", name="koord-descheduler", identity=name, **settings
            ),
            self._work,
            clock,
            metrics=LeaderMetrics(self.registry),
            announce=self.events.append,
            component="koord-descheduler",
            draw=lambda: 0.0,
            blocker=lambda: self.blocker,
        )
        self.task = asyncio.create_task(self.elector.run(self.stop), name=name)

    async def _work(self, stop: Stop) -> None:
        self.working = True
        try:
            if self.fails is not None:
                raise self.fails
            if self.stubborn:
                await self._ignore_cancellation()
                return
            await stop.wait()
            self.saw_stop = True
            await self.clock.sleep(self.cleanup)
        finally:
            self.working = False

    async def _ignore_cancellation(self) -> None:
        while not self.let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.let_go.wait()

    @property
    def gauge(self) -> float | None:
        labels = {"name": "koord-descheduler"}
        return self.registry.get_sample_value("leader_election_master_status", labels)


Start = Callable[..., Candidate]


@pytest.fixture
async def start(
    make_client: Callable[..., ApiClient], clock: SimulatedClock
) -> AsyncIterator[Start]:
    """Starts candidates, which end with the test."""
    async with AsyncExitStack() as stack:

        def start(name: str, **settings: Any) -> Candidate:
            candidate = Candidate(name, make_client(), clock, **settings)
            stack.push_async_callback(_end, candidate)
            return candidate

        yield start


async def _end(candidate: Candidate) -> None:
    candidate.task.cancel()
    while not candidate.task.done():
        await network_is_quiet()
        await candidate.clock.advance(1.0)
    await asyncio.gather(candidate.task, return_exceptions=True)


def spec(server: ApiServer) -> dict[str, Any]:
    found: dict[str, Any] = server.objects.get(COLLECTION, KEY)["spec"]
    return found


async def test_the_first_candidate_creates_the_lease_and_leads(
    server: ApiServer, start: Start, pass_time: Any
) -> None:
    """With the fields that client-go writes."""
    one = start("one")
    await pass_time(lambda: one.working)

    assert spec(server) == {
        "holderIdentity": "one",
        "leaseDurationSeconds": 15,
        "acquireTime": "2023-11-14T22:13:20.000000Z",
        "renewTime": "2023-11-14T22:13:20.000000Z",
        "leaseTransitions": 0,
    }
    assert one.elector.leading
    assert one.gauge == 1
    assert one.elector.health().status is HealthStatus.OK
    [event] = one.events
    assert (event.reason, event.message) == ("LeaderElection", "one became leader")
    assert event.about.kind == "Lease"


async def test_a_lease_is_renewed_every_retry_period_with_one_request(
    server: ApiServer, start: Start, clock: SimulatedClock, pass_time: Any
) -> None:
    """A renewal needs no read; the acquire time stays."""
    one = start("one")
    await pass_time(lambda: one.working)
    before = len(server.requests)
    for _ in range(10):
        await clock.advance(2.0)
        await network_is_quiet()

    verbs = [entry.verb for entry in server.requests[before:]]
    assert verbs == ["update"] * 10
    assert spec(server)["renewTime"] == "2023-11-14T22:13:40.000000Z"
    assert spec(server)["acquireTime"] == "2023-11-14T22:13:20.000000Z"


async def test_the_second_waits_and_takes_over_at_once_after_a_release(
    server: ApiServer, start: Start, clock: SimulatedClock, pass_time: Any
) -> None:
    """The lease is released when the work has ended, and renewed until then."""
    one = start("one")
    await pass_time(lambda: one.working)
    two = start("two")
    await clock.advance(60.0)
    one.cleanup = 30.0
    one.stop.set()
    await pass_time(lambda: one.saw_stop)
    for _ in range(20):
        await network_is_quiet()
        await clock.advance(1.0)
    assert one.working
    assert not two.working

    await pass_time(one.task.done)
    assert one.task.exception() is None
    assert spec(server)["holderIdentity"] == ""
    assert spec(server)["leaseDurationSeconds"] == 1
    released_at = clock.monotonic()
    await pass_time(lambda: two.working)
    assert clock.monotonic() - released_at <= 3.0
    assert spec(server)["holderIdentity"] == "two"
    assert spec(server)["leaseTransitions"] == 1
    assert one.gauge == 0


async def test_a_dead_leader_is_replaced_when_its_lease_has_not_changed_for_its_duration(
    server: ApiServer, start: Start, clock: SimulatedClock, pass_time: Any
) -> None:
    """By the candidate's own clock, whatever the renew time says: here it is a year ahead."""
    dead = {
        "metadata": {"name": "koord-descheduler", "namespace": "koordinator-system"},
        "spec": {
            "holderIdentity": "dead",
            "leaseDurationSeconds": 40,
            "renewTime": "2024-11-14T22:13:20.000000Z",
            "leaseTransitions": 7,
        },
    }
    server.objects.create(COLLECTION, dead)
    began = clock.monotonic()
    two = start("two")
    await pass_time(lambda: two.working)

    assert 40.0 <= clock.monotonic() - began <= 44.0
    assert spec(server)["leaseTransitions"] == 8


@pytest.mark.parametrize(
    "fault",
    [
        refuse(409, "Conflict", "the object has been modified"),
        refuse(500, "InternalError"),
        refuse(503, headers={"Retry-After": "60"}),
        refuse(429, "TooManyRequests", headers={"Retry-After": "1"}),
        refuse(403, "Forbidden"),
        answer(b"{}"),
        answer(b'{"metadata": {"resourceVersion": 5}}'),
        answer(b"<html>"),
        hang,
        drop,
    ],
)
async def test_one_fault_of_a_renewal_does_not_end_the_lead(
    server: ApiServer, start: Start, clock: SimulatedClock, pass_time: Any, fault: Handler
) -> None:
    """There is time for another attempt before the deadline."""
    one = start("one")
    await pass_time(lambda: one.working)
    server.script(fault, method="PUT")
    for _ in range(60):
        await network_is_quiet()
        await clock.advance(1.0)

    assert one.working
    assert one.elector.leading
    assert one.elector.health().status is HealthStatus.OK


async def test_a_lease_deleted_under_its_leader_is_created_again_by_it_alone(
    server: ApiServer, start: Start, clock: SimulatedClock, pass_time: Any
) -> None:
    """The other candidate knows that the leader may still lead."""
    one = start("one")
    await pass_time(lambda: one.working)
    two = start("two", retry_period=0.5)
    await pass_time(lambda: two.elector.health().detail["holder"] == "one")
    server.objects.delete(COLLECTION, KEY)
    for _ in range(30):
        await network_is_quiet()
        await clock.advance(0.5)

    assert one.working
    assert not two.working
    assert spec(server)["holderIdentity"] == "one"
    labels = {"name": "koord-descheduler"}
    assert one.registry.get_sample_value("leader_election_slowpath_total", labels) == 1


async def test_a_server_that_is_gone_ends_the_lead_within_the_renew_deadline(
    server: ApiServer, start: Start, clock: SimulatedClock, pass_time: Any
) -> None:
    """Gone for ten minutes: the work is cancelled, and no one leads until it is back."""
    one = start("one")
    await pass_time(lambda: one.working)
    two = start("two")
    await pass_time(lambda: two.elector.health().detail["holder"] == "one")
    renewed = spec(server)["renewTime"]
    await server.stop()
    began = clock.monotonic()
    await pass_time(lambda: not one.working, step=0.25)
    assert clock.monotonic() - began <= 10.25
    assert not one.elector.leading
    assert not one.saw_stop
    await pass_time(one.task.done)
    with pytest.raises(LeaseLost, match="wanted a renewal within 10 s"):
        one.task.result()

    for _ in range(120):
        await network_is_quiet()
        await clock.advance(5.0)
    assert not two.working
    assert two.elector.health().status is HealthStatus.DEGRADED
    assert spec(server)["renewTime"] == renewed

    await server.start()
    await pass_time(lambda: two.working)
    assert two.elector.health().status is HealthStatus.OK


async def test_the_deadline_counts_from_when_a_renewal_was_sent(
    server: ApiServer, start: Start, clock: SimulatedClock, pass_time: Any
) -> None:
    """Others have seen it before its response arrived: they count from earlier."""

    async def late(request: Any) -> Any:
        response = await server.answer(request)
        await clock.sleep(4.0)
        return response

    one = start("one")
    await pass_time(lambda: one.working)
    server.script(late, method="PUT")
    began = clock.monotonic()
    await clock.advance(2.0)
    await pass_time(lambda: clock.monotonic() >= began + 6.5, step=0.5)
    await server.stop()
    await pass_time(lambda: not one.working, step=0.5)

    assert 11.0 <= clock.monotonic() - began <= 12.5


async def test_another_holder_ends_the_lead_at_once(
    server: ApiServer, start: Start, clock: SimulatedClock, pass_time: Any
) -> None:
    """An administrator has given the lease away; it is left to its new holder."""
    one = start("one")
    await pass_time(lambda: one.working)
    item = server.objects.get(COLLECTION, KEY)
    server.objects.replace(COLLECTION, item | {"spec": item["spec"] | {"holderIdentity": "x"}})
    began = clock.monotonic()
    await pass_time(lambda: not one.working, step=0.5)

    assert clock.monotonic() - began <= 2.5
    await pass_time(one.task.done)
    with pytest.raises(LeaseLost, match="found it held by x"):
        one.task.result()
    assert spec(server)["holderIdentity"] == "x"


async def test_a_leader_that_is_hindered_renews_no_more(
    server: ApiServer, start: Start, clock: SimulatedClock, pass_time: Any
) -> None:
    """Its work does not turn any more: the lease runs out, and another replica leads."""
    one = start("one")
    await pass_time(lambda: one.working)
    two = start("two")
    await pass_time(lambda: two.elector.health().detail["holder"] == "one")
    one.blocker = "its event loop without a turn for 61 s"
    await pass_time(lambda: not one.elector.leading)
    await pass_time(one.task.done)
    with pytest.raises(LeaseLost, match="found its event loop without a turn for 61 s"):
        one.task.result()
    await pass_time(lambda: two.working)
    assert spec(server)["holderIdentity"] == "two"


async def test_a_machine_that_slept_does_not_lead_when_it_wakes(
    server: ApiServer, start: Start, clock: SimulatedClock, pass_time: Any
) -> None:
    """Monotonic time stood still, but the lease was over long ago."""
    one = start("one")
    await pass_time(lambda: one.working)
    clock.suspend(60.0)

    assert not one.elector.leading
    requests = len(server.requests)
    await pass_time(one.task.done)
    with pytest.raises(LeaseLost, match="this process held up"):
        one.task.result()
    assert len(server.requests) == requests


async def test_work_that_raises_releases_the_lease(
    server: ApiServer, make_client: Any, clock: SimulatedClock, start: Start, pass_time: Any
) -> None:
    """The error goes to the caller; another replica may have better luck."""
    one = start("one")
    one.fails = ValueError("broken")
    await pass_time(one.task.done)

    with pytest.raises(ValueError, match="broken"):
        one.task.result()
    assert spec(server)["holderIdentity"] == ""


async def test_cancelling_ends_the_work_and_releases_the_lease(
    server: ApiServer, start: Start, pass_time: Any
) -> None:
    """In this order."""
    one = start("one")
    await pass_time(lambda: one.working)
    one.task.cancel()
    await pass_time(one.task.done)

    assert one.task.cancelled()
    assert not one.working
    assert spec(server)["holderIdentity"] == ""


async def test_stop_during_the_acquisition_leaves_no_lease_behind(
    server: ApiServer, start: Start, clock: SimulatedClock, pass_time: Any
) -> None:
    """The server has stored it, and the response does not come."""

    async def store_and_hang(request: Any) -> Any:
        await server.answer(request)
        return await hang(request)

    server.script(store_and_hang, method="POST")
    one = start("one")
    await clock.settle()
    await network_is_quiet()
    assert spec(server)["holderIdentity"] == "one"
    one.stop.set()
    await pass_time(one.task.done)

    assert one.task.exception() is None
    assert spec(server)["holderIdentity"] == ""
    assert not one.working


async def test_a_renewal_in_flight_at_the_end_does_not_keep_the_lease(
    server: ApiServer, start: Start, clock: SimulatedClock, pass_time: Any
) -> None:
    """The release conflicts with a later version, reads it, and releases that."""

    async def store_and_hang(request: Any) -> Any:
        await server.answer(request)
        return await hang(request)

    one = start("one")
    await pass_time(lambda: one.working)
    server.script(store_and_hang, method="PUT")
    await clock.advance(2.0)
    await network_is_quiet()
    one.stop.set()
    await pass_time(one.task.done)

    assert one.task.exception() is None
    assert spec(server)["holderIdentity"] == ""


async def test_a_release_that_hangs_does_not_hold_up_the_end(
    server: ApiServer, start: Start, clock: SimulatedClock, pass_time: Any
) -> None:
    """The lease ends by itself then."""
    one = start("one")
    await pass_time(lambda: one.working)
    server.script(hang, hang, method="PUT")
    one.stop.set()
    began = clock.monotonic()
    await pass_time(one.task.done)

    assert clock.monotonic() - began <= 6.0
    assert one.task.exception() is None


async def test_work_that_ignores_its_end_keeps_the_lease(
    server: ApiServer, start: Start, clock: SimulatedClock, pass_time: Any
) -> None:
    """A cancelled elector waits as long as no other can lead, and does not release."""
    one = start("one")
    one.stubborn = True
    await pass_time(lambda: one.working)
    began = clock.monotonic()
    one.task.cancel()
    await pass_time(one.task.done)

    assert one.working
    assert clock.monotonic() - began <= 16.0
    assert spec(server)["holderIdentity"] == "one"
    one.let_go.set()
    await pass_time(lambda: not one.working)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (refuse(404, "NotFound", 'namespaces "koordinator-system" not found'), "namespaces"),
        (refuse(403, "Forbidden", "cannot create resource leases"), "cannot create"),
    ],
)
async def test_a_lease_that_cannot_be_created_is_reported(
    server: ApiServer, start: Start, clock: SimulatedClock, pass_time: Any, fault: Handler,
    reason: str,
) -> None:  # fmt: skip
    """A namespace that is missing, or a role: no replica leads, and health says why."""
    server.script(fault, fault, method="POST")
    one = start("one")
    await pass_time(lambda: one.elector.health().status is HealthStatus.DEGRADED)
    assert reason in one.elector.health().reason

    await pass_time(lambda: one.working)
    assert one.elector.health().status is HealthStatus.OK


async def test_foreign_fields_of_the_lease_stay(
    server: ApiServer, start: Start, pass_time: Any
) -> None:
    """Labels, annotations and fields of the spec that this version does not know."""
    item = {
        "metadata": {
            "name": "koord-descheduler",
            "namespace": "koordinator-system",
            "labels": {"team": "a"},
        },
        "spec": {"strategy": "OldestEmulationVersion", "leaseTransitions": "many"},
    }
    server.objects.create(COLLECTION, item)
    one = start("one")
    await pass_time(lambda: one.working)

    assert server.objects.get(COLLECTION, KEY)["metadata"]["labels"] == {"team": "a"}
    assert spec(server)["strategy"] == "OldestEmulationVersion"
    assert spec(server)["leaseTransitions"] == 1
