"""Which pods MigrationController's filter keeps. Source: spec of Koordinator's EvictorFilter."""

from typing import Any

import pytest

from koord.api.labelselector import LabelSelector
from koord.cluster.facts import ClusterPod, Owner, PriorityClass
from koord_descheduler.config import PriorityThreshold
from koord_descheduler.rules.evictorfilter import EVICT, EvictorRules, evictor_filter, priority_of
from tests.support.descheduler.framework import make_pod

REPLICA_SET = (Owner("ReplicaSet", "r", "u", True),)
CLASSES = {"high": PriorityClass("high", 1000)}


def pod(**facts: Any) -> ClusterPod:
    """A pod of a ReplicaSet that nothing protects, but for these facts."""
    plain = make_pod(labels={"app": "web"})
    return ClusterPod(
        **{
            "name": plain.name,
            "uid": plain.uid,
            "label_set": plain.label_set,
            "spec": plain.spec,
            "node": "n1",
            "phase": "Running",
            "owners": REPLICA_SET,
            **facts,
        }
    )


def reason(of: ClusterPod, **rules: Any) -> str:
    return evictor_filter(EvictorRules(**rules), CLASSES).reason(of)


@pytest.mark.parametrize(
    ("facts", "rules", "wanted"),
    [
        ({}, {}, ""),
        ({"owners": (Owner("DaemonSet", "d", "u", True),)}, {}, "it belongs to a DaemonSet"),
        ({"annotations": (("kubernetes.io/config.mirror", "x"),)}, {}, "it is a mirror pod"),
        ({"annotations": (("kubernetes.io/config.source", "file"),)}, {}, "it is a static pod"),
        ({"annotations": (("kubernetes.io/config.source", "api"),)}, {}, ""),
        ({"deleting": True}, {}, "it is being deleted"),
        ({"owners": ()}, {}, "it has no owner"),
        ({"owners": (), "phase": "Failed"}, {}, "it has no owner"),
        ({"owners": ()}, {"evict_failed_bare_pods": True}, "it has no owner and has not failed"),
        ({"owners": (), "phase": "Failed"}, {"evict_failed_bare_pods": True}, ""),
        ({"owners": ()}, {"evict_all_bare_pods": True}, ""),
        ({"priority": 1_999_999_999}, {}, ""),
        ({"priority": 2_000_000_000}, {}, "its priority 2000000000 is system critical"),
        ({"priority": 2_000_000_000}, {"evict_system_critical_pods": True}, ""),
        ({"priority": 500}, {"priority_threshold": PriorityThreshold(value=500)},
         "its priority 500 reaches the threshold 500"),
        ({"priority": 499}, {"priority_threshold": PriorityThreshold(value=500)}, ""),
        ({"priority": None}, {"priority_threshold": PriorityThreshold(value=500)}, ""),
        ({"priority": 500}, {"priority_threshold": PriorityThreshold(value=500),
                             "evict_system_critical_pods": True}, ""),
        ({"priority": 1000}, {"priority_threshold": PriorityThreshold(name="high")},
         "its priority 1000 reaches the threshold 1000"),
        ({"priority": 999}, {"priority_threshold": PriorityThreshold(name="high")}, ""),
        ({"priority": 999}, {"priority_threshold": PriorityThreshold()}, ""),
        ({}, {"priority_threshold": PriorityThreshold(name="gone")},
         "the priority class gone of priorityThreshold is not known"),
        ({"local_storage": True}, {}, "it has local storage"),
        ({"local_storage": True}, {"evict_local_storage_pods": True}, ""),
        ({"claims": ("c",)}, {}, ""),
        ({"claims": ("c",)}, {"ignore_pvc_pods": True}, "it has a PersistentVolumeClaim"),
        ({}, {"label_selector": LabelSelector({"app": "web"})}, ""),
        ({}, {"label_selector": LabelSelector({"app": "db"})},
         "its labels are not those of labelSelector"),
        ({}, {"label_selector": LabelSelector()}, ""),
    ],
)  # fmt: skip
def test_what_keeps_a_pod(facts: dict[str, Any], rules: dict[str, Any], wanted: str):
    assert reason(pod(**facts), **rules) == wanted


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        ({"owners": ()}, ""),
        ({"priority": 2_000_000_000}, ""),
        ({"local_storage": True}, ""),
        ({"deleting": True}, "it is being deleted"),
        ({"owners": (Owner("DaemonSet", "d", "u", True),)}, "it belongs to a DaemonSet"),
    ],
)
def test_the_annotation_overrides_what_protects_but_not_what_is_futile(
    facts: dict[str, Any], wanted: str
):
    """A pod that ends or comes back to its node gains nothing by an eviction."""
    assert reason(pod(annotations=((EVICT, ""),), **facts)) == wanted


def test_a_class_that_changes_counts_at_once():
    classes = dict(CLASSES)
    rules = EvictorRules(priority_threshold=PriorityThreshold(name="high"))
    found = evictor_filter(rules, classes)
    assert found.reason(pod(priority=500)) == ""

    classes["high"] = replace_value(classes["high"], 500)
    assert found.reason(pod(priority=500)) == "its priority 500 reaches the threshold 500"


def replace_value(found: PriorityClass, value: int) -> PriorityClass:
    return PriorityClass(found.name, value, found.is_default)


def test_the_value_of_a_threshold_counts_before_its_name():
    assert priority_of(PriorityThreshold(value=7, name="high"), CLASSES) == 7
    assert priority_of(PriorityThreshold(name="high"), CLASSES) == 1000
    assert priority_of(PriorityThreshold(), CLASSES) is None
    assert priority_of(None, CLASSES) is None
