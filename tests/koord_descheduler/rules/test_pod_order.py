"""The order of spec 06 §5.9, key by key."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.qos import KoordPriorityClass, QoSClass
from koord.cluster.facts import ClusterPod, LabelSet, PodSpec
from koord_descheduler.rules.evictorfilter import (
    DELETION_COST,
    EVICTION_COST,
    PodOrder,
    cost,
    eviction_order,
    priority_class_of,
    qos_of,
)


def pod(labels: dict[str, str] | None = None, **facts: Any) -> ClusterPod:
    requests = facts.pop("requests", (("cpu", 100),))
    annotations = tuple(facts.pop("annotations", {}).items())
    return ClusterPod(
        name="p",
        uid="u",
        label_set=LabelSet("default", labels or {}),
        spec=PodSpec(requests=requests),
        annotations=annotations,
        **{"qos": "Burstable", **facts},
    )


def classed(name: str, **facts: Any) -> ClusterPod:
    return pod({"koordinator.sh/priority-class": f"koord-{name}"}, **facts)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (classed("free", priority=9500), classed("batch", priority=1)),
        (classed("batch"), classed("mid")),
        (classed("mid"), classed("prod")),
        (pod(priority=9001, qos="Guaranteed"), pod(priority=9002, qos="Burstable")),
        (classed("mid"), classed("mid", priority=1)),
        (classed("prod", qos="BestEffort"), classed("prod", qos="Burstable")),
        (classed("prod", qos="Burstable"), classed("prod", qos="Guaranteed")),
        (
            pod({"koordinator.sh/qosClass": "LSR"}, priority=9000),
            pod({"koordinator.sh/qosClass": "LSE"}, priority=9000),
        ),
        (pod(annotations={EVICTION_COST: "9"}), pod(annotations={DELETION_COST: "1"})),
        (pod(annotations={DELETION_COST: "-1"}), pod()),
        (pod(annotations={EVICTION_COST: "-5"}, created=1.0), pod(created=2.0)),
        (pod(created=200.0), pod(created=100.0)),
        (pod(created=200.0), pod()),
    ],
)
def test_the_first_of_two_goes_first(first: ClusterPod, second: ClusterPod) -> None:
    """Each pair differs in one key, or in a later one that speaks for the other."""
    assert eviction_order(first) < eviction_order(second)


def test_a_higher_score_goes_first_among_equals_only() -> None:
    """The score stands between the costs and the age."""
    assert eviction_order(pod(created=1.0), 1.5) < eviction_order(pod(created=2.0), 0.4)
    assert eviction_order(pod()) < eviction_order(pod(annotations={EVICTION_COST: "1"}), 9.0)
    assert eviction_order(pod(), 0.5) == eviction_order(pod(), 0.5)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10", 10),
        ("-5", -5),
        ("-05", -5),
        ("0", 0),
        ("+5", 0),
        ("05", 0),
        ("", 0),
        ("-", 0),
        ("1.5", 0),
        ("2147483647", 2147483647),
        ("2147483648", 0),
        ("-2147483648", -2147483648),
        ("9" * 200, 0),
        ("٣", 0),
    ],
)
def test_costs(text: str, value: int) -> None:
    """As Kubernetes reads them: 32 bits, no leading + or 0."""
    assert cost(pod(annotations={EVICTION_COST: text}), EVICTION_COST) == value


@given(st.text(max_size=20))
def test_any_cost_is_a_number_of_32_bits(text: str) -> None:
    assert -(2**31) <= cost(pod(annotations={DELETION_COST: text}), DELETION_COST) < 2**31


@pytest.mark.parametrize(
    ("one", "priority_class", "qos"),
    [
        (pod({"koordinator.sh/priority-class": "koord-mid"}, priority=9500), "koord-mid", "LS"),
        (pod(priority=9500), "koord-prod", "LS"),
        (pod(priority=5500, qos="BestEffort"), "koord-batch", "BE"),
        (pod(priority=1), "koord-prod", "LS"),
        (pod(qos="Guaranteed"), "koord-prod", "LSR"),
        (pod(qos="BestEffort"), "koord-batch", "BE"),
        (pod(qos="", requests=()), "koord-batch", "BE"),
        (pod(qos="", requests=(("memory", 1),)), "koord-prod", "LS"),
        (pod({"koordinator.sh/qosClass": "SYSTEM"}), "koord-prod", "SYSTEM"),
    ],
)
def test_classes_with_defaults(one: ClusterPod, priority_class: str, qos: str) -> None:
    """Label, then priority, then QoS; without a class in the status the requests count."""
    assert (priority_class_of(one), qos_of(one)) == (
        KoordPriorityClass(priority_class),
        QoSClass(qos),
    )
    assert PodOrder().is_prod(one) == (priority_class == "koord-prod")


def test_many_pods_in_one_order() -> None:
    """Pods with the same labels share what they have in common, and nothing else."""
    labels = pod().label_set
    pods = [
        ClusterPod(name="p", uid="u", label_set=labels, spec=spec, qos=qos, priority=priority)
        for spec in (PodSpec(), PodSpec(requests=(("cpu", 1),)))
        for qos in ("", "Guaranteed", "BestEffort")
        for priority in (None, 5500, 9500)
    ]
    order = PodOrder()

    assert [order(one) for one in pods + pods] == [eviction_order(one) for one in pods + pods]
