"""Reports to the cluster: over real HTTP to a scripted server, on simulated time."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest
from apiserver import ApiServer
from faults import drop, hang, refuse
from inline import InlineExecutor
from prometheus_client import CollectorRegistry

from koordlet.api.node import Node
from koordlet.api.nodemetric import NodeMetricSpec
from koordlet.kube.client import ApiClient
from koordlet.kube.config import ApiConfig
from koordlet.kube.errors import ApiError, Forbidden, KubeError
from koordlet.kube.resource import NODE_METRICS
from koordlet.kube.transport import Limits, Transport
from koordlet.metriccache.kinds import NODE_CPU_USAGE, NODE_MEMORY_USAGE
from koordlet.metriccache.sample import Sample
from koordlet.reporter.cluster import ClusterSink
from koordlet.reporter.loop import NodeMetricReporter, ReportOptions
from koordlet.reporter.pace import FleetPace, place
from koordlet.reporter.report import AllSinks, FileSink, LeftToAnother, Report, make_report
from koordlet.reporter.status import NotAsked, Snapshot, build_status
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.model import ReportTarget
from koordlet.util.atomicfile import FileWriteError, write_atomic
from koordlet.util.clock import stamp
from koordlet.util.health import OK, Status
from koordlet.util.stop import Stop

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
    """What the watch has told of the object."""

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
    snapshot = Snapshot(spec=spec, pods=(), host_applications=(), now=clock.boottime(), oldest=2.0)
    return make_report("n1", spec, build_status(cache, snapshot))


@pytest.fixture
def write(sink, clock) -> Callable[[Report], Awaitable[float]]:
    """Write a report; return how many simulated seconds that took."""

    async def write(report: Report) -> float:
        begun = clock.monotonic()
        writing = asyncio.ensure_future(sink.write(report))
        while not writing.done():
            await asyncio.sleep(0.002)
            await clock.advance(0.25)
        await writing
        return clock.monotonic() - begun

    return write


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
    "fault",
    [
        refuse(404),
        refuse(409, "Conflict"),
        refuse(422, "Invalid"),
        refuse(429, headers={"Retry-After": "1"}),
        refuse(500),
        refuse(503),
        drop,
    ],
)  # fmt: skip
async def test_a_lost_report_is_sent_again_as_it_was(server, clock, write, report, fault) -> None:
    """Within the round, with the time at which its data were measured."""
    server.script(fault, fault, method="PATCH")
    took = await write(report)

    assert 1 <= took <= 10
    assert len({request.body for request in server.requests}) == 1
    assert status_of(server)["updateTime"] == "2023-11-14T22:13:20Z"


async def test_a_hanging_server_is_given_up(server, write, report) -> None:
    """After the transport's patience no time is left for another attempt."""
    server.script(hang, method="PATCH")

    with pytest.raises(KubeError, match="found silence"):
        await write(report)
    assert len(server.requests) == 1


async def test_attempts_end_after_half_an_interval(server, clock, write, report) -> None:
    """The next round has newer data."""
    begun = clock.monotonic()
    server.script(*[refuse(503)] * 100, method="PATCH")

    with pytest.raises(ApiError, match="503"):
        await write(report)
    assert clock.monotonic() - begun <= 30
    assert 5 <= len(server.requests) <= 8


@pytest.mark.parametrize("code", [400, 401, 403, 413])
async def test_what_would_fare_no_better_is_not_sent_again(server, write, report, code) -> None:
    """401 only once, by the transport, with credentials read anew."""
    server.script(*[refuse(code)] * 9, method="PATCH")

    with pytest.raises(ApiError, match=str(code)):
        await write(report)
    assert len(server.requests) == (2 if code == 401 else 1)


async def test_a_status_that_breaks_the_schema_is_not_sent_again(server, write, report) -> None:
    """The error names the field."""
    details = {"causes": [{"field": "status.updateTime"}]}
    server.script(refuse(422, "Invalid", details=details), method="PATCH")

    with pytest.raises(ApiError, match="422"):
        await write(report)
    assert len(server.requests) == 1


async def test_an_object_made_anew_gets_the_report_when_the_watch_has_told(
    server, clock, sink, target, report
) -> None:
    """Never by its name alone: whose it is must be known."""
    server.objects.delete(METRICS, "n1")
    server.objects.create(METRICS, {"metadata": {"name": "n1"}, "spec": {}})
    writing = asyncio.ensure_future(sink.write(report))
    await clock.until(lambda: len(server.requests) == 1 and clock.sleepers > 0)
    assert "status" not in server.objects.get(METRICS, "n1")

    target.now = ReportTarget("uid-2")
    await clock.advance(1)
    await asyncio.wait_for(writing, 60)

    assert status_of(server)["updateTime"] == "2023-11-14T22:13:20Z"


async def test_an_object_that_is_gone_gets_none(server, clock, sink, target, report) -> None:
    """The cluster does not ask any more; that is no failure."""
    server.objects.delete(METRICS, "n1")
    writing = asyncio.ensure_future(sink.write(report))
    await clock.until(lambda: len(server.requests) == 1 and clock.sleepers > 0)
    target.now = None
    await clock.advance(1)

    with pytest.raises(NotAsked, match="koord-manager makes one"):
        await writing
    with pytest.raises(NotAsked):
        sink.check()


async def test_an_object_that_is_not_found_is_tried_rarely(
    server, clock, sink, write, target, report
) -> None:
    """Its CRD was removed and the watch has not told: from the second round on one attempt each."""
    server.script(*[refuse(404)] * 99, method="PATCH")
    with pytest.raises(KubeError, match="404"):
        await write(report)
    for rest in (60, 120, 240, 480, 600, 600):
        await clock.advance(rest - 1)
        with pytest.raises(NotAsked, match="does not know it any more; install its CRD"):
            sink.check()
        await clock.advance(1)
        sink.check()
        asked = len(server.requests)
        with pytest.raises(KubeError, match="404"):
            await write(report)
        assert len(server.requests) == asked + 1

    server.unscript()
    server.objects.delete(METRICS, "n1")
    server.objects.create(METRICS, {"metadata": {"name": "n1"}})
    target.now = ReportTarget("uid-2")
    sink.check()
    await write(report)
    assert status_of(server)["updateTime"] == "2023-11-14T22:13:20Z"


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
        assert at % 60 == pytest.approx(place("n1") * 60)
        assert pace.next(0.0, 60.0) - clock.monotonic() == pytest.approx(60)
        await clock.advance(45)
        assert pace.next(0.0, 60.0) - clock.monotonic() == pytest.approx(15)
        await clock.advance(6)
        assert pace.next(0.0, 60.0) - clock.monotonic() == pytest.approx(69)

    @pytest.mark.parametrize("step", [3617, -3617])
    async def test_a_clock_that_is_set_by_an_hour_costs_no_report(self, clock, step) -> None:
        """The next one comes within an interval and what two must be apart, the others in turn."""
        pace = self.pace(clock, "n1", None)
        waits = []
        for _ in range(3):
            waits.append(pace.next(0.0, 60.0) - clock.monotonic())
            await clock.advance(waits[-1])
            clock.step_wall(step)
            step = 0

        assert 10 <= waits[1] <= 70
        assert waits[2] == pytest.approx(60)


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

    with pytest.raises(LeftToAnother, match="Koordinator's koordlet runs here"):
        await writing
    assert server.requests == []


async def test_an_error_counts_for_more_than_a_report_left_to_others(report, tmp_path) -> None:
    """Whoever has asked for a file wants to know that it cannot be written."""

    class Leaving(FileSink):
        async def write(self, _: Report) -> None:
            raise LeftToAnother("another agent")

    sinks = AllSinks(
        Leaving(tmp_path / "a"), FileSink(partial(write_atomic, tmp_path / "none" / "b"))
    )

    with pytest.raises(FileWriteError):
        await sinks.write(report)


class Loop:
    """A reporter in a cluster, second by second."""

    def __init__(self, server, client, target, cache, clock, sharp) -> None:
        self.server, self.target, self.cache, self.clock = server, target, cache, clock
        self.states = StatesInformer(clock)
        self.states.set_node(Node("n1", capacity={"cpu": "10", "memory": "16Gi"}))
        self.states.set_pods((make_pod(),))
        self.cores, self.memory = 3.0, 3 * GIB
        self.reporter = NodeMetricReporter(
            ReportOptions(node="n1", sharp=sharp),
            cache=cache,
            states=self.states,
            sink=ClusterSink(client, "n1", target, clock, observe_only=nobody, draw=lambda: 0.0),
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
                await asyncio.sleep(0.004)
                await self.clock.settle()
            if len(self.server.requests) > before:
                self.written.append(round(self.clock.monotonic() - self._begun))


@pytest.fixture
async def loop(server, client, target, cache, clock) -> AsyncIterator[Loop]:
    asyncio.get_running_loop().set_default_executor(InlineExecutor())
    loop = Loop(server, client, target, cache, clock, 0.15)
    tasks = [asyncio.create_task(part.run(loop.stop)) for part in (loop.reporter, loop.states)]
    yield loop
    loop.stop.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 60)


async def test_no_report_before_there_is_an_object(loop, target) -> None:
    """That is no failure of this node, however long it lasts; then the first comes at once."""
    target.now = None
    await loop.seconds(200)
    assert loop.server.requests == []
    health = loop.reporter.health()
    assert health.status is Status.DEGRADED
    assert "wanted a NodeMetric object named n1" in health.reason

    target.now = ReportTarget("uid-1")
    await loop.seconds(3)
    assert 200 < loop.written[0] <= 202
    assert loop.reporter.health() == OK


async def test_reports_come_once_an_interval(loop) -> None:
    """One write each, after the first no more than one a minute."""
    await loop.seconds(240)

    assert loop.written[0] <= 2
    gaps = [b - a for a, b in zip(loop.written[1:], loop.written[2:], strict=False)]
    assert gaps
    assert set(gaps) == {60}


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
