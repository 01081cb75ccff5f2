"""Reports to the cluster: over real HTTP to a scripted server, on simulated time."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import datetime
from functools import partial
from itertools import pairwise

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from koord.api.node import Node
from koord.api.nodemetric import NodeMetricSpec
from koord.kube.client import NODE_METRICS, ApiClient
from koord.kube.credentials import ApiConfig
from koord.kube.errors import Forbidden, KubeError
from koord.kube.transport import Limits, Transport
from koord.util.clock import stamp
from koord.util.health import OK, HealthStatus
from koord.util.ownedfiles import FileWriteError, write_atomic
from koord.util.stop import Stop
from koordlet.metriccache.kinds import NODE_CPU_USAGE, NODE_MEMORY_USAGE, Sample
from koordlet.reporter.cluster_sink import ClusterSink
from koordlet.reporter.loop import FleetPace, NodeMetricReporter, ReportOptions, node_phase
from koordlet.reporter.status import (
    AllSinks,
    FileSink,
    ObserveOnly,
    Report,
    ReportInputs,
    ReportNotRequested,
    build_status,
    make_report,
)
from koordlet.statesinformer.informer import StatesInformer, StateType
from koordlet.statesinformer.podmeta import ReportTarget
from tests.support.kube.apiserver import ApiServer, status
from tests.support.kube.faults import answer, begin, drop, hang, refuse
from tests.support.kube.inline_executor import InlineExecutor
from tests.support.kube.loopback_network import network_is_quiet

from .conftest import GIB, NODE, make_pod

METRICS = NODE_METRICS.collection()
START = 1_700_000_000.0  # the simulated clock's


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """A server with the NodeMetric of n1, which has a status with a field that will vanish."""
    server = ApiServer()
    await server.start()
    server.objects.create(
        METRICS, {"metadata": {"name": "n1"}, "spec": {"a": 1}, "status": {"prodPeakMetric": {}}}
    )
    yield server
    await server.stop()


@pytest.fixture
async def client(server, clock) -> AsyncIterator[ApiClient]:
    config = ApiConfig(server=server.url, source="the test")
    client = ApiClient(Transport(config, clock, limits=Limits(qps=0)), clock, draw=lambda: 0.0)
    yield client
    await client.close()


async def nobody() -> str:
    """No other agent is on the node."""
    return ""


class Target:
    """The object as the watch has shown it."""

    def __init__(self) -> None:
        self.now: ReportTarget | None = ReportTarget("uid-1")

    def __call__(self) -> ReportTarget | None:
        return self.now


@pytest.fixture
def target() -> Target:
    return Target()


@pytest.fixture
def sink(client, clock, target) -> ClusterSink:
    return ClusterSink(client, "n1", target, clock, observe_only=nobody, draw=lambda: 0.0)


@pytest.fixture
def report(cache, measure, clock) -> Report:
    measure(*NODE)
    spec = NodeMetricSpec()
    snapshot = ReportInputs(
        spec=spec, pods=(), host_applications=(), now=clock.boottime(), oldest=2.0
    )
    return make_report("n1", spec, build_status(cache, snapshot))


@pytest.fixture
def write(sink, clock) -> Callable[[Report], Awaitable[float]]:
    """Write a report; return how many simulated seconds that took."""

    async def write(report: Report) -> float:
        begun = clock.monotonic()
        writing = asyncio.ensure_future(sink.write(report))
        while not writing.done():
            await network_is_quiet()
            await clock.advance(0.25)
        await writing
        return clock.monotonic() - begun

    return write


@pytest.fixture
def fail(sink, write) -> Callable[..., Awaitable[float]]:
    """Write a report that does not arrive; return when a new one is wanted, in seconds."""

    async def fail(report: Report, match: str) -> float:
        with pytest.raises(KubeError, match=match):
            await write(report)
        return sink.retry_in()

    return fail


def status_of(server: ApiServer) -> dict:
    return server.objects.get(METRICS, "n1")["status"]


async def test_one_patch_replaces_the_whole_status(server, sink, report) -> None:
    """It tests the uid; what vanished is gone; the rest of the object is not touched."""
    await sink.write(report)

    [request] = server.requests
    assert (request.method, request.path) == ("PATCH", f"{METRICS}/n1/status")
    assert request.headers["Content-Type"] == "application/json-patch+json"
    assert request.json == [
        {"op": "test", "path": "/metadata/uid", "value": "uid-1"},
        {"op": "add", "path": "/status", "value": json.loads(report.body)["status"]},
    ]
    stored = server.objects.get(METRICS, "n1")
    assert stored["spec"] == {"a": 1}
    assert set(stored["status"]) == {"updateTime", "nodeMetric", "prodReclaimableMetric"}


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (refuse(404), "404"),
        (refuse(409, "Conflict"), "409"),
        (refuse(422, "Invalid"), "422"),
        (refuse(500), "500"),
        (refuse(503), "503"),
        (drop, "found"),
    ],
)
async def test_a_report_is_sent_once_then_a_new_one_is_wanted(
    server, fail, write, report, fault, says
) -> None:
    """In pauses that grow to seconds; it is only sent when the server has answered a question."""
    server.script(*[fault] * 99)
    assert [await fail(report, says) for _ in range(6)] == [0.5, 1, 2, 4, 4, 4]
    assert [request.method for request in server.requests].count("PATCH") == 1
    server.unscript()
    server.requests.clear()
    await write(report)

    assert [request.method for request in server.requests] == ["GET", "PATCH"]
    assert "PartialObjectMetadata;" in server.requests[0].headers["Accept"]
    assert status_of(server)["updateTime"] == "2023-11-14T22:13:20Z"
    server.script(*[fault] * 2)
    assert await fail(report, says) == 0.5


async def test_a_hanging_server_is_given_up_in_time(server, clock, fail, report) -> None:
    """Long before the next report is due; the pause does not grow, the wait was one."""
    begun = clock.monotonic()
    server.script(*[hang] * 3)
    assert [await fail(report, "its arrival") for _ in range(3)] == [0.5] * 3

    assert clock.monotonic() - begun <= 3 * 8.25
    assert len(server.requests) == 3


async def test_a_busy_server_is_left_alone_for_as_long_as_it_asks(server, fail, report) -> None:
    """Nothing is sent again behind the reporter's back."""
    server.script(refuse(429, headers={"Retry-After": "20"}))

    assert await fail(report, "429") == 20
    assert len(server.requests) == 1


async def test_who_may_look_but_not_report_tries_ever_more_rarely(server, fail, report) -> None:
    """A server that has just started refuses all for a moment; RBAC that lacks a rule for good."""
    server.script(*[refuse(403)] * 12, method="PATCH")

    pauses = [await fail(report, "403") for _ in range(12)]
    assert pauses[:4] == [0.5, 4, 8, 16]
    assert pauses[-1] == 600


@pytest.mark.parametrize("code", [400, 413])
async def test_what_would_fare_no_better_is_not_sent_again(server, fail, report, code) -> None:
    """Before the next one is due."""
    server.script(*[refuse(code)] * 9, method="PATCH")

    assert await fail(report, str(code)) == math.inf
    assert len(server.requests) == 1


async def test_a_status_that_breaks_the_schema_is_not_sent_again(server, fail, report) -> None:
    """The error names the field."""
    details = {"causes": [{"field": "status.updateTime"}]}
    server.script(refuse(422, "Invalid", details=details), method="PATCH")

    assert await fail(report, "422") == math.inf
    assert len(server.requests) == 1


async def test_an_object_made_anew_gets_a_report_when_the_watch_has_shown_it(
    server, fail, sink, target, write, report
) -> None:
    """Never by its name alone: whose it is must be known."""
    server.objects.delete(METRICS, "n1")
    server.objects.create(METRICS, {"metadata": {"name": "n1"}, "spec": {}})
    await fail(report, "422")
    assert "status" not in server.objects.get(METRICS, "n1")

    target.now = ReportTarget("uid-2")
    await write(report)

    assert status_of(server)["updateTime"] == "2023-11-14T22:13:20Z"


async def test_an_object_made_anew_meanwhile_gets_one_at_once(server, fail, target, report) -> None:
    """The watch was faster than the response."""

    async def anew(_: web.Request) -> web.StreamResponse:
        target.now = ReportTarget("uid-2")
        return status(404, "NotFound")

    server.script(anew, method="PATCH")

    assert await fail(report, "404") == 0


async def test_an_object_that_is_gone_gets_none(server, sink, fail, target, report) -> None:
    """The cluster does not ask any more; that is no failure."""
    server.objects.delete(METRICS, "n1")
    await fail(report, "404")
    target.now = None

    with pytest.raises(ReportNotRequested, match="koord-manager makes one"):
        sink.check()


async def test_an_object_that_is_not_found_is_only_asked_for(
    server, clock, sink, fail, write, target, report
) -> None:
    """Its CRD was removed and the watch has not shown it: a small request every few seconds."""
    server.script(*[refuse(404)] * 99)
    while (pause := await fail(report, "404")) < 10:
        await clock.advance(pause)
    asked = len(server.requests)
    for _ in range(5):
        await clock.advance(9)
        with pytest.raises(ReportNotRequested, match="does not know it any more; install its CRD"):
            sink.check()
        await clock.advance(1)
        sink.check()
        assert await fail(report, "404") == 10
    assert [request.method for request in server.requests[asked:]] == ["GET"] * 5

    server.unscript()
    await clock.advance(10)
    sink.check()
    await write(report)
    assert status_of(server)["updateTime"] == "2023-11-14T22:13:20Z"


async def test_an_object_without_status_is_tried_ever_more_rarely(
    server, clock, fail, report
) -> None:
    """A CRD that lacks the subresource: the object is found, what is reported is not taken."""
    server.script(*[refuse(404)] * 99, method="PATCH")
    pauses = []
    for _ in range(20):
        pauses.append(await fail(report, "404"))
        await clock.advance(pauses[-1])

    assert pauses[-1] >= 500


async def test_several_places(server, sink, report, tmp_path) -> None:
    """One that fails does not keep a report from the others."""
    path = tmp_path / "nodemetric.json"
    server.script(refuse(403), method="PATCH")
    with pytest.raises(Forbidden):
        await AllSinks(sink, FileSink(partial(write_atomic, path))).write(report)

    assert path.read_bytes() == report.body


class TestPace:
    """When reports of a fleet are due."""

    def pace(self, clock, node: str, reported_at: float | None) -> FleetPace:
        return FleetPace(node, lambda: ReportTarget("u", reported_at), clock)

    def test_a_new_node_reports_at_once(self, clock) -> None:
        """Nothing is known of it."""
        assert self.pace(clock, "n1", None).first(60.0) == 0

    @pytest.mark.parametrize(
        ("age", "least_spread", "longest"), [(20, 55, 60), (-3600, 27, 30), (1800, 27, 30)]
    )
    def test_agents_that_start_together_report_apart(
        self, clock, age, least_spread, longest
    ) -> None:
        """Over a whole interval while what the cluster knows is fresh, else over half of one."""
        waits = [self.pace(clock, f"n{i}", START - age).first(60.0) for i in range(1000)]

        assert max(waits) - min(waits) >= least_spread
        assert min(waits) >= 0
        assert max(waits) <= longest
        per_second = [sum(1 for wait in waits if int(wait) == second) for second in range(longest)]
        assert max(per_second) <= 3 * 1000 / longest

    async def test_each_node_keeps_its_place(self, clock) -> None:
        """Whatever a round takes; a report in between only counts when it is just before."""
        pace = self.pace(clock, "n1", None)
        await clock.advance(pace.next(0.0, 60.0) - clock.monotonic())
        at = clock.wall()
        assert at % 60 == pytest.approx(node_phase("n1") * 60)
        assert pace.next(0.0, 60.0) - clock.monotonic() == pytest.approx(60)
        await clock.advance(54)
        assert pace.next(0.0, 60.0) - clock.monotonic() == pytest.approx(66)

    @pytest.mark.parametrize("off", range(0, 60, 4))
    async def test_from_any_time_it_comes_back_to_its_place(self, clock, off) -> None:
        """Within four reports, one of which comes an interval to a quarter more after another."""
        pace = self.pace(clock, "n1", None)
        place = node_phase("n1") * 60
        await clock.advance((place + off - clock.wall()) % 60)
        waits = []
        for _ in range(5):
            waits.append(pace.next(0.0, 60.0) - clock.monotonic())
            await clock.advance(waits[-1])

        assert all(58 <= wait <= 75.001 for wait in waits)
        assert waits[-1] == pytest.approx(60)
        assert (clock.wall() - place) % 60 == pytest.approx(0, abs=0.001) or (
            (clock.wall() - place) % 60 == pytest.approx(60, abs=0.001)
        )

    @pytest.mark.parametrize("step", [3617, -3617])
    async def test_a_clock_that_is_set_by_an_hour_costs_no_report(self, clock, step) -> None:
        """The next one comes within an interval and a quarter, the others in turn."""
        pace = self.pace(clock, "n1", None)
        waits = []
        for _ in range(6):
            waits.append(pace.next(0.0, 60.0) - clock.monotonic())
            await clock.advance(waits[-1])
            clock.step_wall(step)
            step = 0

        assert all(58 <= wait <= 75.001 for wait in waits[1:])
        assert waits[-1] == pytest.approx(60)


async def test_another_agent_s_object_is_left_alone(client, clock, target, report, server) -> None:
    """As soon as that is known, which is waited for; a file gets the report all the same."""
    known: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def judged() -> str:
        return await known

    sink = ClusterSink(client, "n1", target, clock, observe_only=judged)
    writing = asyncio.ensure_future(sink.write(report))
    await clock.settle()
    assert not writing.done()
    known.set_result("Koordinator's koordlet runs here")

    with pytest.raises(ObserveOnly, match="Koordinator's koordlet runs here"):
        await writing
    assert server.requests == []


async def test_an_error_counts_for_more_than_a_report_left_to_others(report, tmp_path) -> None:
    """Whoever has asked for a file wants to know that it cannot be written."""

    class Leaving(FileSink):
        async def write(self, _: Report) -> None:
            raise ObserveOnly("another agent")

    sinks = AllSinks(
        Leaving(tmp_path / "a"), FileSink(partial(write_atomic, tmp_path / "none" / "b"))
    )

    with pytest.raises(FileWriteError):
        await sinks.write(report)


class Loop:
    """A reporter in a cluster, second by second."""

    def __init__(self, server, client, target, cache, clock, *, interval=None, draw=0.0) -> None:
        self.server, self.target, self.cache, self.clock = server, target, cache, clock
        self.states = StatesInformer(clock)
        self.states.set_node(Node("n1", capacity={"cpu": "10", "memory": "16Gi"}))
        self.states.set_pods((make_pod(),))
        self.cores, self.memory = 3.0, 3 * GIB
        self.reporter = NodeMetricReporter(
            ReportOptions(node="n1", sharp=0.15, interval=interval),
            cache=cache,
            states=self.states,
            sink=ClusterSink(client, "n1", target, clock, observe_only=nobody, draw=lambda: draw),
            pace=FleetPace("n1", target, clock),
            clock=clock,
            registry=CollectorRegistry(),
        )
        self.stop = Stop(clock)
        self.written: list[float] = []  # seconds since the start
        self._begun = clock.monotonic()

    async def seconds(self, count: int) -> None:
        for _ in range(count):
            self.cache.append(
                stamp(self.clock),
                [Sample(NODE_CPU_USAGE, self.cores), Sample(NODE_MEMORY_USAGE, self.memory)],
            )
            before = len(self.server.requests)
            await self.clock.advance(1)
            for _ in range(3):  # HTTP takes no simulated time
                await network_is_quiet()
                await self.clock.settle()
            if len(self.server.requests) > before:
                self.written.append(round(self.clock.monotonic() - self._begun))


@pytest.fixture
async def start(server, client, target, cache, clock) -> AsyncIterator[Callable[..., Loop]]:
    asyncio.get_running_loop().set_default_executor(InlineExecutor())
    async with AsyncExitStack() as stack:

        def start(**options) -> Loop:
            loop = Loop(server, client, target, cache, clock, **options)
            tasks = [
                asyncio.create_task(part.run(loop.stop)) for part in (loop.reporter, loop.states)
            ]

            async def end() -> None:
                loop.stop.set()
                await asyncio.wait_for(asyncio.gather(*tasks), 60)

            stack.push_async_callback(end)
            return loop

        yield start


@pytest.fixture
async def loop(start) -> Loop:
    return start()


FAULTS = {
    "connections are cut": drop,
    "requests hang": hang,
    "answers hang": begin(b'{"kind": "NodeMe', then_hang=True),
    "401": refuse(401),
    "403": refuse(403),
    "429": refuse(429, headers={"Retry-After": "2"}),
    "500": refuse(500),
    "503": refuse(503),
    "nonsense": answer(b"<html>proxy</html>"),
    "404": refuse(404),
}


@pytest.mark.parametrize("lasts", [7, 47])
@pytest.mark.parametrize("fault", ["away", *FAULTS])
async def test_a_fresh_report_follows_the_end_of_a_fault(
    start, clock, server, fault, lasts
) -> None:
    """Within ten seconds, at an interval of 30, with all jitter against us; of a CRD within 30."""
    loop = start(interval=30.0, draw=1.0)
    await loop.seconds(140)  # until reports come at the node's offset
    if fault == "away":
        await server.stop()
    else:
        server.script(*[FAULTS[fault]] * 1000)
    # So that a report is due while the fault lasts.
    while clock.wall() % 30 < (node_phase("n1") * 30 - 3) % 30:
        await loop.seconds(1)
    await loop.seconds(lasts)
    if fault == "away":
        await server.start()
    server.unscript()
    end = clock.wall()
    took = 0
    while reported_at(server) < end:
        await loop.seconds(1)
        took += 1
        assert took < 60

    assert took <= (30 if fault == "404" else 10)
    await loop.seconds(5)
    assert loop.reporter.health() == OK


def reported_at(server: ApiServer) -> float:
    """Unix seconds of the status that the server has."""
    return datetime.fromisoformat(status_of(server)["updateTime"]).timestamp()


async def test_few_requests_reach_a_server_that_is_in_trouble(start, server) -> None:
    """A whole fleet asks: one small question every few seconds from each."""
    loop = start(interval=60.0)
    await loop.seconds(5)
    server.script(*[refuse(503)] * 1000)
    loop.cores = 9.0  # a sharp change, which is reported early when all is well
    before = len(server.requests)
    await loop.seconds(120)

    during = [request.method for request in server.requests[before:]]
    assert during.count("PATCH") == 1
    assert during.count("GET") <= 120 / 4 + 2


async def test_no_report_before_there_is_an_object(loop, target) -> None:
    """That is no failure of this node, however long it lasts; then the first comes at once."""
    target.now = None
    await loop.seconds(200)
    assert loop.server.requests == []
    health = loop.reporter.health()
    assert health.status is HealthStatus.DEGRADED
    assert "wanted a NodeMetric object named n1" in health.reason

    target.now = ReportTarget("uid-1")
    await loop.seconds(3)
    assert 200 < loop.written[0] <= 202
    assert loop.reporter.health() == OK


@pytest.mark.parametrize("after", [0, 13, 29, 44, 55])
async def test_at_most_one_patch_a_minute(start, server, clock, after) -> None:
    """From the first one on, whenever the agent starts and whatever notifies of the same spec."""
    await clock.advance(after)
    loop = start()
    for _ in range(400):
        loop.states.send_callback(StateType.NODE_METRIC_SPEC)
        await loop.seconds(1)

    assert {request.method for request in server.requests} == {"PATCH"}
    assert loop.written[0] <= 2
    gaps = [b - a for a, b in pairwise(loop.written)]
    assert len(gaps) >= 5
    assert all(58 <= gap <= 76 for gap in gaps)
    assert set(gaps[4:]) == {60}


async def test_a_sharp_change_is_reported_early(loop) -> None:
    """2 of 10 cores more, seen for ten seconds, but no sooner than ten seconds after a report."""
    await loop.seconds(100)
    routine = len(loop.written)
    loop.cores = 3.9  # 9 %
    await loop.seconds(15)
    assert len(loop.written) == routine

    loop.cores = 9.0
    await loop.seconds(30)
    early = loop.written[routine:]
    assert early
    assert 116 <= early[0] <= 120
    assert all(b - a >= 10 for a, b in zip(loop.written, loop.written[1:], strict=False))
    assert len(early) <= 3


async def test_memory_counts_as_well(loop) -> None:
    """4 of 16 GiB more."""
    await loop.seconds(70)
    before = len(loop.written)
    loop.memory += 4 * GIB
    await loop.seconds(12)

    assert len(loop.written) == before + 1


async def test_stop_does_not_wait_for_a_server_that_is_away(loop, clock) -> None:
    """The report is lost; the next agent makes another."""
    loop.server.script(*[hang] * 3)
    await loop.seconds(3)
    assert loop.server.requests
    loop.stop.set()
    await clock.settle()

    assert loop.reporter.latest()
