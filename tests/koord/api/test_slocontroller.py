"""The slo-controller-config ConfigMap: what it means for nodes, and what it survives."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.slocontroller import COLOCATION as COLOCATION_SHAPE
from koord.api.slocontroller import SLOConfig, load_config
from koord.util.errors import InvalidObject

THRESHOLD, QOS, BURST = "resource-threshold-config", "resource-qos-config", "cpu-burst-config"
SYSTEM, COLOCATION, HOSTS = "system-config", "colocation-config", "host-application-config"
POOL_A = {"matchLabels": {"pool": "a"}}
DEFAULT_THRESHOLD = {
    "enable": False,
    "cpuSuppressThresholdPercent": 65,
    "cpuSuppressPolicy": "cpuset",
    "memoryEvictThresholdPercent": 70,
    "cpuEvictPolicy": "evictByRealLimit",
}


def config_map(**values) -> dict[str, str]:
    """The data of a ConfigMap; a value that is no text is written as JSON."""
    keys = {
        "threshold": THRESHOLD,
        "qos": QOS,
        "burst": BURST,
        "system": SYSTEM,
        "colocation": COLOCATION,
        "hosts": HOSTS,
    }
    return {
        keys[name]: value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
    }


def load(previous: SLOConfig | None = None, **values) -> SLOConfig:
    """The configuration of a ConfigMap that must be right."""
    config, problems = load_config(config_map(**values), previous or SLOConfig())
    assert problems == ()
    return config


def wheres(problems: tuple[InvalidObject, ...]) -> list[str]:
    return [problem.where.removeprefix("slo-controller-config.") for problem in problems]


@pytest.mark.parametrize("data", [None, {}, {THRESHOLD: "", COLOCATION: "", "other-config": "{"}])
def test_nothing_configured(data):
    config, problems = load_config(data)
    assert problems == ()
    assert config.threshold.for_labels({}) == DEFAULT_THRESHOLD
    assert config.resource_qos.for_labels({}) == {}
    assert config.cpu_burst.for_labels({}) == {
        "policy": "none",
        "cpuBurstPercent": 1000,
        "cfsQuotaBurstPercent": 300,
        "cfsQuotaBurstPeriodSeconds": -1,
        "sharePoolThresholdPercent": 50,
    }
    assert config.system.for_labels({}) == {"totalNetworkBandwidth": "0"}
    assert config.host_applications.for_labels({}) == {}
    assert config.colocation.for_labels({}) == {
        "enable": False,
        "metricAggregateDurationSeconds": 300,
        "metricReportIntervalSeconds": 60,
        "metricAggregatePolicy": {"durations": ["5m0s", "10m0s", "30m0s"]},
        "metricMemoryCollectPolicy": "usageWithoutPageCache",
        "cpuReclaimThresholdPercent": 60,
        "cpuCalculatePolicy": "usage",
        "memoryReclaimThresholdPercent": 65,
        "memoryCalculatePolicy": "usage",
        "degradeTimeMinutes": 15,
        "updateTimeThresholdSeconds": 300,
        "resourceDiffThreshold": 0.1,
        "midCPUThresholdPercent": 100,
        "midMemoryThresholdPercent": 100,
        "midUnallocatedPercent": 0,
        "midStaticCPUReservedPercent": 0,
        "midStaticMemoryReservedPercent": 0,
    }
    assert config.colocation_known is (data is not None)


TWO_POOLS = {
    "clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": 70},
    "nodeStrategies": [{"nodeSelector": POOL_A, "memoryEvictThresholdPercent": 80}],
}


@pytest.mark.parametrize(("pool", "evict"), [("a", 80), ("b", 70)])
def test_an_entry_inherits_from_the_cluster(pool, evict):
    threshold = load(threshold=TWO_POOLS).threshold.for_labels({"pool": pool})
    assert list(threshold.values()) == [True, 70, "cpuset", evict, "evictByRealLimit"]


def test_the_first_entry_that_matches_wins_alone():
    config = load(
        threshold={
            "nodeStrategies": [
                {"nodeSelector": {"matchLabels": {"pool": "b"}}, "cpuSuppressThresholdPercent": 1},
                {"nodeSelector": POOL_A, "cpuSuppressThresholdPercent": 2},
                {"nodeSelector": {}, "cpuSuppressThresholdPercent": 3, "enable": True},
            ]
        }
    )
    found = config.threshold.for_labels({"pool": "a"})
    assert found == {**DEFAULT_THRESHOLD, "cpuSuppressThresholdPercent": 2}
    assert config.threshold.for_labels({})["cpuSuppressThresholdPercent"] == 3


@pytest.mark.parametrize("entry", [{}, {"nodeSelector": None}, None])
def test_an_entry_without_selector_matches_nothing(entry):
    entry = entry if entry is None else {**entry, "enable": True}
    config = load(threshold={"nodeStrategies": [entry]})
    assert config.threshold.for_labels({"pool": "a"}) == DEFAULT_THRESHOLD


def test_an_entry_loses_the_bandwidth_of_the_cluster():
    """It is not optional in Koordinator's types, so that an entry without it sets it to 0."""
    config = load(
        system={
            "clusterStrategy": {"minFreeKbytesFactor": 100, "totalNetworkBandwidth": "10G"},
            "nodeStrategies": [{"nodeSelector": POOL_A, "minFreeKbytesFactor": 120}],
        }
    )
    assert config.system.for_labels({})["totalNetworkBandwidth"] == "10G"
    assert config.system.for_labels({"pool": "a"}) == {
        "minFreeKbytesFactor": 120,
        "totalNetworkBandwidth": "0",
    }


def test_host_applications_are_not_inherited():
    config = load(
        hosts={
            "applications": [{"name": "nginx", "qos": "LS"}],
            "nodeConfigs": [
                {"nodeSelector": POOL_A, "applications": [{"name": "yarn", "cgroupPath": {}}]},
                {"nodeSelector": {"matchLabels": {"pool": "none"}}},
            ],
        }
    ).host_applications
    assert config.for_labels({}) == {"applications": [{"name": "nginx", "qos": "LS"}]}
    assert config.for_labels({"pool": "a"}) == {
        "applications": [{"name": "yarn", "cgroupPath": {}}]
    }
    assert config.for_labels({"pool": "none"}) == {}


def test_the_case_of_keys_does_not_matter():
    config = load(
        threshold={
            "ClusterStrategy": {"ENABLE": True},
            "nodestrategies": [{"NodeSelector": {"MATCHLABELS": {"pool": "a"}}, "Enable": False}],
        }
    )
    assert config.threshold.for_labels({})["enable"] is True
    assert config.threshold.for_labels({"pool": "a"})["enable"] is False


BAD_TEXTS = (
    "{bad",
    "[]",
    '"x"',
    "NaN",
    '{"clusterStrategy": []}',
    '{"clusterStrategy": {"enable": "yes"}}',
    '{"clusterStrategy": {"cpuSuppressThresholdPercent": 1.0}}',
    '{"clusterStrategy": {"cpuSuppressThresholdPercent": 101}}',
    '{"nodeStrategies": {}}',
    '{"nodeStrategies": [1]}',
    '{"nodeStrategies": [{"enable": 0}]}',
    '{"nodeStrategies": [{"nodeSelector": []}]}',
    '{"nodeStrategies": [{"nodeSelector": {"matchLabels": {"a": 1}}}]}',
)


@pytest.mark.parametrize("text", BAD_TEXTS)
def test_a_bad_key_keeps_its_last_good_value(text):
    """The other keys change all the same."""
    before = load(threshold=TWO_POOLS)
    data = config_map(threshold=text, burst={"clusterStrategy": {"policy": "auto"}})
    config, problems = load_config(data, before)
    assert config.threshold == before.threshold
    assert config.cpu_burst.cluster["policy"] == "auto"
    assert config.colocation_known
    assert len(problems) == 1
    assert problems[0].where.startswith(f"slo-controller-config.{THRESHOLD}")


def test_a_value_as_deep_as_json_can_be():
    """Neither reading it nor the message about it fails."""
    before = load(threshold=TWO_POOLS)
    for depth in range(900, 1100, 2):
        text = '{"clusterStrategy": %s}' % ("[" * depth + "]" * depth)
        config, problems = load_config({THRESHOLD: text}, before)
        assert (config.threshold, len(problems)) == (before.threshold, 1)


def test_a_bad_value_that_is_no_text():
    config, problems = load_config({THRESHOLD: {"enable": True}})
    assert config == load()
    assert wheres(problems) == [THRESHOLD]


def test_a_forbidden_value_in_an_entry_costs_that_entry_its_values():
    """It then has the cluster's strategy, also before other entries that match."""
    config, problems = load_config(
        config_map(
            colocation={
                "enable": True,
                "nodeConfigs": [
                    {"nodeSelector": POOL_A, "metricReportIntervalSeconds": 0},
                    {"nodeSelector": {}, "metricReportIntervalSeconds": 90},
                ],
            }
        )
    )
    assert config.colocation.for_labels({"pool": "a"}) == config.colocation.cluster
    assert config.colocation.for_labels({})["metricReportIntervalSeconds"] == 90
    assert wheres(problems) == [f"{COLOCATION}.nodeConfigs[0].metricReportIntervalSeconds"]


def test_an_entry_with_a_selector_that_is_refused_is_left_out():
    selector = {"matchExpressions": [{"key": "pool", "operator": "Gt", "values": ["1"]}]}
    entries = [{"nodeSelector": selector}, {"nodeSelector": {}, "enable": True}]
    config, problems = load_config(config_map(threshold={"nodeStrategies": entries}))
    assert config.threshold.for_labels({"pool": "a"})["enable"] is True
    assert wheres(problems) == [
        f"{THRESHOLD}.nodeStrategies[0].nodeSelector.matchExpressions[0].operator"
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"metricReportIntervalSeconds": 0},
        {"metricAggregateDurationSeconds": -1},
        {"metricAggregatePolicy": {"durations": ["5m", "0s"]}},
        {"metricAggregatePolicy": {"durations": ["-5m"]}},
        {"metricAggregatePolicy": {"durations": [None]}},
        {"metricMemoryCollectPolicy": "usage"},
        {"degradeTimeMinutes": 0},
        {"updateTimeThresholdSeconds": 0},
        {"resourceDiffThreshold": 0},
        {"cpuReclaimThresholdPercent": -1},
        {"memoryReclaimThresholdPercent": -1},
        {"batchCPUThresholdPercent": -1},
        {"midCPUThresholdPercent": 101},
        {"midUnallocatedPercent": 101},
        {"midStaticCPUReservedPercent": -1},
        {"resourceDiffThreshold": "0.1"},
    ],
)
def test_what_colocation_refuses(fields):
    """The whole key keeps its last good value, and NodeMetrics that exist stay as they are."""
    before = load(colocation={"enable": True})
    config, problems = load_config(config_map(colocation={"enable": False, **fields}), before)
    assert config.colocation == before.colocation
    assert before.colocation_known
    assert not config.colocation_known
    assert len(problems) == 1


def test_a_host_application_outside_of_its_directory_is_refused():
    data = config_map(hosts={"applications": [{"name": "a"}, {"name": "../b"}]})
    config, problems = load_config(data)
    assert config.host_applications.cluster == {}
    assert wheres(problems) == [f"{HOSTS}.applications[1].name"]


def test_loading_the_same_again_changes_nothing():
    """So that a comparison shows a change."""
    values = {"threshold": TWO_POOLS, "colocation": {"enable": True}}
    assert load(load(**values), **values) == load(**values)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=2)
            | st.sampled_from(
                ["clusterStrategy", "nodeStrategies", "nodeConfigs", "nodeSelector", "enable"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=10,
)
KEYS = (THRESHOLD, QOS, BURST, SYSTEM, COLOCATION, HOSTS)
DATA = st.dictionaries(
    st.sampled_from(KEYS), ANY_JSON.map(json.dumps) | st.text() | st.integers(), max_size=3
)


@given(DATA, st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=2))
def test_any_data_is_loaded_or_refused_by_key(data, labels):
    before = load(threshold=TWO_POOLS)
    config, problems = load_config(data, before)
    assert {where.split(".")[0].split("[")[0] for where in wheres(problems)} <= set(data)
    assert load_config(data, config)[0] == config
    for key in (config.threshold, config.colocation, config.host_applications):
        assert isinstance(key.for_labels(labels), dict)
    fresh = COLOCATION_SHAPE.load(config.colocation.for_labels(labels))
    for _ in range(2):
        assert config.colocation.load(COLOCATION_SHAPE, labels) == fresh


def test_a_strategy_is_loaded_once_for_all_nodes_of_an_entry():
    pool = {"nodeSelector": POOL_A, "metricReportIntervalSeconds": 90}
    found = load(colocation={"enable": True, "nodeConfigs": [pool]}).colocation

    def loaded(**labels):
        return found.load(COLOCATION_SHAPE, labels)

    assert loaded(pool="a", zone="1") is loaded(pool="a", zone="2")
    assert loaded(pool="b") is loaded() is found.load_cluster(COLOCATION_SHAPE)
    intervals = [loaded(pool=one).metric_report_interval_seconds for one in "ab"]
    assert intervals == [90, 60]
