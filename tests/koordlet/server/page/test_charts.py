"""Series of the metric cache as charts of the status page."""

from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util.clock import Stamp, stamp
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import (
    DEFAULT_INTERVALS,
    NODE_BE,
    NODE_CPU_USAGE,
    NODE_NETWORK_RECEIVE,
    NODE_NETWORK_TRANSMIT,
    NODE_PSI,
    QOS_CPU_USAGE,
    RetentionClass,
    Sample,
)
from koordlet.plugin.testing.scripted import SimulatedClock
from koordlet.server.page import NODE_CHARTS, ChartReader

CHARTS = {chart.name: chart for chart in NODE_CHARTS}
RETENTIONS = {RetentionClass.NODE: 1800.0, RetentionClass.POD: 300.0}


def open_cache(clock):
    return closing(
        MetricCache(None, "boot", clock, intervals=DEFAULT_INTERVALS, retentions=RETENTIONS)
    )


@pytest.fixture
def clock():
    return SimulatedClock()


@pytest.fixture
def cache(clock):
    with open_cache(clock) as cache:
        yield cache


@pytest.fixture
def reader(cache, clock):
    return ChartReader(cache, clock.wall() - clock.boottime())


def test_lines_share_one_time_line_and_what_was_not_measured_is_none(cache, clock, reader):
    """The limit of best-effort pods is there only while there is one, in cores."""
    start = clock.wall()
    for limit in (None, 1500.0, None):
        clock.tick(1)
        samples = [Sample(NODE_CPU_USAGE, 2.0, ()), Sample(QOS_CPU_USAGE, 0.25, ("besteffort",))]
        if limit is not None:
            samples.append(Sample(NODE_BE, limit, ("cpu", "real-limit")))
        cache.append(stamp(clock), samples)
    points, newest = reader.read(CHARTS["cpu"], 1800.0, clock.boottime())
    assert newest == clock.boottime()
    assert points["t"] == [start + 1, start + 2, start + 3]
    assert points["series"]["node"] == [2.0, 2.0, 2.0]
    assert points["series"]["besteffort"] == [0.25, 0.25, 0.25]
    assert points["series"]["besteffort_limit"] == [None, 1.5, None]
    assert points["series"]["guaranteed"] == [None, None, None]


def test_a_hole_breaks_every_line(cache, clock, reader):
    """Seconds without a sample are never bridged; a tick that is late by one is none."""
    start = clock.wall()
    for pause in (1, 2, 60):
        clock.tick(pause)
        cache.append(stamp(clock), [Sample(NODE_CPU_USAGE, 1.0, ())])
    points, _ = reader.read(CHARTS["cpu"], 1800.0, clock.boottime())
    assert [t - start for t in points["t"]] == [1, 3, 4, 63]
    assert points["series"]["node"] == [1.0, 1.0, None, 1.0]


def test_a_chart_of_slower_samples_has_longer_intervals(cache, clock, reader):
    for _ in range(3):
        clock.tick(10)
        cache.append(stamp(clock), [Sample(NODE_PSI, 5.0, ("mem", "10", "some"))])
    points, _ = reader.read(CHARTS["pressure"], 1800.0, clock.boottime())
    assert points["series"]["memory"] == [5.0, 5.0, 5.0]


def test_traffic_is_that_of_interfaces_that_no_other_one_carries(cache, clock, reader):
    clock.tick(5)
    cache.append(
        stamp(clock),
        [
            *(Sample(NODE_NETWORK_RECEIVE, 100.0, (name,)) for name in ("eth0", "eth1", "lo")),
            Sample(NODE_NETWORK_TRANSMIT, 7.0, ("eth0",)),
            Sample(NODE_NETWORK_TRANSMIT, 7.0, ("flannel.1",)),
        ],
    )
    points, _ = reader.read(CHARTS["network"], 1800.0, clock.boottime())
    assert points["series"] == {"receive": [200.0], "transmit": [7.0]}


@pytest.mark.parametrize("chart", CHARTS)
def test_history_of_the_node_is_30_minutes(cache, clock, reader, chart):
    """All that the charts of the node show is kept that long."""
    lines = CHARTS[chart].lines
    every = cache.interval(lines[0].kind)
    for _ in range(int(1900 / every)):
        clock.tick(every)
        samples = [
            Sample(line.kind, 1.0, ("eth0",) if line.key is None else line.key) for line in lines
        ]
        cache.append(stamp(clock), samples)
    points, _ = reader.read(CHARTS[chart], 1800.0, clock.boottime())
    assert points["t"][-1] - points["t"][0] == 1800
    for line, values in points["series"].items():
        assert None not in values, line


@given(st.lists(st.tuples(st.floats(0.5, 9.0), st.integers(1, 4)), max_size=30), st.data())
def test_points_in_pieces_are_the_points_at_once(ticks, data):
    """However often a page asks, it gets each point once, and each hole."""
    clock = SimulatedClock()
    wall_at_boot = clock.wall() - clock.boottime()
    with open_cache(clock) as cache:
        reader, chart = ChartReader(cache, wall_at_boot), CHARTS["cpu"]
        pieces, newest = [], None
        for pause, value in ticks:
            clock.tick(pause)
            cache.append(
                Stamp(clock.wall(), clock.boottime()), [Sample(NODE_CPU_USAGE, float(value), ())]
            )
            if data.draw(st.booleans()):
                end = clock.boottime()
                if newest is None:
                    points, newest = reader.read(chart, 1800.0, end)
                else:
                    points, newest = reader.read_after(chart, newest, end)
                pieces.append(points)
        end = clock.boottime()
        whole, _ = reader.read(chart, 1800.0, end)
        if newest is None:
            pieces.append(whole)
        else:
            pieces.append(reader.read_after(chart, newest, end)[0])
        assert [t for piece in pieces for t in piece["t"]] == whole["t"]
        for line, values in whole["series"].items():
            assert [v for piece in pieces for v in piece["series"][line]] == values
