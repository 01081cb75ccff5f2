"""Candidates for eviction and their order: the tables of Koordinator's rules."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.pod import Pod
from koord.api.qos import KubeQoS
from koordlet_plugins.eviction.plan import (
    EVICTION_POLICY,
    allows,
    best_effort,
    by_priority,
    by_share,
    eviction_priority,
    label_priority,
    offered,
)

OFFERED = {"koordinator.sh/eviction-enabled": "true"}
BE = {"koordinator.sh/qosClass": "BE"}


def pod(name: str, **fields) -> Pod:
    fields = {"phase": "Running", "qos": KubeQoS.BURSTABLE, "labels": OFFERED, **fields}
    return Pod("jobs", name, f"uid-{name}", **fields)


def names(pods) -> list[str]:
    return [each.name for each in pods]


@pytest.mark.parametrize(
    ("policy", "allowed"),
    [
        (None, True),
        ('["MemoryEvict"]', True),
        ('["CPUEvict", "MemoryEvict"]', True),
        ('["CPUEvict"]', False),
        ('["memoryevict"]', False),
        ("[]", False),
        ("", False),
        ("MemoryEvict", False),
        ('"MemoryEvict"', False),
        ('{"MemoryEvict": true}', False),
        ('["MemoryEvict", 5]', False),
        ('[null, "MemoryEvict"]', True),
        ("[null]", False),
        ("[" * 5000, False),
    ],
)
def test_a_policy_names_the_features_that_may_evict(policy, allowed):
    """Without one every feature may; one that cannot be read allows nothing."""
    annotations = {} if policy is None else {EVICTION_POLICY: policy}
    assert allows(pod("a", annotations=annotations), "MemoryEvict") is allowed


@given(st.text() | st.recursive(st.none() | st.text(), st.lists).map(json.dumps))
def test_any_policy_is_understood_or_allows_nothing(policy):
    """Whatever a pod's owner writes."""
    found = pod("a", annotations={EVICTION_POLICY: policy})
    try:
        listed = json.loads(policy)
    except ValueError:
        listed = None
    named = isinstance(listed, list) and all(
        each is None or isinstance(each, str) for each in listed
    )
    assert allows(found, "MemoryEvict") is (named and "MemoryEvict" in listed)


@given(st.text() | st.integers().map(str))
def test_any_priority_is_a_number_in_range(text):
    """Whatever a pod's owner writes."""
    found = pod(
        "a",
        annotations={"koordinator.sh/eviction-priority": text},
        labels={"koordinator.sh/priority": text},
    )
    assert -(2**31) <= eviction_priority(found) < 2**31
    assert -(2**63) <= label_priority(found) < 2**63


@pytest.mark.parametrize(
    ("text", "rank"),
    [("-1", -1), ("100", 100), ("+5", 5), ("2147483647", 2**31 - 1), ("2147483648", 0),
     ("1.5", 0), (" 1", 0), ("0x10", 0), ("", 0), ("٣", 0), ("9" * 4000, 0)],
)  # fmt: skip
def test_the_eviction_priority_is_a_whole_number_of_32_bits(text, rank):
    """Anything else counts as 0."""
    annotations = {"koordinator.sh/eviction-priority": text}
    assert eviction_priority(pod("a", annotations=annotations)) == rank


@pytest.mark.parametrize(("text", "rank"), [("2000", 2000), ("-3", -3), ("high", 5500), ("", 5500)])
def test_the_priority_label_ranks_within_a_priority(text, rank):
    """Without a valid one the pod's priority stands for it."""
    found = pod("a", priority=5500, labels={"koordinator.sh/priority": text})
    assert label_priority(found) == rank


@pytest.mark.parametrize(
    ("fields", "chosen"),
    [
        ({}, True),
        ({"qos": KubeQoS.BEST_EFFORT}, True),
        ({"labels": {}, "qos": KubeQoS.BEST_EFFORT}, False),
        ({"labels": {"koordinator.sh/qosClass": "LS"}}, False),
        ({"phase": "Succeeded"}, False),
        ({"phase": "Pending"}, True),
        ({"phase": ""}, False),
        ({"annotations": {EVICTION_POLICY: '["CPUEvict"]'}}, False),
    ],
)
def test_best_effort_victims_carry_the_label(fields, chosen):
    """Kubernetes' own BestEffort class is not enough; ended pods have nothing to give."""
    found = best_effort([pod("a", **{"labels": BE, **fields})], "BEMemoryEvict")
    assert names(found) == ["a"] * chosen


@pytest.mark.parametrize(
    ("fields", "chosen"),
    [
        ({"priority": 3000}, True),
        ({"priority": 3001}, False),
        ({"priority": None}, False),  # of class prod by default: 9500
        ({"priority": 100, "labels": {}}, False),
        ({"priority": 100, "labels": {"koordinator.sh/eviction-enabled": "True"}}, False),
        ({"priority": 100, "phase": "Failed"}, False),
        ({"priority": 100, "annotations": {EVICTION_POLICY: "[]"}}, False),
    ],
)
def test_offered_victims_are_up_to_a_priority(fields, chosen):
    """They carry the label that offers them, too."""
    assert names(offered([pod("a", **fields)], "MemoryEvict", 3000)) == ["a"] * chosen


def ranked(name: str, rank: str, priority: int | None = None) -> Pod:
    return pod(name, priority=priority, annotations={"koordinator.sh/eviction-priority": rank})


def test_owners_rank_comes_before_priority():
    """An invalid rank is 0, so that priorities decide among those."""
    pods = [
        ranked("last", "100", 5),
        ranked("third", "never", 120),
        pod("second", priority=100),
        ranked("first", "-1", 9000),
    ]
    assert names(by_priority(pods, lambda _: 0)) == ["first", "second", "third", "last"]


def test_equal_ranks_go_by_priority_label_and_size():
    """The larger one of two equals goes first."""
    used = {"large": 11, "small": 10, "p2": 1, "p3": 5, "p4": 2}

    def labelled(name: str, label: str) -> Pod:
        return pod(name, priority=120, labels={**OFFERED, "koordinator.sh/priority": label})

    pods = [
        labelled("p4", "4000"), labelled("p2", "2000"), labelled("p3", "3000"),
        pod("small", priority=100), pod("large", priority=100),
    ]  # fmt: skip
    order = names(by_priority(pods, lambda pod: used[pod.name]))
    assert order == ["large", "small", "p2", "p3", "p4"]


@pytest.mark.parametrize(
    ("used", "order"),
    [
        ({"a": 5, "b": 20, "c": 10}, ["b", "a", "c"]),  # c has the higher priority
        ({"a": 0, "b": 7, "c": 10}, ["b", "a", "c"]),
        ({"a": 0, "b": 0, "c": 0}, ["b", "a", "c"]),
    ],
)
def test_best_effort_victims_go_by_priority_and_share(used, order):
    """Among those who use nothing the last name goes first."""
    pods = [pod("a", priority=100), pod("b", priority=100), pod("c", priority=120)]
    assert names(by_share(pods, lambda pod: used[pod.name])) == order


def test_orders_do_not_depend_on_the_order_of_the_list():
    """Pods with and without a priority have one order among them."""
    rng = random.Random(7)
    pods = [pod(f"p{n}", priority=rng.choice([None, 100, 5500]), labels=BE) for n in range(12)]
    share = {each.name: rng.choice([0, 1, 2]) for each in pods}
    orders = set()
    for _ in range(20):
        rng.shuffle(pods)
        by_both = (by_share, by_priority)
        orders.add(tuple(tuple(names(by(pods, lambda p: share[p.name]))) for by in by_both))
    assert len(orders) == 1
