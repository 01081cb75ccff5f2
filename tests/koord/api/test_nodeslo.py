"""NodeSLO merged with Koordinator's defaults."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.nodeslo import RECOMMENDED, RESOURCE_QOS, HostApplication, NodeSLO, merge_nodeslo
from koord.api.qosstrategy import (
    BlkIOQoS,
    Block,
    BlockType,
    CPUBurst,
    CPUBurstPolicy,
    CPUEvictPolicy,
    CPUPolicy,
    CPUQoS,
    CPUSuppressPolicy,
    IOConfig,
    MemoryQoS,
    NetQoSPolicy,
    NetworkQoS,
    QoSClassStrategy,
    ResctrlQoS,
    ResourceQoS,
    ResourceThreshold,
    SystemStrategy,
)
from koord.api.quantity import Quantity
from koord.util.errors import InvalidObject
from tests.support.nodeslo import FULL_SLO


def parse(**spec):
    slo, problems = merge_nodeslo({"spec": spec})
    for problem in problems:
        raise problem
    return slo


def be_class(**blocks):
    return parse(resourceQOSStrategy={"beClass": blocks}).resource_qos.be


def test_an_empty_spec_is_all_defaults_and_off():
    """What is not enabled has the values for "off", whatever an enabled one would have."""
    off = QoSClassStrategy(
        cpu=CPUQoS(enable=False, group_identity=0, sched_idle=0, core_expeller=False),
        memory=MemoryQoS(wmark_ratio=0, wmark_scale_permill=50, wmark_min_adj=0),
        resctrl=ResctrlQoS(cat_range_start_percent=0, cat_range_end_percent=100, mba_percent=100),
    )
    assert parse() == NodeSLO()
    assert parse(resourceQOSStrategy={}).resource_qos == ResourceQoS(lsr=off, ls=off, be=off)
    assert parse().threshold == ResourceThreshold(
        enable=False,
        cpu_suppress_threshold_percent=65,
        cpu_suppress_policy=CPUSuppressPolicy.CPUSET,
        memory_evict_threshold_percent=70,
        cpu_evict_policy=CPUEvictPolicy.BY_REAL_LIMIT,
    )
    assert parse().cpu_burst == CPUBurst(
        policy=CPUBurstPolicy.NONE,
        cpu_burst_percent=1000,
        cfs_quota_burst_percent=300,
        cfs_quota_burst_period_seconds=-1,
        share_pool_threshold_percent=50,
    )
    assert parse().system == SystemStrategy(total_network_bandwidth=Quantity(0))
    assert parse().resource_qos.policies.cpu is CPUPolicy.GROUP_IDENTITY
    assert parse().resource_qos.policies.network is NetQoSPolicy.TC


@pytest.mark.parametrize(
    ("received", "cat"),
    [
        ({"enable": True}, (True, 0, 30, 100)),
        ({"enable": True, "catRangeEndPercent": 20}, (True, 0, 20, 100)),
        ({"enable": True, "catRangeEndPercent": 50}, (True, 0, 50, 100)),
        ({"catRangeEndPercent": 20}, (False, 0, 100, 100)),
        ({"enable": False, "catRangeEndPercent": 20}, (False, 0, 100, 100)),
        ({"enable": True, "mbaPercent": 0}, (True, 0, 30, 0)),
        ({"enable": True, "mbaPercent": None}, (True, 0, 30, 100)),
    ],
)
def test_a_block_has_its_values_only_while_it_is_enabled(received, cat):
    found = be_class(resctrlQOS=received).resctrl
    assert found == ResctrlQoS(
        enable=cat[0],
        cat_range_start_percent=cat[1],
        cat_range_end_percent=cat[2],
        mba_percent=cat[3],
    )


@pytest.mark.parametrize(
    ("qos_class", "attribute", "min_adj"),
    [("lsrClass", "lsr", -25), ("lsClass", "ls", -25), ("beClass", "be", 50)],
)
def test_enabled_memory_qos_by_class(qos_class, attribute, min_adj):
    """The recommended watermarks, and what the NodeSLO puts over them."""
    slo = parse(resourceQOSStrategy={qos_class: {"memoryQOS": {"enable": True, "wmarkRatio": 90}}})
    assert getattr(slo.resource_qos, attribute).memory == MemoryQoS(
        enable=True, wmark_ratio=90, wmark_scale_permill=20, wmark_min_adj=min_adj
    )


@pytest.mark.parametrize(
    ("qos_class", "attribute", "identity", "expeller"),
    [
        ("lsrClass", "lsr", 2, True),
        ("lsClass", "ls", 2, True),
        ("beClass", "be", -1, False),
        ("systemClass", "system", 0, False),
    ],
)
def test_enabled_cpu_qos_by_class(qos_class, attribute, identity, expeller):
    slo = parse(resourceQOSStrategy={qos_class: {"cpuQOS": {"enable": True}}})
    assert getattr(slo.resource_qos, attribute).cpu == CPUQoS(
        enable=True, group_identity=identity, core_expeller=expeller
    )


def test_the_system_class_is_never_reset():
    """Unlike the other classes it keeps the values of a block that is not enabled."""
    received = {"cpuQOS": {"groupIdentity": 1}, "memoryQOS": {"pageCacheLimitSize": 1 << 30}}
    system = parse(resourceQOSStrategy={"systemClass": received}).resource_qos.system
    assert system.cpu == CPUQoS(enable=False, group_identity=1)
    assert system.memory == MemoryQoS(page_cache_limit_size=1 << 30)


def test_strategies_take_what_is_given():
    slo = parse(
        cpuBurstStrategy={"policy": "auto"},
        resourceUsedThresholdWithBE={"enable": True, "cpuSuppressThresholdPercent": 80},
    )
    assert slo.cpu_burst == CPUBurst(policy=CPUBurstPolicy.AUTO)
    assert slo.threshold == ResourceThreshold(enable=True, cpu_suppress_threshold_percent=80)


def test_words_of_another_version():
    """They mean what they mean to Koordinator: the default, or nothing that is known here."""
    slo = parse(
        cpuBurstStrategy={"policy": "lots"},
        resourceUsedThresholdWithBE={"cpuSuppressPolicy": "ebpf"},
        resourceQOSStrategy={"policies": {"cpuPolicy": "ebpf", "netQOSPolicy": ""}},
    )
    assert slo.cpu_burst.policy is CPUBurstPolicy.NONE
    assert slo.threshold.cpu_suppress_policy is CPUSuppressPolicy.CPUSET
    assert slo.resource_qos.policies.cpu is None
    assert slo.resource_qos.policies.network is NetQoSPolicy.TC


def test_the_full_example():
    """Every field of the object, under its name on the wire."""
    slo = parse(**FULL_SLO)
    assert slo.threshold == ResourceThreshold(
        enable=True,
        cpu_suppress_min_percent=5,
        memory_evict_threshold_percent=80,
        memory_evict_lower_percent=75,
        memory_allocatable_evict_threshold_percent=110,
        memory_allocatable_evict_lower_percent=100,
        cpu_evict_be_satisfaction_upper_percent=90,
        cpu_evict_be_satisfaction_lower_percent=60,
        cpu_evict_be_usage_threshold_percent=90,
        cpu_evict_time_window_seconds=60,
        cpu_evict_threshold_percent=85,
        cpu_evict_lower_percent=80,
        cpu_allocatable_evict_threshold_percent=110,
        cpu_allocatable_evict_lower_percent=100,
        evict_enabled_priority_threshold=5999,
        allocatable_evict_priority_threshold=7999,
    )
    qos = slo.resource_qos
    assert qos.lsr.memory.min_limit_percent == 100
    assert qos.lsr.network == NetworkQoS(ingress_limit=100, egress_limit=100)
    assert qos.ls.network == NetworkQoS(
        enable=True,
        ingress_request=60,
        ingress_limit=100,
        egress_request="6G",
        egress_limit="10G",
    )
    assert qos.be == QoSClassStrategy(
        cpu=CPUQoS(enable=True, group_identity=-1),
        memory=MemoryQoS(
            enable=True,
            throttling_percent=80,
            wmark_ratio=95,
            wmark_scale_permill=20,
            wmark_min_adj=50,
            page_cache_enable=True,
            page_cache_limit_percent=60,
            page_cache_reclaim_sync=False,
        ),
        resctrl=ResctrlQoS(enable=True, cat_range_end_percent=30),
        blkio=BlkIOQoS(
            enable=True,
            blocks=(
                Block(
                    name="/dev/sdb",
                    type=BlockType.DEVICE,
                    io=IOConfig(
                        read_iops=20480, write_iops=10240, read_bps=100 << 20, write_bps=100 << 20
                    ),
                ),
                Block(
                    name="data-vg", type=BlockType.VOLUME_GROUP, io=IOConfig(io_weight_percent=60)
                ),
            ),
        ),
        network=NetworkQoS(enable=True, ingress_limit=40, egress_limit=40),
    )
    assert qos.cgroup_root.blkio.blocks[0].io == IOConfig(
        read_latency=3000,
        write_latency=3000,
        read_latency_percent=95,
        write_latency_percent=95,
        enable_user_model=True,
        model_read_bps=200 << 20,
        model_write_bps=200 << 20,
        model_read_seq_iops=3000,
        model_write_seq_iops=3000,
        model_read_rand_iops=1500,
        model_write_rand_iops=1500,
    )
    assert slo.system == SystemStrategy(
        min_free_kbytes_factor=100,
        watermark_scale_factor=150,
        memcg_reap_background=0,
        sched_group_identity_enabled=1,
        sched_idle_saver_wmark=600000,
        sched_features={"ID_ABSOLUTE_EXPEL": True},
        page_cache_limit_enabled=1,
        total_network_bandwidth=Quantity.parse("10G"),
    )
    assert [one.name for one in slo.host_applications] == ["nginx"]


def test_a_bad_section_keeps_its_last_good_value():
    """The others change all the same, and the message names the field."""
    last, _ = merge_nodeslo(
        {"spec": {"cpuBurstStrategy": {"policy": "auto"}, "hostApplications": [{"name": "a"}]}}
    )
    slo, problems = merge_nodeslo(
        {
            "spec": {
                "cpuBurstStrategy": {"policy": "none", "cpuBurstPercent": "many"},
                "resourceUsedThresholdWithBE": {"enable": True},
                "hostApplications": [{"name": "../b"}],
            }
        },
        last,
    )
    assert slo.cpu_burst.policy is CPUBurstPolicy.AUTO
    assert slo.host_applications == (HostApplication("a"),)
    assert slo.threshold.enable
    assert [problem.where for problem in problems] == [
        "nodeSLO.spec.hostApplications[0].name",
        "nodeSLO.spec.cpuBurstStrategy.cpuBurstPercent",
    ]


@pytest.mark.parametrize(
    ("section", "value", "message"),
    [
        ("resourceUsedThresholdWithBE", [], "resourceUsedThresholdWithBE: wanted an object"),
        ("resourceUsedThresholdWithBE", {"enable": "true"}, "enable: wanted true or false"),
        ("resourceUsedThresholdWithBE", {"enable": 1}, "enable: wanted true or false"),
        ("resourceUsedThresholdWithBE", {"cpuSuppressPolicy": 1}, "cpuSuppressPolicy: wanted a te"),
        (
            "resourceUsedThresholdWithBE",
            {"cpuSuppressThresholdPercent": 65.0},
            "cpuSuppressThresholdPercent: wanted a whole number",
        ),
        (
            "resourceUsedThresholdWithBE",
            {"cpuSuppressThresholdPercent": 101},
            "cpuSuppressThresholdPercent: wanted 0 to 100, found 101",
        ),
        (
            "resourceUsedThresholdWithBE",
            {"evictEnabledPriorityThreshold": 2**31},
            "evictEnabledPriorityThreshold: wanted a whole number of 32 bits",
        ),
        (
            "resourceUsedThresholdWithBE",
            {"memoryEvictThresholdPercent": -1},
            "memoryEvictThresholdPercent: wanted 0 to 100, found -1",
        ),
        (
            "resourceUsedThresholdWithBE",
            {"memoryEvictLowerPercent": 71},
            "Lower.* at most memoryEvictThresholdPercent, which is 70, found 71",
        ),
        (
            "resourceUsedThresholdWithBE",
            {"cpuEvictLowerPercent": 90, "cpuEvictThresholdPercent": 80},
            "cpuEvictLowerPercent: wanted at most cpuEvictThresholdPercent, which is 80",
        ),
        (
            "resourceUsedThresholdWithBE",
            {
                "cpuAllocatableEvictLowerPercent": 120,
                "cpuAllocatableEvictThresholdPercent": 110,
            },
            "wanted at most cpuAllocatableEvictThresholdPercent, which is 110, found 120",
        ),
        (
            "resourceUsedThresholdWithBE",
            {
                "cpuEvictBESatisfactionLowerPercent": 60,
                "cpuEvictBESatisfactionUpperPercent": 40,
            },
            "wanted at most cpuEvictBESatisfactionUpperPercent, which is 40, found 60",
        ),
        ("resourceQOSStrategy", {"beClass": []}, "beClass: wanted an object"),
        (
            "resourceQOSStrategy",
            {"beClass": {"cpuQOS": {"groupIdentity": True}}},
            "resourceQOSStrategy.beClass.cpuQOS.groupIdentity: wanted a whole number",
        ),
        (
            "resourceQOSStrategy",
            {"beClass": {"blkioQOS": {"blocks": [{}, {"ioCfg": {"readIOPS": -1}}]}}},
            r"blocks\[1\].ioCfg.readIOPS: wanted 0 or more",
        ),
        ("resourceQOSStrategy", {"beClass": {"blkioQOS": {"blocks": {}}}}, "blocks: wanted a list"),
        (
            "resourceQOSStrategy",
            {"lsClass": {"networkQOS": {"egressLimit": 1.5}}},
            "egressLimit: wanted a whole number or a text",
        ),
        ("systemStrategy", {"totalNetworkBandwidth": "fast"}, "Bandwidth: wanted a quantity"),
        ("systemStrategy", {"schedFeatures": {"a": 1}}, "schedFeatures.a: wanted true or false"),
        ("systemStrategy", {"schedFeatures": []}, "schedFeatures: wanted an object"),
        ("systemStrategy", {"watermarkScaleFactor": 2**63}, "whole number of 64 bits"),
    ],
)
def test_what_a_section_refuses(section, value, message):
    with pytest.raises(InvalidObject, match=message):
        parse(**{section: value})


@pytest.mark.parametrize("obj", [None, [], "x", {"spec": []}, {"spec": "x"}])
def test_no_nodeslo_at_all(obj):
    """There is no section that could be read; the caller keeps what it has."""
    with pytest.raises(InvalidObject):
        merge_nodeslo(obj, NodeSLO())


def test_the_keys_of_the_api_server_are_case_sensitive():
    assert not parse(resourceUsedThresholdWithBE={"Enable": True}).threshold.enable


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
SECTIONS = (
    "resourceUsedThresholdWithBE",
    "resourceQOSStrategy",
    "cpuBurstStrategy",
    "systemStrategy",
    "hostApplications",
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(SECTIONS, JSON)))
def test_any_json_is_merged_or_refused_by_section(spec):
    """A section is either taken or named, and nothing but InvalidObject is ever raised."""
    slo, problems = merge_nodeslo({"spec": spec})
    refused = {problem.where.split(".")[2].split("[")[0] for problem in problems}
    assert refused <= spec.keys()
    assert len(refused) == len(problems)
    assert "resourceUsedThresholdWithBE" not in refused or slo.threshold == ResourceThreshold()


@given(JSON)
def test_any_json_is_a_nodeslo_or_refused(obj):
    with contextlib.suppress(InvalidObject):
        merge_nodeslo(obj)


@given(st.dictionaries(st.sampled_from(["lsrClass", "lsClass", "beClass"]), st.just({})))
def test_a_disabled_class_never_shows_recommended_values(classes):
    qos = parse(resourceQOSStrategy=classes).resource_qos
    assert qos == ResourceQoS()


def test_python_values_survive_the_wire():
    """Dumping and loading are each other's inverse."""
    assert RESOURCE_QOS.load(RESOURCE_QOS.dump(RECOMMENDED)) == RECOMMENDED
