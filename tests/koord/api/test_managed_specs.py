"""The specs that koord-manager would write for a node."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.node import Node
from koord.api.nodemetric import DEFAULT_SPEC, parse_spec, spec_to_json
from koord.api.nodeslo import NodeSLO, merge_nodeslo
from koord.api.slocontroller import (
    ColocationStrategy,
    SLOConfig,
    colocation_of_node,
    load_config,
    ratio_percent,
)
from koord.kube.managedobjects import node_metric_spec_for, node_slo_for
from koord.util.errors import InvalidObject

STRATEGY = "node.koordinator.sh/colocation-strategy"
BANDWIDTH = "node.koordinator.sh/network-bandwidth"
NODE = Node("worker-07")
DEFAULT_METRIC_SPEC = {
    "metricCollectPolicy": {
        "aggregateDurationSeconds": 300,
        "reportIntervalSeconds": 60,
        "nodeAggregatePolicy": {"durations": ["5m0s", "10m0s", "30m0s"]},
        "nodeMemoryCollectPolicy": "usageWithoutPageCache",
    }
}
DEFAULT_SLO_SPEC = {
    "resourceUsedThresholdWithBE": {
        "enable": False,
        "cpuSuppressThresholdPercent": 65,
        "cpuSuppressPolicy": "cpuset",
        "memoryEvictThresholdPercent": 70,
        "cpuEvictPolicy": "evictByRealLimit",
    },
    "resourceQOSStrategy": {},
    "cpuBurstStrategy": {
        "policy": "none",
        "cpuBurstPercent": 1000,
        "cfsQuotaBurstPercent": 300,
        "cfsQuotaBurstPeriodSeconds": -1,
        "sharePoolThresholdPercent": 50,
    },
    "systemStrategy": {"totalNetworkBandwidth": "0"},
    "extensions": {"Object": {}},
}


def config(**keys) -> SLOConfig:
    data = {f"{name.replace('_', '-')}-config": json.dumps(value) for name, value in keys.items()}
    return load_config(data)[0]


def colocation(**fields) -> SLOConfig:
    return config(colocation=fields)


def policy(config: SLOConfig, node: Node = NODE) -> dict[str, object]:
    spec, problems = node_metric_spec_for(config, node)
    assert problems == ()
    return spec["metricCollectPolicy"]


@pytest.mark.parametrize(
    "configured", [SLOConfig(), config(), colocation(metricReportIntervalSeconds=45)]
)
def test_measuring_goes_on_with_defaults_where_colocation_is_disabled(configured):
    spec, problems = node_metric_spec_for(configured, NODE)
    assert (spec, problems) == (DEFAULT_METRIC_SPEC, ())
    assert spec_to_json(DEFAULT_SPEC) == spec


def test_the_metric_fields_become_the_spec():
    found = policy(
        colocation(
            enable=True,
            metricAggregateDurationSeconds=600,
            metricReportIntervalSeconds=45,
            metricAggregatePolicy={"durations": ["60s", "1.5h"]},
            metricMemoryCollectPolicy="usageWithPageCache",
        )
    )
    assert found == {
        "aggregateDurationSeconds": 600,
        "reportIntervalSeconds": 45,
        "nodeAggregatePolicy": {"durations": ["1m0s", "1h30m0s"]},
        "nodeMemoryCollectPolicy": "usageWithPageCache",
    }


def test_a_node_may_be_enabled_alone():
    entry = {"nodeSelector": {}, "enable": True, "metricReportIntervalSeconds": 30}
    found = policy(colocation(enable=False, nodeConfigs=[entry]))
    assert found["reportIntervalSeconds"] == 30


@pytest.mark.parametrize(("configured", "written"), [(10, 30), (30, 30), (31, 31)])
def test_the_written_interval_is_one_that_is_kept(configured, written):
    """koord-scheduler subtracts it from the time of the report."""
    found = policy(colocation(enable=True, metricReportIntervalSeconds=configured))
    assert found["reportIntervalSeconds"] == written
    spec = {"spec": {"metricCollectPolicy": found}}
    assert parse_spec(spec).report_interval == written


def test_what_is_not_known_leaves_a_spec_alone():
    """Neither a missing ConfigMap nor a bad key changes how the node is measured."""
    current = {"metricCollectPolicy": {"reportIntervalSeconds": 99}}
    before = colocation(enable=True, metricReportIntervalSeconds=0)
    assert node_metric_spec_for(before, NODE, current) == (current, ())
    assert node_metric_spec_for(load_config(None)[0], NODE, current) == (current, ())
    assert node_metric_spec_for(config(), NODE, current) == (DEFAULT_METRIC_SPEC, ())
    assert node_metric_spec_for(before, NODE) == (DEFAULT_METRIC_SPEC, ())


def test_the_annotation_comes_last():
    node = Node("n", annotations={STRATEGY: '{"ENABLE": true, "metricReportIntervalSeconds": 90}'})
    entry = {"nodeSelector": {}, "metricReportIntervalSeconds": 45}
    assert policy(colocation(nodeConfigs=[entry]), node)["reportIntervalSeconds"] == 90


@pytest.mark.parametrize("text", ["{bad", "[]", '{"metricReportIntervalSeconds": "90"}', ""])
def test_an_annotation_that_cannot_be_decoded_does_not_count(text):
    node = Node("n", annotations={STRATEGY: text})
    configured = colocation(enable=True, metricReportIntervalSeconds=45)
    spec, problems = node_metric_spec_for(configured, node)
    assert spec["metricCollectPolicy"]["reportIntervalSeconds"] == 45
    assert [problem.where.split(".metric")[0] for problem in problems] == [f"annotation {STRATEGY}"]


def test_an_annotation_with_a_forbidden_value_disables_colocation():
    node = Node("n", annotations={STRATEGY: '{"metricReportIntervalSeconds": 0}'})
    configured = colocation(enable=True, metricReportIntervalSeconds=45)
    spec, problems = node_metric_spec_for(configured, node)
    assert spec == DEFAULT_METRIC_SPEC
    assert [problem.where for problem in problems] == [
        f"annotation {STRATEGY}.metricReportIntervalSeconds"
    ]


@pytest.mark.parametrize(
    ("text", "percent"),
    [
        ("0.7", 70),
        ("0.57", 56),
        ("0.29", 28),
        ("1.1", 110),
        ("0", 0),
        ("1", 100),
        (".5", 50),
        ("5e-1", 50),
    ],
)
def test_ratio_labels(text, percent):
    """Cut like Koordinator's, from a binary fraction."""
    assert ratio_percent(text, "label") == percent


@pytest.mark.parametrize(
    "text",
    [
        "-0.1",
        "abc",
        "",
        "nan",
        "inf",
        "1_0",
        " 1",
        "1e999",
        "0x1",
        ".",
        pytest.param("1" * 100_000 + "x", id="long"),
    ],
)
def test_ratios_that_are_ignored(text):
    with pytest.raises(InvalidObject, match="label: wanted a ratio"):
        ratio_percent(text, "label")


def test_labels_beat_configuration_and_annotation():
    prefix = "node.koordinator.sh/"
    node = Node(
        "n",
        labels={
            f"{prefix}cpu-reclaim-ratio": "0.7",
            f"{prefix}memory-reclaim-ratio": "much",
            f"{prefix}mid-static-cpu-reserved-ratio": "0.1",
            f"{prefix}mid-static-memory-reserved-ratio": "0.05",
        },
        annotations={STRATEGY: '{"enable": true, "cpuReclaimThresholdPercent": 1}'},
    )
    strategy, problems = colocation_of_node(SLOConfig().colocation, node)
    assert strategy == ColocationStrategy(
        enable=True,
        cpu_reclaim_threshold_percent=70,
        mid_static_cpu_reserved_percent=10,
        mid_static_memory_reserved_percent=5,
    )
    assert [problem.where for problem in problems] == [f"label {prefix}memory-reclaim-ratio"]


@pytest.mark.parametrize("data", [None, {}])
def test_a_slo_when_nothing_is_configured(data):
    spec, problems = node_slo_for(load_config(data)[0], NODE)
    assert (spec, problems) == (DEFAULT_SLO_SPEC, ())
    assert merge_nodeslo({"spec": spec}) == (NodeSLO(spec), ())


def test_the_config_map_that_koordinator_ships():
    """It only switches colocation and the thresholds on."""
    shipped = config(
        colocation={"enable": True}, resource_threshold={"clusterStrategy": {"enable": True}}
    )
    threshold = {**DEFAULT_SLO_SPEC["resourceUsedThresholdWithBE"], "enable": True}
    spec, _ = node_slo_for(shipped, NODE)
    assert spec == {**DEFAULT_SLO_SPEC, "resourceUsedThresholdWithBE": threshold}
    assert node_metric_spec_for(shipped, NODE)[0] == DEFAULT_METRIC_SPEC


def test_each_key_feeds_its_section():
    configured = config(
        resource_qos={
            "clusterStrategy": {"lsClass": {"cpuQOS": {"enable": True}}},
            "nodeStrategies": [
                {
                    "nodeSelector": {"matchLabels": {"pool": "a"}},
                    "beClass": {"cpuQOS": {"enable": True}},
                }
            ],
        },
        cpu_burst={"clusterStrategy": {"policy": "auto"}},
        system={"clusterStrategy": {"watermarkScaleFactor": 150}},
        host_application={"applications": [{"name": "nginx", "priority": "koord-prod"}]},
    )
    spec, _ = node_slo_for(configured, Node("n", labels={"pool": "a"}))
    enabled = {"cpuQOS": {"enable": True}}
    assert spec["resourceQOSStrategy"] == {"lsClass": enabled, "beClass": enabled}
    assert spec["cpuBurstStrategy"]["policy"] == "auto"
    assert spec["systemStrategy"] == {"watermarkScaleFactor": 150, "totalNetworkBandwidth": "0"}
    assert spec["hostApplications"] == [{"name": "nginx", "priority": "koord-prod"}]
    slo, problems = merge_nodeslo({"spec": spec})
    assert problems == ()
    assert slo.resource_qos.be.cpu.group_identity == -1
    assert slo.resource_qos.lsr.cpu.group_identity == 0


@pytest.mark.parametrize(
    ("text", "bandwidth", "where"),
    [
        ("10G", "10G", []),
        ("1000M", "1G", []),
        ("fast", "5G", [f"annotation {BANDWIDTH}"]),
        (" 10G", "5G", [f"annotation {BANDWIDTH}"]),
    ],
)
def test_the_bandwidth_of_a_node(text, bandwidth, where):
    """One that cannot be read does not count."""
    configured = config(system={"clusterStrategy": {"totalNetworkBandwidth": "5G"}})
    spec, problems = node_slo_for(configured, Node("n", annotations={BANDWIDTH: text}))
    assert spec["systemStrategy"] == {"totalNetworkBandwidth": bandwidth}
    assert [problem.where for problem in problems] == where


def test_extensions_belong_to_others():
    current = {"extensions": {"Object": {"theirs": {"a": 1}}}, "cpuBurstStrategy": {"policy": "x"}}
    spec, _ = node_slo_for(config(), NODE, current)
    assert spec == {**DEFAULT_SLO_SPEC, "extensions": {"Object": {"theirs": {"a": 1}}}}


def test_network_qos_is_written_as_it_is_stored():
    """The CRD would add the same: no endless difference between what is wanted and what is."""
    network = {"enable": True, "egressLimit": "10G"}
    configured = config(resource_qos={"clusterStrategy": {"lsClass": {"networkQOS": network}}})
    spec, _ = node_slo_for(configured, NODE)
    assert spec["resourceQOSStrategy"]["lsClass"]["networkQOS"] == {
        "enable": True,
        "ingressRequest": 0,
        "ingressLimit": 100,
        "egressRequest": 0,
        "egressLimit": "10G",
    }


def test_a_spec_may_be_changed_by_who_gets_it():
    spec, _ = node_slo_for(SLOConfig(), NODE)
    spec["resourceUsedThresholdWithBE"]["enable"] = True
    assert node_slo_for(SLOConfig(), NODE)[0] == DEFAULT_SLO_SPEC


TEXTS = st.text(max_size=4) | st.sampled_from(
    ["0.5", "-1", "10G", '{"enable": true}', "{}", "null"]
)
ANNOTATIONS = st.fixed_dictionaries({}, optional={STRATEGY: TEXTS, BANDWIDTH: TEXTS})
LABELS = st.fixed_dictionaries({}, optional={"node.koordinator.sh/cpu-reclaim-ratio": TEXTS})


@given(LABELS, ANNOTATIONS)
def test_specs_of_any_node_are_ones_that_agents_can_use(labels, annotations):
    node = Node("n", labels, annotations)
    spec, _ = node_slo_for(config(), node)
    slo, problems = merge_nodeslo({"spec": spec})
    assert (slo.spec, problems) == (spec, ())
    spec, _ = node_metric_spec_for(config(), node)
    assert spec_to_json(parse_spec({"spec": spec})) == spec
