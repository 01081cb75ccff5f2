"""BatchResource: the worked cases B1 to B28 of Koordinator's tables."""

from dataclasses import replace

import pytest

from koord.api.quantity import Quantity
from koord_manager.framework.calculator import ORIGIN
from koord_manager_plugins.colocation import BATCH_CPU, BATCH_MEMORY, THIRD_PARTY
from tests.support.manager import (
    calculate,
    config,
    facts,
    host_usage,
    node,
    pod,
    pod_usage,
    quantities,
    report,
    topology,
    usage,
)

RESERVATION = "node.koordinator.sh/reservation"
G = 10**9
WHOLE = quantities(cpu=100, memory="120G")
F_PODS = [
    pod("a", quantities(cpu=20, memory="20G"), qos="LS"),
    pod("b", qos="BE"),
    pod("c", [quantities(cpu=10, memory="20G")] * 2, phase="Pending"),
    pod("d", qos="BE", phase="Succeeded"),
]
F_USAGES = [
    pod_usage("a", 11, "11G"),
    pod_usage("b", 10, "10G", "koord-batch"),
    pod_usage("c", 22, "22G", ""),
]
F_REPORT = report(node=usage(50, "55G"), system=usage(7, "12G"), pods=F_USAGES)
RECLAIM = {"cpuReclaimThresholdPercent": 65, "memoryReclaimThresholdPercent": 65}


def reclaim(cpu: int, memory: int, **more: object) -> dict[str, object]:
    return {"cpuReclaimThresholdPercent": cpu, "memoryReclaimThresholdPercent": memory, **more}


def amounts(result):
    return tuple(result.resources[name].amount for name in (BATCH_CPU, BATCH_MEMORY))


def on_f(strategy, *, allocatable=None, reservation=None, metric=F_REPORT, cluster=None, **more):
    annotations = {RESERVATION: reservation} if reservation else {}
    manifest = node(WHOLE, allocatable, annotations=annotations, **more)
    return facts(manifest, F_PODS, metric, strategy=strategy, cluster=cluster)


B1_TO_B13 = {
    "B1": (RECLAIM, {}, 25000, 33),
    "B2": (RECLAIM, {"reservation": '{"reservedCPUs":"0-1"}'}, 25000, 33),
    "B3": (RECLAIM, {"reservation": '{"reservedCPUs":"0-19"}'}, 12000, 33),
    "B4": (
        RECLAIM,
        {"reservation": '{"resources":{"cpu":"20"},"reservedCPUs":"0-9"}'},
        22000,
        33,
    ),
    "B5": (RECLAIM, {"reservation": '{"resources":{"memory":"20G"}}'}, 25000, 25),
    "B6": (
        RECLAIM,
        {
            "allocatable": quantities(cpu=90, memory="100G"),
            "reservation": '{"resources":{"cpu":"2","memory":"5G"}}',
        },
        22000,
        25,
    ),
    "B7": (reclaim(70, 80, memoryCalculatePolicy="request"), {}, 30000, 36),
    "B8": (
        reclaim(70, 80, memoryCalculatePolicy="request"),
        {
            "allocatable": quantities(cpu=90, memory="100G"),
            "reservation": '{"resources":{"memory":"5G"}}',
        },
        27000,
        16,
    ),
    "B9": (
        reclaim(70, 80, cpuCalculatePolicy="maxUsageRequest", memoryCalculatePolicy="request"),
        {},
        21000,
        36,
    ),
    "B10": (
        reclaim(150, 120, cpuCalculatePolicy="maxUsageRequest", memoryCalculatePolicy="request"),
        {},
        101000,
        84,
    ),
    "B11": (
        reclaim(
            150,
            120,
            cpuCalculatePolicy="maxUsageRequest",
            memoryCalculatePolicy="request",
            batchCPUThresholdPercent=100,
        ),
        {},
        100000,
        84,
    ),
    "B12": (reclaim(150, 120, memoryCalculatePolicy="maxUsageRequest"), {}, 110000, 72),
    "B13": (
        reclaim(
            150,
            120,
            memoryCalculatePolicy="maxUsageRequest",
            batchCPUThresholdPercent=100,
            batchMemoryThresholdPercent=100,
        ),
        {},
        100000,
        72,
    ),
}


@pytest.mark.parametrize("case", B1_TO_B13)
def test_node_amounts_follow_the_policies_and_reservations(case):
    strategy, setting, cpu, memory_g = B1_TO_B13[case]

    result = calculate(on_f(strategy, **setting), "BatchResource")

    assert amounts(result) == (cpu, memory_g * G)
    assert not result.problems


def test_b14_host_applications_of_prod_count_as_system():
    metric = report(
        node=usage(50, "55G"),
        system=usage(4, "6G"),
        pods=F_USAGES,
        hosts=[host_usage(3, "6G", "koord-prod"), host_usage(9, "9G", "koord-batch")],
    )

    assert amounts(calculate(on_f(RECLAIM, metric=metric), "BatchResource")) == (25000, 33 * G)


def test_b15_the_first_matching_entry_for_nodes_counts():
    entry = {"nodeSelector": {"matchLabels": {"xxx": "yyy"}}, **reclaim(70, 70)}
    cluster = config(colocation_config={"enable": True, **RECLAIM, "nodeConfigs": [entry]})

    found = on_f(None, cluster=cluster, labels={"xxx": "yyy"})

    assert amounts(calculate(found, "BatchResource")) == (30000, 39 * G)


def test_b16_a_pod_without_report_counts_with_its_request():
    small = node(quantities(cpu=20, memory="40G"))
    pods = [pod("a", quantities(cpu=20, memory="20G"), qos="LS")]

    result = calculate(facts(small, pods, report(), strategy=RECLAIM), "BatchResource")

    assert amounts(result) == (0, 6 * G)


G_PODS = [
    pod("p", quantities(cpu=10, memory="10G"), qos="LS"),
    pod("q", quantities(cpu=10, memory="10G"), priority=9999),
    pod("r", qos="BE"),
    pod("s", [quantities(cpu=10, memory="20G")] * 2, qos="BE", priority=7000),
    pod("t", qos="BE", phase="Succeeded"),
]
G_USAGES = [
    pod_usage("p", 5, "5G"),
    pod_usage("q", 6, "6G"),
    pod_usage("r", 10, "10G", "koord-batch"),
    pod_usage("s", 22, "22G", "koord-mid"),
]
NUMA_0 = {"scheduling.koordinator.sh/resource-status": '{"numaNodeResources":[{"node":0}]}'}
TWO_ZONES = topology((50, "62G"), (50, "58G"))


def on_g(first, *, usages=G_USAGES, strategy=RECLAIM, zones=None):
    metric = report(node=usage(50, "55G"), system=usage(7, "12G"), pods=usages)
    return facts(node(WHOLE), [first, *G_PODS[1:]], metric, strategy=strategy, topology=zones)


def first(qos, **more):
    return pod("p", quantities(cpu=10, memory="10G"), qos=qos, **more)


def zones_of(result):
    return {
        name: (found[BATCH_CPU].milli // 1000, found[BATCH_MEMORY].integer)
        for name, found in result.zones.items()
    }


def test_b17_prod_and_mid_pods_count_with_usage():
    result = calculate(on_g(first("LS")), "BatchResource")

    assert amounts(result) == (25000, 33 * G)
    assert result.zones == {}


def test_b18_cpus_of_an_lse_pod_are_never_offered():
    assert amounts(calculate(on_g(first("LSE")), "BatchResource")) == (20000, 33 * G)


def test_b19_one_zone_is_as_the_node():
    result = calculate(on_g(first("LS"), zones=topology((100, "120G"))), "BatchResource")

    assert zones_of(result) == {"node-0": (25000, 33 * G)}


def test_b20_a_pod_counts_on_the_numa_node_that_was_chosen_for_it():
    result = calculate(on_g(first("LS", annotations=NUMA_0), zones=TWO_ZONES), "BatchResource")

    assert amounts(result) == (25000, 33 * G)
    assert zones_of(result) == {
        "node-0": (10000, 15_300_000_000),
        "node-1": (15000, 17_700_000_000),
    }


REQUEST = {**RECLAIM, "memoryCalculatePolicy": "request"}


def test_b21_zones_by_requests_of_memory():
    found = on_g(first("LSE", annotations=NUMA_0), strategy=REQUEST, zones=TWO_ZONES)

    result = calculate(found, "BatchResource")

    assert amounts(result) == (20000, 18 * G)
    assert zones_of(result) == {"node-0": (5000, 5_300_000_000), "node-1": (15000, 12_700_000_000)}


def test_b22_usage_of_no_known_pod_counts_unless_it_is_batch():
    usages = [
        *G_USAGES[1:],
        pod_usage("gone", 2, "4G"),
        pod_usage("away", 4, "8G"),
        pod_usage("batch-gone", 8, "8G", "koord-batch"),
    ]

    result = calculate(
        on_g(first("LSE", annotations=NUMA_0), usages=usages, strategy=REQUEST, zones=TWO_ZONES),
        "BatchResource",
    )

    assert amounts(result) == (14000, 18 * G)
    assert zones_of(result) == {"node-0": (2000, 5_300_000_000), "node-1": (12000, 12_700_000_000)}


def third_party(cpu, memory):
    return (
        '{"allocations":[{"name":"yarn","priority":"koord-batch","resources":'
        f'{{"{BATCH_CPU}":"{cpu}","{BATCH_MEMORY}":"{memory}"}}}}]}}'
    )


BIG = quantities(cpu=50, memory="120Gi")
FULL = {**reclaim(100, 100)}
B23_TO_B24 = {"B23": ("10000", "10Gi", 40000, 110), "B24": ("60000", "120Gi", 0, 0)}


@pytest.mark.parametrize("case", B23_TO_B24)
def test_what_third_parties_have_is_subtracted(case):
    cpu, memory, left, left_gi = B23_TO_B24[case]
    found = node(BIG, annotations={THIRD_PARTY: third_party(cpu, memory)})

    result = calculate(facts(found, [], report(), strategy=FULL), "BatchResource")

    assert amounts(result) == (left, left_gi << 30)
    assert result.annotations[ORIGIN] == (
        f'{{"resources":{{"{BATCH_CPU}":"50k","{BATCH_MEMORY}":"120Gi"}}}}'
    )


def test_b25_a_reset_removes_the_keys_whatever_third_parties_have():
    found = node(BIG, annotations={THIRD_PARTY: third_party("10000", "10Gi")})

    result = calculate(facts(found, [], None, strategy=FULL), "BatchResource")

    assert amounts(result) == (None, None)
    assert result.annotations[ORIGIN] == (
        f'{{"resources":{{"{BATCH_CPU}":"0","{BATCH_MEMORY}":"0"}}}}'
    )


def test_third_parties_that_cannot_be_read_take_nothing_and_are_named():
    found = node(BIG, annotations={THIRD_PARTY: "{"})

    result = calculate(facts(found, [], report(), strategy=FULL), "BatchResource")

    assert amounts(result) == (50000, 120 << 30)
    assert THIRD_PARTY in result.problems[0]


def test_b26_the_normalization_ratio_multiplies_cpu_of_node_and_zones():
    found = facts(
        node(
            quantities(cpu=25, memory="50G"),
            annotations={"node.koordinator.sh/cpu-normalization-ratio": "1.20"},
        ),
        [],
        report(),
        strategy=FULL,
        topology=topology((15, "30G"), (10, "20G")),
    )

    result = calculate(found, "BatchResource")

    assert amounts(result) == (30000, 50 * G)
    assert zones_of(result) == {"node-0": (18000, 30 * G), "node-1": (12000, 20 * G)}


def test_b27_cpu_is_rounded_up_on_the_node_and_exact_in_zones():
    found = facts(
        node(
            quantities(cpu="25001m", memory="1G"),
            annotations={"node.koordinator.sh/cpu-normalization-ratio": "1.20"},
        ),
        [],
        report(),
        strategy=FULL,
        topology=topology(("25001m", "1G")),
    )

    result = calculate(found, "BatchResource")

    assert amounts(result)[0] == 30002
    assert str(result.zones["node-0"][BATCH_CPU]) == str(Quantity.parse("30001200m"))


@pytest.mark.parametrize(
    ("metric", "is_offered"),
    [
        (None, False),
        (report(age=None), False),
        (report(age=15 * 60 + 1), False),
        (report(age=15 * 60), True),
    ],
    ids=["no NodeMetric", "no time", "too old", "just old enough"],
)
def test_b28_without_a_fresh_report_nothing_is_offered(metric, is_offered):
    result = calculate(facts(node(WHOLE), [], metric, strategy=RECLAIM), "BatchResource")

    assert (amounts(result) != (None, None)) is is_offered
    assert bool(result.resources[BATCH_CPU].reason) is not is_offered


def test_zones_are_reset_with_the_node():
    stored = topology((50, "62G"))
    stored["zones"][0]["resources"].append(
        {"name": BATCH_CPU, "capacity": "1k", "allocatable": "1k", "available": "1k"}
    )

    result = calculate(facts(node(WHOLE), [], None, topology=stored), "BatchResource")

    assert result.zones == {"node-0": {BATCH_CPU: None, BATCH_MEMORY: None}}


def test_s6_a_cluster_where_colocation_is_disabled_offers_nothing():
    cluster = config(
        colocation_config={"enable": False, "nodeConfigs": [{"nodeSelector": {}, "enable": True}]}
    )

    result = calculate(facts(node(WHOLE), F_PODS, F_REPORT, cluster=cluster), "BatchResource")

    assert amounts(result) == (None, None)
    assert result.resources[BATCH_CPU].reason == "colocation is disabled"


def test_a_pod_without_report_counts_with_its_request_in_every_policy():
    strategy = {**FULL, "cpuCalculatePolicy": "maxUsageRequest"}
    pods = [pod("a", quantities(cpu=20, memory="20G"))]

    result = calculate(facts(node(WHOLE), pods, report(), strategy=strategy), "BatchResource")

    assert amounts(result)[0] == 80000


def test_a_report_of_the_future_ages_from_when_it_was_seen():
    found = facts(node(WHOLE), [], report(age=-7200), strategy=RECLAIM)

    assert replace(found, seen=found.now - 899).stale == ""
    assert replace(found, seen=found.now - 901).stale


def test_mid_pods_count_with_their_mid_requests():
    mid = pod(
        "m",
        {"kubernetes.io/mid-cpu": "4000", "kubernetes.io/mid-memory": "8G"},
        priority=7000,
    )

    result = calculate(facts(node(WHOLE), [mid], report(), strategy=FULL), "BatchResource")

    assert amounts(result) == (96000, 112 * G)


def test_the_kubelets_share_is_that_before_amplification():
    raw = {"node.koordinator.sh/raw-allocatable": '{"cpu":"90","memory":"120G"}'}
    amplified = node(WHOLE, quantities(cpu=135, memory="120G"), annotations=raw)

    result = calculate(facts(amplified, [], report(), strategy=FULL), "BatchResource")

    assert amounts(result) == (90000, 120 * G)


def test_terms_say_what_takes_off():
    result = calculate(on_f(RECLAIM), "BatchResource")

    assert [(one.name, one.amount) for one in result.resources[BATCH_CPU].terms] == [
        ("capacity", 100000),
        ("safety margin", -35000),
        ("system usage or reservation", -7000),
        ("usage of prod pods", -33000),
    ]
