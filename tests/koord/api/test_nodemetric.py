"""NodeMetric: merging of specs, and the status byte for byte."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.nodemetric import (
    DEFAULT_SPEC,
    AggregatedUsage,
    Amounts,
    HostApplicationMetric,
    MemoryPolicy,
    NodeMetricSpec,
    NodeMetricStatus,
    NumaUsage,
    PodMetric,
    ProdPrediction,
    Usage,
    node_metric,
    parse_spec,
    spec_to_json,
    time_text,
)
from koord.util.errors import InvalidObject

GI, MI = 1 << 30, 1 << 20


def policy(**fields: object) -> dict[str, object]:
    return {"spec": {"metricCollectPolicy": fields}}


@pytest.mark.parametrize(
    ("obj", "spec"),
    [
        ({}, DEFAULT_SPEC),
        ({"spec": {}}, DEFAULT_SPEC),
        (policy(), DEFAULT_SPEC),
        (policy(reportIntervalSeconds=180), NodeMetricSpec(report_interval=180)),
        (policy(nodeAggregatePolicy={"durations": ["5m"]}), NodeMetricSpec(durations=(300,))),
        (policy(aggregateDurationSeconds=1200), NodeMetricSpec(aggregate_duration=1200)),
        (
            policy(reportIntervalSeconds=10, aggregateDurationSeconds=30),
            NodeMetricSpec(report_interval=30, aggregate_duration=60),
        ),
        (policy(reportIntervalSeconds=45), NodeMetricSpec(report_interval=45)),
        (policy(aggregateDurationSeconds=600), NodeMetricSpec(aggregate_duration=600)),
        (policy(aggregateDurationSeconds=0), NodeMetricSpec(aggregate_duration=60)),
        (policy(aggregateDurationSeconds=None, nodeAggregatePolicy=None), DEFAULT_SPEC),
        (policy(nodeAggregatePolicy={"durations": []}), DEFAULT_SPEC),
        (policy(nodeAggregatePolicy={}), DEFAULT_SPEC),
        # Windows end at one hour; those that become equal are one.
        (policy(aggregateDurationSeconds=86400), NodeMetricSpec(aggregate_duration=3600)),
        (
            policy(nodeAggregatePolicy={"durations": ["2h", "1m30s", "3h", "90s"]}),
            NodeMetricSpec(durations=(3600, 90)),
        ),
        (
            policy(nodeMemoryCollectPolicy="usageWithPageCache"),
            NodeMetricSpec(memory_policy=MemoryPolicy.WITH_PAGE_CACHE),
        ),
        (
            policy(nodeMemoryCollectPolicy="usageWithHotPageCache"),
            NodeMetricSpec(memory_policy=MemoryPolicy.WITH_HOT_PAGE_CACHE),
        ),
        (policy(nodeMemoryCollectPolicy="usageOfTomorrow"), DEFAULT_SPEC),
    ],
)
def test_received_specs_are_completed_and_limited(obj, spec):
    """Absent, null and empty keep the default; zero does not."""
    assert parse_spec(obj) == spec


@pytest.mark.parametrize(
    ("obj", "where"),
    [
        (policy(reportIntervalSeconds=60.0), "reportIntervalSeconds: wanted a whole number"),
        (policy(reportIntervalSeconds="60"), "reportIntervalSeconds: wanted a whole number"),
        (policy(reportIntervalSeconds=True), "reportIntervalSeconds: wanted a whole number"),
        (policy(nodeAggregatePolicy={"durations": [300]}), r"durations\[0\]: wanted a duration"),
        (policy(nodeAggregatePolicy={"durations": ["5m", "x"]}), r"durations\[1\]: wanted a"),
        (policy(nodeAggregatePolicy={"durations": ["-5m"]}), "durations: wanted durations above 0"),
        (policy(nodeAggregatePolicy={"durations": ["0s"]}), "durations: wanted durations above 0"),
        (policy(nodeMemoryCollectPolicy=1), "nodeMemoryCollectPolicy: wanted a text"),
        ({"spec": {"metricCollectPolicy": []}}, "metricCollectPolicy: wanted an object"),
        (None, "nodeMetric: wanted an object"),
    ],
)
def test_a_malformed_spec_is_refused_whole(obj, where):
    with pytest.raises(InvalidObject, match=where):
        parse_spec(obj)


@given(
    st.builds(
        NodeMetricSpec,
        aggregate_duration=st.integers(60, 3600).map(float),
        report_interval=st.integers(30, 10**6).map(float),
        durations=st.lists(
            st.integers(1, 3600).map(float), min_size=1, max_size=5, unique=True
        ).map(tuple),
        memory_policy=st.sampled_from(MemoryPolicy),
    )
)
def test_a_written_spec_is_read_back(spec):
    assert parse_spec({"spec": spec_to_json(spec)}) == spec


SAMPLE = (
    '{"updateTime":"2026-07-24T08:00:00Z",'
    '"nodeMetric":{'
    '"nodeUsage":{"resources":{"cpu":"3","memory":"3Gi"}},'
    '"aggregatedNodeUsages":[{"duration":"5m0s","usage":{'
    '"avg":{"resources":{"cpu":"3","memory":"3Gi"}},'
    '"p50":{"resources":{"cpu":"2900m","memory":"3Gi"}},'
    '"p90":{"resources":{"cpu":"3500m","memory":"3Gi"}},'
    '"p95":{"resources":{"cpu":"3600m","memory":"3Gi"}},'
    '"p99":{"resources":{"cpu":"4","memory":"3Gi"}}}},'
    '{"duration":"30m0s","usage":{"avg":{},"p50":{},"p90":{},"p95":{},"p99":{}}}],'
    '"systemUsage":{"resources":{"cpu":"400m","memory":"512Mi"}},'
    '"numaUsages":[{"numaNodeID":0,"nodeUsage":{"resources":{"cpu":"1","memory":"1Gi"}},'
    '"systemUsage":{}}]},'
    '"podsMetric":[{"name":"web-0","namespace":"default","priority":"koord-prod","qos":"LS",'
    '"podUsage":{"resources":{"cpu":"1523m","memory":"100Mi"}}}],'
    '"prodReclaimableMetric":{"resource":{"resources":{"cpu":"1450m","memory":"966367642"}}},'
    '"prodPeakMetric":{"resource":{"resources":{"cpu":"1550m","memory":"2254857830"}}}}'
)


def test_the_sample_status_byte_for_byte():
    """Key order, canonical quantities, empty windows."""
    status = NodeMetricStatus(
        update_time=1784880000.9,
        node_usage=Usage(3.0, 3 * GI),
        aggregated_node_usages=(
            AggregatedUsage(
                300,
                avg=Usage(3.0, 3 * GI),
                p50=Usage(2.9, 3 * GI),
                p90=Usage(3.5, 3 * GI),
                p95=Usage(3.6, 3 * GI),
                p99=Usage(4.0, 3 * GI),
            ),
            AggregatedUsage(1800),
        ),
        system_usage=Usage(0.4, 512 * MI),
        numa_usages=(NumaUsage(0, Usage(1.0, GI)),),
        pods=(
            PodMetric(
                name="web-0",
                namespace="default",
                usage=Usage(1.5239, 100 * MI),
                priority="koord-prod",
                qos="LS",
            ),
        ),
        prod=ProdPrediction(Amounts(1450, 966367642), Amounts(1550, 2254857830)),
    )
    assert json.dumps(status.to_json(), separators=(",", ":")) == SAMPLE


def test_what_was_not_measured_is_empty_or_absent():
    """The manager dereferences nodeMetric and prodReclaimableMetric unguarded: always there."""
    status = NodeMetricStatus(update_time=0).to_json()
    assert status == {
        "updateTime": "1970-01-01T00:00:00Z",
        "nodeMetric": {"nodeUsage": {}, "systemUsage": {}},
        "prodReclaimableMetric": {"resource": {}},
    }


def test_classes_that_are_none_are_left_out():
    status = NodeMetricStatus(
        update_time=0,
        pods=(PodMetric(name="p", namespace="n", usage=Usage(0.0004, 1000)),),
        host_applications=(
            HostApplicationMetric(name="nginx", usage=Usage(0.7, 512 * MI), qos="LS"),
        ),
    ).to_json()
    assert status["podsMetric"] == [
        {"name": "p", "namespace": "n", "podUsage": {"resources": {"cpu": "0", "memory": "1k"}}}
    ]
    assert status["hostApplicationMetric"] == [
        {"name": "nginx", "usage": {"resources": {"cpu": "700m", "memory": "512Mi"}}, "qos": "LS"}
    ]


def test_the_whole_object_names_node_and_kind():
    written = node_metric("worker-07", DEFAULT_SPEC, NodeMetricStatus(update_time=0))
    assert list(written) == ["apiVersion", "kind", "metadata", "spec", "status"]
    assert written["apiVersion"] == "slo.koordinator.sh/v1alpha1"
    assert written["metadata"] == {"name": "worker-07"}
    assert written["spec"] == {
        "metricCollectPolicy": {
            "aggregateDurationSeconds": 300,
            "reportIntervalSeconds": 60,
            "nodeAggregatePolicy": {"durations": ["5m0s", "10m0s", "30m0s"]},
            "nodeMemoryCollectPolicy": "usageWithoutPageCache",
        }
    }


def test_times_are_cut_to_seconds():
    """A report is never newer than its data."""
    assert time_text(1784875965.999) == "2026-07-24T06:52:45Z"
