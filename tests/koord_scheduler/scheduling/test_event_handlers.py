"""Changes of objects as cluster events."""

from typing import Any

import pytest

from koord.cluster import kinds
from koord.cluster.facts import ClusterNamespace
from koord.cluster.kinds import UsageReport
from koord.cluster.storage import CLAIM, Claim
from koord_scheduler.framework.types import Action, ClusterEvent, EventResource
from koord_scheduler.scheduling.scheduler import RESOURCES, events_of, node_actions, pod_actions
from tests.support.clusters import node, pod, read_node, read_pod

TAINT = {"key": "k", "effect": "NoSchedule"}


def annotated(obj: dict[str, Any], **annotations: str) -> dict[str, Any]:
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}


@pytest.mark.parametrize(
    ("new", "actions"),
    [
        (node("a"), ()),
        (node("a", {"zone": "z"}), (Action.UPDATE_NODE_LABEL,)),
        (node("a", None, {"cpu": "8"}), (Action.UPDATE_NODE_ALLOCATABLE,)),
        (node("a", taints=[TAINT]), (Action.UPDATE_NODE_TAINT,)),
        (node("a", unschedulable=True), (Action.UPDATE_NODE_TAINT,)),
        (
            node("a", {"zone": "z"}, unschedulable=True),
            (Action.UPDATE_NODE_LABEL, Action.UPDATE_NODE_TAINT),
        ),
        (
            annotated(
                node("a"),
                **{"node.koordinator.sh/raw-allocatable": '{"cpu": "2"}'},
            ),
            (Action.UPDATE_NODE_ANNOTATION,),
        ),
    ],
)
def test_what_was_done_to_a_node(new: dict[str, Any], actions: tuple[Action, ...]) -> None:
    """Each kind of change is an event of its own."""
    assert node_actions(read_node(node("a")), read_node(new)) == actions


def test_a_condition_of_a_node_is_an_event_of_its_own() -> None:
    """Whichever condition it is."""
    sick = node("a")
    sick["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    found = node_actions(read_node(node("a")), read_node(sick))
    assert found == (Action.UPDATE_NODE_CONDITION,)


OLD = pod("web", requests={"cpu": "2"}, schedulingGates=[{"name": "g"}])


@pytest.mark.parametrize(
    ("new", "actions"),
    [
        (OLD, ()),
        ({**OLD, "status": {"phase": "Pending", "nominatedNodeName": "a"}}, ()),
        (
            pod("web", labels={"a": "b"}, requests={"cpu": "2"}, schedulingGates=[{"name": "g"}]),
            (Action.UPDATE_POD_LABEL,),
        ),
        (
            pod("web", requests={"cpu": "1"}, schedulingGates=[{"name": "g"}]),
            (Action.UPDATE_POD_SCALE_DOWN,),
        ),
        (
            pod("web", requests={"cpu": "3"}, schedulingGates=[{"name": "g"}]),
            (Action.UPDATE_OTHER,),
        ),
        (pod("web", requests={"cpu": "2"}), (Action.UPDATE_POD_GATES_ELIMINATED,)),
        (
            pod(
                "web",
                requests={"cpu": "2"},
                schedulingGates=[{"name": "g"}],
                tolerations=[{"operator": "Exists"}],
            ),
            (Action.UPDATE_POD_TOLERATION,),
        ),
        (
            pod("web", requests={"cpu": "2"}, schedulingGates=[{"name": "g"}], priority=5),
            (Action.UPDATE_OTHER,),
        ),
    ],
)
def test_what_was_done_to_a_pod(new: dict[str, Any], actions: tuple[Action, ...]) -> None:
    """A change of the status alone is none."""
    assert pod_actions(read_pod(OLD), read_pod(new)) == actions


def test_kinds_have_kubernetes_names_or_those_that_plugins_register() -> None:
    """As resource.version.group, where Kubernetes' scheduler knows no name."""
    assert RESOURCES[kinds.NODE] == "Node"
    assert RESOURCES[CLAIM] == "PersistentVolumeClaim"
    assert RESOURCES[kinds.NAMESPACE] == "Namespace"
    assert RESOURCES[kinds.NODE_METRIC] == "nodemetrics.v1alpha1.slo.koordinator.sh"


def test_objects_come_change_and_go() -> None:
    """Of other kinds than nodes and pods any change is an update."""
    old, new = Claim("default", "data"), Claim("default", "data", volume="pv")
    found = [
        next(iter(events_of(CLAIM, *pair))).action
        for pair in ((None, new), (old, new), (old, None))
    ]
    assert found == [Action.ADD, Action.UPDATE, Action.DELETE]
    (event,) = events_of(kinds.NODE_METRIC, None, UsageReport("a"))
    assert event.resource == "nodemetrics.v1alpha1.slo.koordinator.sh"
    assert list(events_of(kinds.NODE, read_node(node("a")), read_node(node("a")))) == []


def test_other_labels_of_a_namespace_are_an_event() -> None:
    """Plugins register it by its name in Kubernetes."""
    before, after = ClusterNamespace("x", {}), ClusterNamespace("x", {"team": "red"})
    (event,) = events_of(kinds.NAMESPACE, before, after)
    assert ClusterEvent(EventResource.NAMESPACE, Action.UPDATE).covers(event)
