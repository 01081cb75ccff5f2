"""One bad report does not take what a node offers."""

from dataclasses import replace

from koord_manager.framework.calculator import History, doubts
from koord_manager_plugins.colocation import BATCH_CPU
from tests.support.manager import (
    calculator,
    facts,
    node,
    pod_usage,
    quantities,
    report,
    topology,
    usage,
)

WHOLE = quantities(cpu=100, memory="100G")
FULL = {"cpuReclaimThresholdPercent": 100, "memoryReclaimThresholdPercent": 100}


def seen(used, *, age=0.0, node_usage=None, system=True):
    metric = report(
        node=node_usage or usage(used, "1G"),
        system=usage(0, 0) if system else None,
        pods=[pod_usage("prod", used, "1G")],
        age=age,
    )
    return facts(node(WHOLE), metric=metric, strategy=FULL)


def batch(made, found, history):
    offered = made.calculate(found, history).resources[BATCH_CPU]
    return offered.amount, offered.reason


def test_a_large_decrease_waits_for_a_second_report():
    made, history = calculator("BatchResource"), History()
    assert batch(made, seen(10, age=120), history) == (90000, "")

    first = batch(made, seen(95, age=60), history)
    again = batch(made, seen(95, age=60), history)
    agreed = batch(made, seen(95, age=0), history)

    assert first[0] == again[0] == 63000
    assert "a second report" in first[1]
    assert agreed == (5000, "")


def test_zones_are_bounded_as_their_node():
    made, history = calculator("BatchResource"), History()

    def zone(used, age):
        found = seen(used, age=age)
        zoned = facts(node(WHOLE), topology=topology((100, "100G")), strategy=FULL).topology
        result = made.calculate(replace(found, topology=zoned), history)
        return str(result.zones["node-0"][BATCH_CPU])

    assert [zone(10, 180), zone(95, 120), zone(95, 120), zone(95, 60)] == [
        "90k", "63k", "63k", "5k",
    ]  # fmt: skip
    assert zone(5, 0) == "95k"


def test_after_a_restart_a_zone_says_what_it_offered():
    made = calculator("BatchResource")
    found = topology((100, "100G"))
    texts = dict.fromkeys(("capacity", "allocatable", "available"), "90k")
    found["zones"][0]["resources"].append({"name": BATCH_CPU, **texts})
    zoned = facts(node(WHOLE), topology=found, strategy=FULL).topology

    result = made.calculate(replace(seen(99), topology=zoned), History())

    assert str(result.zones["node-0"][BATCH_CPU]) == "63k"


def test_a_small_decrease_and_any_increase_count_at_once():
    made, history = calculator("BatchResource"), History()
    batch(made, seen(10, age=120), history)

    assert batch(made, seen(30, age=60), history) == (70000, "")
    assert batch(made, seen(5, age=0), history) == (95000, "")


def test_a_peak_of_one_report_leaves_most_of_it():
    made, history = calculator("BatchResource"), History()
    amounts = [
        batch(made, seen(used, age=180 - 60 * at), history)[0]
        for at, used in enumerate((10, 100, 10, 100))
    ]

    assert amounts == [90000, 63000, 90000, 63000]


def test_doubtful_reports_neither_agree_nor_raise():
    made, history = calculator("BatchResource"), History()
    batch(made, seen(50, age=300), history)
    absurd = usage(5000, "1G")

    low = [batch(made, seen(99, age=240 - 60 * at, node_usage=absurd), history) for at in range(2)]
    high = batch(made, seen(1, age=100, system=False), history)
    good = [batch(made, seen(99, age=60 - 60 * at), history)[0] for at in range(2)]

    assert [amount for amount, _ in low] == [35000, 24500]
    assert "5000 cores in use" in low[0][1]
    assert high[0] == 24500
    assert good == [17150, 1000]


def test_another_strategy_or_capacity_counts_at_once():
    made, history = calculator("BatchResource"), History()
    batch(made, seen(10, age=60), history)
    found = seen(10, age=60)
    smaller = replace(found, strategy=replace(found.strategy, cpu_reclaim_threshold_percent=20))

    assert batch(made, smaller, history) == (10000, "")


def test_after_a_restart_the_node_says_what_it_offered():
    made = calculator("BatchResource")
    text = f'{{"resources":{{"{BATCH_CPU}":"90k"}}}}'
    before = node(WHOLE, annotations={"node.koordinator.sh/originExtendedAllocatable": text})
    found = replace(seen(99), node=facts(before).node)

    assert batch(made, found, History())[0] == 63000


def test_a_hundred_percent_is_as_koordinator():
    made, history = calculator("BatchResource", percent=100), History()
    batch(made, seen(10, age=60), history)

    assert batch(made, seen(95), history) == (5000, "")


def test_what_cannot_be_right_is_doubtful():
    assert doubts(seen(10)) == ()
    assert doubts(seen(10, age=-120)) == ("its time is 120 s in the future",)
    assert "node: 200 cores in use" in doubts(seen(200))
    assert doubts(seen(10, system=False)) == ("the usage of the system is missing",)
    assert doubts(facts(node(WHOLE))) == ()
