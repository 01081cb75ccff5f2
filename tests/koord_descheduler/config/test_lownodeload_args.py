"""Arguments of LowNodeLoad: defaults, inheritance of pools, rules."""

import pytest

from koord.api.labelselector import LabelSelector
from koord_descheduler_plugins.low_node_load.args import (
    DEFAULT_POOL,
    AggregationType,
    AnomalyCondition,
    LowNodeLoadArgs,
    NodePool,
    Planner,
)

NAME = "LowNodeLoad"
DEFAULT_CONDITION = AnomalyCondition(
    timeout=60.0, consecutive_abnormalities=5, consecutive_normalities=3
)


def test_the_defaults(args):
    assert args(NAME, "{}") == args(NAME, "null")
    assert args(NAME, "{}") == LowNodeLoadArgs(
        paused=False,
        dry_run=False,
        number_of_nodes=0,
        node_metric_expiration_seconds=180,
        node_fit=True,
        use_deviation_thresholds=False,
        resource_weights={"cpu": 1, "memory": 1},
        anomaly_condition=DEFAULT_CONDITION,
        detector_cache_timeout=300.0,
        planner=Planner.EXACT,
        usage_aggregation_type=None,
        usage_aggregation_duration=None,
    )


def test_the_added_arguments(args):
    text = "{planner: koordinator, usageAggregationType: p95, usageAggregationDuration: 5m}"

    found = args(NAME, text)

    assert found.planner is Planner.KOORDINATOR
    assert found.usage_aggregation_type is AggregationType.P95
    assert found.usage_aggregation_duration == 300.0


@pytest.mark.parametrize(
    ("text", "timeout", "abnormalities", "normalities"),
    [
        ("null", 60.0, 5, 3),
        ("{}", 60.0, 5, 3),  # Koordinator leaves normalities 0, and refuses
        ("{timeout: 2m}", 120.0, 5, 3),
        ("{consecutiveAbnormalities: 2}", 60.0, 2, 3),
        ("{consecutiveNormalities: 2}", 60.0, 5, 2),
        ("{timeout: 10s, consecutiveAbnormalities: 1, consecutiveNormalities: 9}", 10.0, 1, 9),
    ],
)
def test_anomaly_condition(args, text, timeout, abnormalities, normalities):
    """A timeout of 0 in a given condition is the detector's 60 s."""
    found = args(NAME, f"{{anomalyCondition: {text}}}").anomaly_condition

    assert found.effective_timeout == timeout
    assert found.consecutive_abnormalities == abnormalities
    assert found.consecutive_normalities == normalities


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("{}", {"cpu": 1, "memory": 1}),
        ("{lowThresholds: {pods: 1}, highThresholds: {gpu: 2}}", "cpu memory pods gpu"),
        ("{prodHighThresholds: {pods: 1}}", {"cpu": 1, "memory": 1}),
        ("{resourceWeights: {}}", {"cpu": 1, "memory": 1}),
        ("{resourceWeights: {cpu: 3, pods: 7}}", {"cpu": 3, "memory": 1, "pods": 7}),
        ("{resourceWeights: {cpu: 0, memory: -2}}", {"cpu": 1, "memory": 1}),
    ],
)
def test_resource_weights(args, text, weights):
    wanted = dict.fromkeys(weights.split(), 1) if isinstance(weights, str) else weights

    assert args(NAME, text).resource_weights == wanted


def test_the_pool_of_the_top_level_comes_first(args):
    text = (
        "{highThresholds: {cpu: 80}, nodeSelector: {matchLabels: {a: b}}, nodePools: [{name: x}]}"
    )

    first, second = args(NAME, text).pools()

    assert first == NodePool(
        name=DEFAULT_POOL,
        node_selector=LabelSelector(match_labels={"a": "b"}),
        use_deviation_thresholds=False,
        high_thresholds={"cpu": 80.0},
        low_thresholds={},
        prod_high_thresholds={},
        prod_low_thresholds={},
        resource_weights={"cpu": 1, "memory": 1},
        anomaly_condition=DEFAULT_CONDITION,
    )
    assert (second.name, second.node_selector) == ("x", None)
    assert second.high_thresholds == {"cpu": 80.0}


def test_a_pool_inherits_whole_maps_and_single_counters(args):
    """An empty map is set, useDeviationThresholds and the timeout are not inherited."""
    text = """{useDeviationThresholds: true, highThresholds: {cpu: 80, memory: 90},
      lowThresholds: {cpu: 40}, prodHighThresholds: {cpu: 70}, prodLowThresholds: {cpu: 30},
      anomalyCondition: {timeout: 2m, consecutiveAbnormalities: 7, consecutiveNormalities: 4},
      nodePools: [{highThresholds: {cpu: 60}, lowThresholds: {}, prodHighThresholds: {},
                   anomalyCondition: {consecutiveNormalities: 9}}, {}]}"""

    top, own, inherited = args(NAME, text.replace("\n", " ")).pools()

    assert top.use_deviation_thresholds
    assert not own.use_deviation_thresholds
    assert own.high_thresholds == {"cpu": 60.0}
    assert own.low_thresholds == own.prod_high_thresholds == {}
    assert own.prod_low_thresholds == {"cpu": 30.0}
    assert own.anomaly_condition == AnomalyCondition(
        timeout=0.0, consecutive_abnormalities=7, consecutive_normalities=9
    )
    assert inherited.anomaly_condition == top.anomaly_condition
    assert inherited.high_thresholds == {"cpu": 80.0, "memory": 90.0}


def test_inherited_weights_do_not_know_resources_of_the_pool(args):
    text = "{nodePools: [{highThresholds: {pods: 60}}]}"

    assert args(NAME, text).pools()[1].resource_weights == {"cpu": 1, "memory": 1}


@pytest.mark.parametrize(
    "text",
    [
        "{lowThresholds: {cpu: 90}, highThresholds: {cpu: 100}}",
        "{lowThresholds: {cpu: 0}, highThresholds: {cpu: 0}}",
        "{lowThresholds: {cpu: 50}, highThresholds: {cpu: 120}}",
        "{lowThresholds: {cpu: 120}, highThresholds: {cpu: 120}}",
        "{lowThresholds: {cpu: 50}, highThresholds: {memory: 10}}",
        "{podSelectors: [{name: a}]}",
        "{numberOfNodes: 0}",
        "{evictableNamespaces: {include: [a]}}",
    ],
)
def test_what_is_accepted(args, text):
    assert isinstance(args(NAME, text), LowNodeLoadArgs)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "{numberOfNodes: -1}",
            ["numberOfNodes: Invalid value: -1: must be greater than or equal"],
        ),
        (
            "{nodeMetricExpirationSeconds: 0}",
            [
                "nodeMetricExpirationSeconds: Invalid value: 0: "
                "nodeMetricExpiredSeconds should be a positive value"
            ],
        ),
        (
            "{evictableNamespaces: {include: [a], exclude: [b]}}",
            [
                'evictableNamespaces: Invalid value: {"include": ["a"], "exclude": ["b"]}: '
                "only one of Include/Exclude namespaces can be set"
            ],
        ),
        (
            "{podSelectors: [{}, {selector: {matchExpressions: [{key: a, operator: In}]}}]}",
            ["podSelectors[1].selector: Invalid value"],
        ),
        (
            "{nodePools: [{nodeSelector: {matchLabels: {a: '-'}}}]}",
            ["nodePools[0].nodeSelector: Invalid value"],
        ),
        (
            "{highThresholds: {cpu: -1}}",
            [
                "highThresholds[cpu]: Invalid value: -1.0: "
                "percentage must be greater than or equal to 0"
            ],
        ),
        ("{prodLowThresholds: {cpu: -1}}", ["prodLowThresholds[cpu]: Invalid value: -1.0"]),
        (
            "{lowThresholds: {cpu: 60}, highThresholds: {cpu: 50}}",
            [
                "lowThresholds[cpu]: Invalid value: 60.0: "
                "low percentage must be less than or equal to highThresholds"
            ],
        ),
        (
            "{useDeviationThresholds: true, lowThresholds: {a: 60}, highThresholds: {a: 50}}",
            ["lowThresholds[a]: Invalid value: 60.0"],
        ),
        (
            "{prodHighThresholds: {cpu: 60}, highThresholds: {cpu: 50}}",
            [
                "prodHighThresholds[cpu]: Invalid value: 60.0: "
                "node percentage must be greater than or equal to prodHighThresholds"
            ],
        ),
        (
            "{prodLowThresholds: {cpu: 60}, prodHighThresholds: {cpu: 50}}",
            [
                "prodLowThresholds[cpu]: Invalid value: 60.0: "
                "low percentage must be less than or equal to prodHighThresholds"
            ],
        ),
        (
            "{highThresholds: {cpu: 50}, nodePools: [{lowThresholds: {cpu: 60}}, {}]}",
            ["nodePools[0].lowThresholds[cpu]: Invalid value: 60.0"],
        ),
        (
            "{highThresholds: {cpu: '75'}}",
            ['highThresholds[cpu]: Invalid value: "75": wanted a num'],
        ),
        (
            "{highThresholds: {cpu: 75%}}",
            ['highThresholds[cpu]: Invalid value: "75%": wanted a num'],
        ),
        ("{resourceWeights: {pods: -1}}", ["resourceWeights[pods]: Invalid value: -1: wanted 0"]),
        (
            "{anomalyCondition: {consecutiveAbnormalities: -1}}",
            ["anomalyCondition.consecutiveAbnormalities: Invalid value: -1: wanted a whole number"],
        ),
        (
            "{anomalyCondition: {timeout: -1s}}",
            ['anomalyCondition.timeout: Invalid value: "-1s": wanted 0s or more'],
        ),
        (
            "{planner: best, usageAggregationType: p80}",
            [
                'planner: Unsupported value: "best": supported values: "exact", "koordinator"',
                'usageAggregationType: Unsupported value: "p80": supported values: "avg", "p50"',
            ],
        ),
        (
            "{usageAggregationDuration: 0s}",
            [
                'usageAggregationDuration: Invalid value: "0s": wanted more than 0s',
                "usageAggregationType: Required value: usageAggregationDuration has no meaning",
            ],
        ),
        ("{usageAggregatedDuration: 5m}", ['usageAggregatedDuration: unknown field "usageAggreg']),
    ],
)
def test_what_is_refused(args_faults, text, found):
    lines = args_faults(NAME, text)

    assert len(lines) == len(found), lines
    assert all(line.startswith(start) for line, start in zip(lines, found, strict=True)), lines


def test_a_percentage_above_100_is_a_warning(read):
    """Koordinator has no upper bound: usage may exceed what is allocatable."""
    found = read(
        "deschedulingInterval: 1s\n"
        "profiles: [{plugins: {balance: {enabled: [{name: LowNodeLoad}]}},"
        " pluginConfig: [{name: LowNodeLoad, args: {highThresholds: {cpu: 120}}}]}]"
    )

    assert [str(fault) for fault in found.warnings] == [
        "profiles[0].pluginConfig[0].args.highThresholds[cpu]: "
        "120 percent; more than 100 is hardly ever reached"
    ]
