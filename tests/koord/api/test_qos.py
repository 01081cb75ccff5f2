"""QoS and priority classes: the worked examples and the bands."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.pod import Pod
from koord.api.qos import (
    KoordPriorityClass,
    KubeQoS,
    QoSClass,
    compute_kube_qos,
    priority_class_with_default,
    priority_with_default,
    qos_with_default,
    raw_priority_class,
    raw_qos,
)

GUARANTEED, BURSTABLE, BEST_EFFORT = KubeQoS
QOS, PRIORITY = "koordinator.sh/qosClass", "koordinator.sh/priority-class"


@pytest.mark.parametrize(
    ("labels", "kube", "priority", "raw", "qos", "named", "value"),
    [
        ({}, GUARANTEED, None, "", "LSR", "koord-prod", 9500),
        ({}, BURSTABLE, 0, "", "LS", "koord-prod", 9500),
        ({}, BEST_EFFORT, None, "", "BE", "koord-batch", 5500),
        ({QOS: "be"}, BURSTABLE, None, "", "LS", "koord-prod", 9500),
        ({QOS: "BE"}, BURSTABLE, 5200, "BE", "BE", "koord-batch", 5200),
        ({QOS: "LS"}, BURSTABLE, 7100, "LS", "LS", "koord-mid", 7100),
        ({}, BEST_EFFORT, 2000001000, "", "BE", "koord-batch", 2000001000),
        ({PRIORITY: "foo"}, BURSTABLE, 9100, "", "LS", "koord-prod", 9100),
        ({PRIORITY: "koord-free"}, BURSTABLE, None, "", "LS", "koord-free", 3500),
        ({}, BEST_EFFORT, 4500, "", "BE", "koord-batch", 4500),
        ({QOS: "SYSTEM"}, BEST_EFFORT, None, "SYSTEM", "SYSTEM", "koord-prod", 9500),
        ({QOS: ""}, GUARANTEED, -5, "", "LSR", "koord-prod", -5),
    ],
)
def test_worked_examples(labels, kube, priority, raw, qos, named, value):
    """Label, Kubernetes' class, priority and what follows from them."""
    pod = Pod("default", "p", "u", labels=labels, qos=kube, priority=priority)
    assert pod.raw_qos_class == raw_qos(labels) == raw
    assert pod.qos_class == qos_with_default(labels, kube) == qos
    assert pod.priority_class == named
    assert pod.effective_priority == value


@pytest.mark.parametrize(
    ("priority", "named"),
    [
        (None, ""),
        (2999, ""),
        (3000, "koord-free"),
        (3999, "koord-free"),
        (4000, ""),
        (5000, "koord-batch"),
        (5999, "koord-batch"),
        (7000, "koord-mid"),
        (7999, "koord-mid"),
        (8999, ""),
        (9000, "koord-prod"),
        (9999, "koord-prod"),
        (10000, ""),
    ],
)
def test_bands_of_priority(priority, named):
    """Both ends of each band belong to it."""
    assert raw_priority_class({}, priority) == named


def test_an_unknown_label_keeps_the_priority_from_being_asked():
    assert raw_priority_class({PRIORITY: "foo"}, 9100) is KoordPriorityClass.NONE


def test_without_any_class_there_is_none():
    assert priority_class_with_default({}, None, QoSClass.NONE) is KoordPriorityClass.NONE
    assert priority_with_default({}, None, QoSClass.NONE) == 0


FULL = {"cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("containers", "qos"),
    [
        ([], BEST_EFFORT),
        ([({}, {})], BEST_EFFORT),
        ([({"cpu": "0"}, {"nvidia.com/gpu": "1"})], BEST_EFFORT),
        ([(FULL, FULL)], GUARANTEED),
        ([(FULL, {"cpu": "1000m", "memory": "1024Mi"})], GUARANTEED),
        ([(FULL, FULL), (FULL, FULL)], GUARANTEED),
        ([(FULL, FULL), ({}, {})], BURSTABLE),
        ([({"cpu": "500m", "memory": "1Gi"}, FULL)], BURSTABLE),
        ([({"cpu": "1"}, FULL)], BURSTABLE),
        ([({"cpu": "1"}, {"cpu": "1"})], BURSTABLE),
        ([({}, {"cpu": "1"})], BURSTABLE),
        ([({"memory": "1"}, {})], BURSTABLE),
    ],
)
def test_kubernetes_class_from_requests_and_limits(containers, qos):
    """The stock algorithm: cpu and memory alone, positive amounts alone, sums over the pod."""
    assert compute_kube_qos(containers) is qos


@given(st.dictionaries(st.sampled_from([QOS, PRIORITY]), st.text(max_size=10)), st.integers())
def test_any_label_gives_a_class(labels, priority):
    """Labels are written by users; none of them may break a report."""
    pod = Pod("default", "p", "u", labels=labels, qos=BURSTABLE, priority=priority)
    assert pod.qos_class is not QoSClass.NONE
    assert pod.priority_class is not KoordPriorityClass.NONE
