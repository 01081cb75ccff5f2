"""Reports are made, withheld and retried, and health and metrics show it."""

import asyncio
import json
import math
from dataclasses import replace
from functools import partial

import pytest
from prometheus_client import CollectorRegistry

from koord.api.node import Node
from koord.api.nodemetric import NodeMetricSpec
from koord.util.errors import KoordError, Unavailable
from koord.util.health import HealthStatus
from koord.util.ownedfiles import write_atomic
from koord.util.stop import Stop
from koordlet.metriccache.kinds import POD_CPU_USAGE, POD_MEMORY_USAGE, Sample
from koordlet.reporter.loop import NodeMetricReporter, ReportOptions, standalone_interval
from koordlet.reporter.status import FileSink, ObserveOnly, ReportNotRequested
from koordlet.statesinformer.informer import StatesInformer, StateType
from koordlet.statesinformer.podmeta import ContainerMeta

from .conftest import NODE, make_pod


class ListSink:
    """Keeps the reports, or refuses them."""

    def __init__(self):
        self.reports = []
        self.full = False
        self.retry = math.inf
        self.unasked = False
        self.left = False
        self.reported = True

    def has_reported(self):
        return self.reported

    def check(self):
        if self.unasked:
            raise ReportNotRequested("no NodeMetric object")

    def retry_in(self):
        return self.retry

    async def write(self, report):
        if self.full:
            raise KoordError("disk full; free some space")
        self.reports.append(report)
        if self.left:
            raise ObserveOnly("another agent reports")


@pytest.fixture
def sink():
    return ListSink()


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def states(clock):
    states = StatesInformer(clock)
    states.set_node(Node("worker"))
    states.set_pods((make_pod(),))
    return states


@pytest.fixture
def reporter(cache, states, sink, clock, registry):
    return make_reporter(cache, states, sink, clock, registry, interval=60.0)


def make_reporter(cache, states, sink, clock, registry, *, interval=None, expose=False):
    return NodeMetricReporter(
        ReportOptions(node="worker", interval=interval),
        cache=cache,
        states=states,
        sink=sink,
        clock=clock,
        registry=registry,
        expose=lambda: expose,
    )


@pytest.fixture
async def running(reporter, states, clock, registry):
    """Runs reporter and states; advance(seconds) lets time pass and finished rounds settle."""
    async with Running(reporter, states, clock, registry) as running:
        yield running


class Running:
    def __init__(self, reporter, states, clock, registry):
        self._parts = reporter, states
        self._clock = clock
        self._registry = registry
        self._stop = Stop(clock)

    async def __aenter__(self):
        self._tasks = [asyncio.create_task(part.run(self._stop)) for part in self._parts]
        await self.rounds(1)
        return self

    async def __aexit__(self, *_):
        self._stop.set()
        await asyncio.gather(*self._tasks)

    def count(self, outcome=None):
        outcomes = ("ok", "left", "withheld", "failed") if outcome is None else (outcome,)
        name = "koordlet_report_rounds_total"
        values = [self._registry.get_sample_value(name, {"outcome": o}) for o in outcomes]
        return sum(value or 0 for value in values)

    async def rounds(self, number):
        """Wait until so many rounds are finished; a round ends in a thread."""
        await self._clock.until(lambda: self.count() >= number)
        await self._clock.settle()

    async def advance(self, seconds):
        """One round must come of it."""
        before = self.count()
        await self._clock.advance(seconds)
        await self.rounds(before + 1)


async def test_the_first_report_comes_as_soon_as_the_data_allow(running, measure, sink):
    """Not a whole interval after the start, as upstream's."""
    assert sink.reports == []
    measure(*NODE)

    await running.advance(1)

    assert len(sink.reports) == 1
    assert sink.reports[0].spec.report_interval == 60.0


async def test_the_first_report_waits_for_pods_but_not_for_long(
    running, measure, sink, states, reporter
):
    """A pod that runs has a sample a second or two later; one that never has must not matter."""
    running_pod = replace(make_pod(), containers=(ContainerMeta("c1", "c1", "kubepods/web-0/c1"),))
    states.set_pods((running_pod,))
    measure(*NODE)
    await running.advance(1)
    assert "wanted samples of 1 pods, found 0" in reporter.health().reason
    assert sink.reports == []

    measure(
        *NODE,
        Sample(POD_CPU_USAGE, 0.5, ("uid-web-0",)),
        Sample(POD_MEMORY_USAGE, 1, ("uid-web-0",)),
    )
    await running.advance(1)
    assert [pod.name for pod in sink.reports[0].status.pods] == ["web-0"]


async def test_then_one_in_every_interval(running, measure, sink, clock):
    """At a fixed pace, whatever a round takes."""
    measure(*NODE)
    await running.advance(1)
    await clock.advance(59)
    assert len(sink.reports) == 1
    measure(*NODE)

    await running.advance(1)

    assert len(sink.reports) == 2


async def test_a_report_left_to_another_agent_is_shown_all_the_same(
    running, measure, sink, clock, reporter
):
    """At the usual pace and without complaint, so that both can be compared."""
    sink.left = True
    measure(*NODE)
    await running.advance(1)
    await clock.advance(59)
    measure(*NODE)
    await running.advance(1)

    assert (running.count("left"), running.count("ok")) == (2, 0)
    assert reporter.latest() == sink.reports[-1].body
    assert reporter.health().status is HealthStatus.OK


async def test_a_withheld_report_leaves_the_old_one(running, measure, sink, clock, reporter):
    """And is tried again with each new sample, not an interval later."""
    measure(*NODE)
    await running.advance(1)
    latest = reporter.latest()
    await running.advance(60)
    await running.advance(1)
    assert (len(sink.reports), reporter.latest()) == (1, latest)
    assert running.count("withheld") == 3
    measure(*NODE)

    await running.advance(1)

    assert len(sink.reports) == 2


async def test_a_new_spec_is_reported_at_once(running, measure, sink, states):
    """A consumer that asks for other windows need not wait for them."""
    measure(*NODE)
    await running.advance(1)

    states.set_node_metric_spec(NodeMetricSpec(durations=(120.0,)))
    await running.rounds(running.count() + 1)

    assert [report.spec.durations for report in sink.reports] == [
        (300.0, 600.0, 1800.0),
        (120.0,),
    ]


async def test_the_spec_that_was_reported_by_is_no_new_one(running, measure, sink, states, clock):
    """The notification that comes after the first report is about what it was made by."""
    measure(*NODE)
    await running.advance(1)

    for _ in range(20):
        states.send_callback(StateType.NODE_METRIC_SPEC)
        measure(*NODE)
        await clock.advance(1)

    assert len(sink.reports) == 1


async def test_a_new_object_is_reported_to_at_once(running, measure, sink, states):
    """Its spec may be that of the one before."""
    measure(*NODE)
    await running.advance(1)

    sink.reported = False
    states.send_callback(StateType.NODE_METRIC_SPEC)
    await running.rounds(running.count() + 1)

    assert len(sink.reports) == 2


async def test_in_a_cluster_the_spec_decides_about_the_interval(
    cache, states, sink, clock, registry, measure
):
    """Also when it changes on the way."""
    reporter = make_reporter(cache, states, sink, clock, registry)
    assert reporter.interval == 60.0

    states.set_node_metric_spec(NodeMetricSpec(report_interval=180.0))

    assert reporter.interval == 180.0


@pytest.mark.parametrize(("flag", "seconds"), [(0, 60), (1, 1), (0.2, 1), (300, 300)])
def test_standalone_the_flag_decides(flag, seconds):
    """0 is upstream's default and means a minute; more often than once a second is too often."""
    assert standalone_interval(flag) == seconds


async def test_nothing_is_reported_before_the_pods_are_known(cache, sink, clock, registry, measure):
    """A report without pods would say that there are none."""
    states = StatesInformer(clock)
    states.set_node(Node("worker"))
    reporter = make_reporter(cache, states, sink, clock, registry, interval=60.0)
    measure(*NODE)
    async with Running(reporter, states, clock, registry) as running:
        assert running.count("withheld") == 1
        states.set_pods(())
        await running.advance(1)

    assert len(sink.reports) == 1


async def test_before_the_first_there_is_nothing_to_show(reporter, running):
    """And the reason is reported."""
    with pytest.raises(Unavailable, match=r"no NodeMetric yet: .*node_cpu_usage"):
        reporter.latest()


async def test_health_while_reports_are_withheld(reporter, running, measure, clock):
    """It says why at once, and is unhealthy after three intervals."""
    measure(*NODE)
    await running.advance(1)
    assert reporter.health().status is HealthStatus.OK

    await running.advance(60)
    assert reporter.health().status is HealthStatus.DEGRADED
    assert "old; see which collector fails" in reporter.health().reason

    await running.advance(121)
    assert reporter.health().status is HealthStatus.UNHEALTHY
    assert "no NodeMetric for 181 s: wanted node CPU" in reporter.health().reason


async def test_a_report_that_does_not_arrive_is_counted_and_shown(
    reporter, running, measure, sink, clock
):
    """GET /nodemetric shows it all the same; the next interval makes a new one."""
    measure(*NODE)
    sink.full = True
    await running.advance(1)
    assert running.count("failed") == 1
    assert reporter.health().reason == "disk full; free some space"
    assert json.loads(reporter.latest())["kind"] == "NodeMetric"
    sink.full = False
    await clock.advance(59)
    measure(*NODE)
    await running.advance(1)

    assert len(sink.reports) == 1
    assert reporter.health().status is HealthStatus.OK


async def test_a_new_report_follows_as_soon_as_the_sink_wants_it(
    running, measure, sink, clock, capsys
):
    """With the samples of then; a failure of a moment is no log line, one that lasts is one."""
    measure(*NODE)
    sink.full, sink.retry = True, 2.0
    await running.advance(1)
    measure(*NODE)
    await running.advance(2)
    assert running.count("failed") == 2
    assert "report.failed" not in capsys.readouterr().err
    for _ in range(4):
        measure(*NODE)
        await running.advance(2)
    assert capsys.readouterr().err.count("report.failed") == 1
    sink.full = False
    measure(*NODE)
    newest = clock.wall()
    await running.advance(2)

    assert len(sink.reports) == 1
    assert sink.reports[0].status.update_time >= newest - 2
    assert running.count("ok") == 1


async def test_the_start_is_quiet_a_lasting_failure_is_logged_once(running, measure, clock, capsys):
    """Nobody wants a warning at each start because there is no sample in the first second."""
    await running.advance(1)
    assert "report." not in capsys.readouterr().err
    measure(*NODE)
    await running.advance(1)
    await running.advance(60)
    await running.advance(1)
    measure(*NODE)
    await running.advance(1)

    log = capsys.readouterr().err
    assert (log.count("report.withheld"), log.count("report.resumed")) == (1, 1)


@pytest.mark.parametrize("expose", [True, False])
async def test_gauges_only_if_they_are_wanted(
    cache, states, sink, clock, registry, measure, expose
):
    """The gate NodeMetricPromMetrics is asked at each scrape."""
    reporter = make_reporter(cache, states, sink, clock, registry, interval=60.0, expose=expose)
    assert list(reporter.families()) == []
    measure(*NODE)
    async with Running(reporter, states, clock, registry):
        assert bool(list(reporter.families())) is expose


async def test_the_file_holds_the_latest_object(tmp_path, cache, states, clock, registry, measure):
    """Whole, and the same as GET /nodemetric shows."""
    path = tmp_path / "nodemetric.json"
    reporter = make_reporter(
        cache, states, FileSink(partial(write_atomic, path)), clock, registry, interval=60.0
    )
    measure(*NODE)
    async with Running(reporter, states, clock, registry):
        pass

    assert path.read_bytes() == reporter.latest()
    assert path.stat().st_mode & 0o777 == 0o640


async def test_a_file_that_cannot_be_written_fails_the_report(
    tmp_path, cache, states, clock, registry, measure
):
    """With the path in the reason."""
    sink = FileSink(partial(write_atomic, tmp_path / "no-dir" / "nodemetric.json"))
    reporter = make_reporter(cache, states, sink, clock, registry, interval=60.0)
    measure(*NODE)
    async with Running(reporter, states, clock, registry) as running:
        assert running.count("failed") == 1

    assert "no-dir/nodemetric.json: cannot be written" in reporter.health().reason
