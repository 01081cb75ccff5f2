"""MidResource: the worked cases M1 to M10 of Koordinator's tables."""

import pytest

from koord_manager_plugins.colocation import MID_CPU, MID_MEMORY, _unallocated, capacity
from tests.support.manager import (
    calculate,
    facts,
    host_usage,
    node,
    pod,
    pod_usage,
    quantities,
    report,
    usage,
)

G = 10**9
NODE = node(quantities(cpu=100, memory="210G"), quantities(cpu=100, memory="200G"))
PODS = [pod("prod", quantities(cpu=20, memory="40G"), qos="LS"), pod("batch", qos="BE")]
CAPS = {"midCPUThresholdPercent": 10, "midMemoryThresholdPercent": 20}


def static(percent: int) -> dict[str, object]:
    return {
        "midReclaimMode": "static",
        "midStaticCPUReservedPercent": percent,
        "midStaticMemoryReservedPercent": percent,
        **CAPS,
    }


CASES = {
    "M1": ({}, usage(20, "45G"), usage(10, "15G"), 10000, 15),
    "M2": ({**CAPS, "midUnallocatedPercent": 10}, usage(30, "50G"), usage(15, "30G"), 10000, 42),
    "M3": ({}, usage(30, "50G"), None, 0, 0),
    "M4": (static(10), usage(30, "50G"), None, 10000, 21),
    "M5": (static(100), usage(30, "50G"), None, 10000, 42),
    "M6": ({}, None, usage(20, "20G"), 0, 0),
    "M7": ({}, usage(90, "200G"), usage(20, "20G"), 10000, 10),
}


@pytest.mark.parametrize("case", CASES)
def test_mid_amounts(case):
    strategy, used, reclaimable, cpu, memory_g = CASES[case]
    metric = report(node=used, system=usage(0, 0), reclaimable=reclaimable)

    result = calculate(facts(NODE, PODS, metric, strategy=strategy), "MidResource")

    found = tuple(result.resources[name].amount for name in (MID_CPU, MID_MEMORY))
    assert found == (cpu, memory_g * G)


@pytest.mark.parametrize(
    ("priority", "cpu", "memory_g"),
    [("koord-prod", 75, 155), ("koord-mid", 80, 160), ("koord-batch", 80, 160)],
    ids=["M8", "M9 mid", "M9 batch"],
)
def test_only_host_applications_of_prod_take_of_what_is_unallocated(priority, cpu, memory_g):
    metric = report(system=usage(0, 0), hosts=[host_usage(5, "15G", priority)])
    found = facts(NODE, PODS, metric)

    unallocated = _unallocated(found, capacity(found))

    assert (unallocated.milli_cores, unallocated.memory_bytes) == (cpu * 1000, memory_g * G)
    offered = calculate(found, "MidResource").resources
    assert [offered[name].amount for name in (MID_CPU, MID_MEMORY)] == [0, 0]


def test_m10_mid_of_the_fixture_of_batch():
    pods = [
        pod("a", quantities(cpu=20, memory="20G"), qos="LS"),
        pod("c", [quantities(cpu=10, memory="20G")] * 2, phase="Pending"),
    ]
    metric = report(
        node=usage(50, "55G"),
        system=usage(7, "12G"),
        pods=[pod_usage("a", 11, "11G"), pod_usage("c", 22, "22G")],
        reclaimable=usage(10, "20G"),
    )
    found = facts(node(quantities(cpu=100, memory="120G")), pods, metric)

    result = calculate(found, "MidResource")

    assert result.resources[MID_CPU].amount == 10000
    assert result.resources[MID_MEMORY].amount == 20 * G
    left = _unallocated(found, capacity(found))
    assert (left.milli_cores, left.memory_bytes) == (53000, 48 * G)


def test_an_old_report_offers_nothing():
    result = calculate(facts(NODE, PODS, report(age=901)), "MidResource")

    assert result.resources[MID_CPU].amount is None
    assert "901 s old" in result.resources[MID_CPU].reason
