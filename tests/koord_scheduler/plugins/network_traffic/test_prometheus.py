"""Traffic from Prometheus: queries, and answers of every kind."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.plugin import KoordError
from koord.plugin.kube import ApiConfig, RequestLimits, Transport
from koord.util.clock import SystemClock
from koord_scheduler_plugins.network_traffic.readings import (
    MeasureError,
    NetworkTrafficArgs,
    Query,
    Traffic,
)
from koord_scheduler_plugins.network_traffic.sources import (
    PrometheusHandle,
    PrometheusSource,
    QueryFailed,
    rate_query,
    read_vector,
    sum_query,
    traffic_of,
)
from tests.support.http_site import ScriptedSite
from tests.support.scheduler.prometheus import queries, vector

INVALID = "[NetworkTraffic] Invalid response"
NODES = {"n1": "", "n2": "", "n3": ""}


def arguments(**given: Any) -> NetworkTrafficArgs:
    return NetworkTrafficArgs(prometheus_address="http://prometheus", **given).complete()


@pytest.fixture
async def connect(site: ScriptedSite) -> AsyncIterator[Callable[[], Transport]]:
    made: list[Transport] = []

    def connect() -> Transport:
        limits = RequestLimits(headers=0.5, body=0.5, qps=0, response_bytes=100_000)
        made.append(
            Transport(ApiConfig(server=site.url, source="test"), SystemClock(), limits=limits)
        )
        return made[-1]

    yield connect
    for one in made:
        await one.close()


def test_the_tutorials_query_is_its_own() -> None:
    """Letter by letter; a range of minutes as Go prints it."""
    args = arguments(query=Query.SUM_OVER_TIME, time_range_in_minutes=3)
    wanted = (
        "sum_over_time(node_network_receive_bytes_total"
        '{kubernetes_node="cn-1",device="ens192"}[3m0s])'
    )
    assert sum_query(args, "cn-1") == wanted
    hostile = sum_query(arguments(time_range_in_minutes=90), 'a"} or up{x="\\')
    assert r'{kubernetes_node="a\"} or up{x=\"\\",device=' in hostile
    assert hostile.endswith("[1h30m0s])")


def test_one_query_asks_for_all_nodes() -> None:
    """Rates of both directions and the speed of the links."""
    args = arguments(network_interface="eth0", metric_prefix="koordlet_node_network",
                     node_label="node")  # fmt: skip
    where = '{device="eth0",node!=""}'
    assert rate_query(args) == (
        f"sum by (node) (rate(koordlet_node_network_receive_bytes_total{where}[5m0s])) or "
        f"label_replace(sum by (node) (rate(koordlet_node_network_transmit_bytes_total{where}"
        '[5m0s])), "traffic", "transmit", "", "") or label_replace(sum by (node) '
        f'(koordlet_node_network_speed_bytes{where} > 0), "traffic", "speed", "", "")'
    )
    assert 'device!~"lo|veth' in rate_query(arguments(network_interface="*"))


async def test_the_measure_of_a_node_is_one_sample(
    site: ScriptedSite, connect: Callable[[], Transport]
) -> None:
    """Anything else is the tutorial's error."""
    answers: list[tuple[Any, float | str]] = [
        (vector(({}, "1000000")), 1_000_000.0),
        (vector(({}, 1e15), warnings=["slow"]), 1e15),
        (vector(), f"{INVALID}, expected 1 value, got 0"),
        (vector(({}, 1), ({"a": "b"}, 2)), f"{INVALID}, expected 1 value, got 2"),
        (vector(({}, "NaN")), f"{INVALID}, expected a sum, got NaN"),
        (503, "[NetworkTraffic] Error querying prometheus: GET /api/v1/query: refused with 503"),
        (b"<html>", "[NetworkTraffic] Error querying prometheus: wanted samples"),
        (b"", "[NetworkTraffic] Error querying prometheus: wanted samples"),
        (b"[" * 90_000, "[NetworkTraffic] Error querying prometheus: "),
        (b" " * 200_000, "[NetworkTraffic] Error querying prometheus: "),
        ({"status": "error", "error": "parse error"}, "wanted success, found parse error"),
        ({"status": "success", "data": {"resultType": "scalar", "result": []}}, "found a scalar"),
        (
            {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}}]}},
            "Error querying prometheus: wanted samples",
        ),
    ]  # fmt: skip
    handle = PrometheusHandle(arguments(query=Query.SUM_OVER_TIME), connect())
    for answer, wanted in answers:
        site.answer = lambda request, answer=answer: answer
        if isinstance(wanted, float):
            assert await handle.get_node_bandwidth_measure("n1") == wanted
            continue
        with pytest.raises(MeasureError) as caught:
            await handle.get_node_bandwidth_measure("n1")
        assert wanted in str(caught.value)
        assert len(str(caught.value)) < 600
    assert site.requests[0].path == "/api/v1/query"


async def test_each_node_is_asked_about_in_the_tutorials_way(
    site: ScriptedSite, connect: Callable[[], Transport]
) -> None:
    """A few at a time; the error of one node is its own."""
    site.answer = lambda request: vector() if '"n2"' in request.query["query"] else vector(({}, 7))
    args = arguments(query=Query.SUM_OVER_TIME, concurrency=2)
    found = await PrometheusSource(args, connect(), SystemClock()).read(NODES)
    assert sorted(queries(site)) == [sum_query(args, name) for name in NODES]
    assert site.most_open <= 2
    assert found["n1"].traffic == found["n3"].traffic == Traffic(7.0)
    assert found["n2"].error == "[NetworkTraffic] Invalid response, expected 1 value, got 0"


async def test_one_answer_has_all_nodes(
    site: ScriptedSite, connect: Callable[[], Transport]
) -> None:
    """Nodes of other clusters are left out."""
    label = "kubernetes_node"
    site.answer = lambda request: vector(
        ({label: "n1"}, 10),
        ({label: "n1", "traffic": "transmit"}, 4),
        ({label: "n1", "traffic": "speed"}, 125_000_000),
        ({label: "n2"}, 20),
        ({label: "elsewhere"}, 30),
    )
    found = await PrometheusSource(arguments(), connect(), SystemClock()).read(NODES)
    assert {name: one.traffic for name, one in found.items()} == {
        "n1": Traffic(10.0, 4.0, 125e6),
        "n2": Traffic(20.0),
    }
    assert len(site.requests) == 1


@pytest.mark.parametrize("answer", [500, 302, b"{}", b"null", b"x" * 200_000])
async def test_an_answer_that_is_none_leaves_nothing_new(
    site: ScriptedSite, connect: Callable[[], Transport], answer: Any
) -> None:
    """And says why."""
    site.answer = lambda request: answer
    with pytest.raises(KoordError):
        await PrometheusSource(arguments(), connect(), SystemClock()).read(NODES)


def test_figures_that_are_no_amounts_are_unknown() -> None:
    """Two series of one node, NaN, infinity, negative ones, names beyond a node's."""
    series = read_vector(
        json.dumps(
            vector(
                ({"n": "twice"}, 1), ({"n": "twice"}, 2),
                ({"n": "nan"}, "NaN"), ({"n": "inf"}, "+Inf"), ({"n": "less"}, -1),
                ({"n": "text"}, "many"), ({"n": "x" * 300}, 1), ({"n": ""}, 1), ({}, 1),
                ({"n": "odd", "traffic": "sideways"}, 1), ({"n": "good"}, "1e3"),
            )
        ).encode()
    )  # fmt: skip
    assert traffic_of(series, "n") == {
        "nan": Traffic(), "inf": Traffic(), "less": Traffic(), "text": Traffic(),
        "good": Traffic(1000.0),
    }  # fmt: skip


@given(st.one_of(st.binary(max_size=200), st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["status", "data", "resultType", "result", "metric", "value"]), inner
        ),
    ),
).map(lambda found: json.dumps(found).encode())))  # fmt: skip
def test_any_bytes_are_samples_or_refused(data: bytes) -> None:
    """Nothing else."""
    try:
        traffic_of(read_vector(data), "n")
    except QueryFailed:
        return
