"""The pod that stands for a reservation."""

import copy
from typing import Any

import pytest

from koord.cluster.facts import ClusterPod
from koord_scheduler_plugins.reservation.objects import read_reservation
from koord_scheduler_plugins.reservation.reserve_pod import (
    FAKE_CONTAINER,
    HIGHEST_PRIORITY,
    pinned_node,
    reserve_pod,
)
from tests.support.clusters import read_pod
from tests.support.reservations import reservation, reservation_json


def made(**more: Any) -> dict[str, Any]:
    return reserve_pod(reservation(**more))


def requests(pod: dict[str, Any]) -> dict[str, int]:
    decoded: ClusterPod = read_pod(pod)
    return dict(decoded.spec.requests)


def test_a_reserve_pod():
    item = reservation_json(
        labels={"a": "reservation", "b": "2"},
        annotations={"x": "reservation"},
        node="",
        phase="Pending",
        preAllocation=True,
        template={"nodeName": "pinned", "schedulerName": "koord-scheduler", "hostNetwork": True},
    )
    item["spec"]["template"]["metadata"] = {
        "namespace": "shop",
        "name": "none",
        "labels": {"a": "template", "c": "3"},
        "annotations": {"x": "template", "y": "1"},
    }
    before = copy.deepcopy(item)

    found = read_reservation(item)
    pod = reserve_pod(found)

    assert pod["metadata"] == {
        "name": "uid-r",
        "uid": "uid-r",
        "namespace": "shop",
        "creationTimestamp": item["metadata"]["creationTimestamp"],
        "labels": {"a": "reservation", "b": "2", "c": "3"},
        "annotations": {
            "x": "reservation",
            "y": "1",
            "scheduling.koordinator.sh/reserve-pod": "true",
            "scheduling.koordinator.sh/reservation-name": "r",
            "scheduling.koordinator.sh/reservation-node": "pinned",
            "scheduling.koordinator.sh/is-pre-allocation": "true",
        },
    }
    assert pod["spec"]["schedulerName"] == "koord-scheduler"
    assert "nodeName" not in pod["spec"]
    assert pod["spec"]["hostNetwork"] is True
    assert pinned_node(found) == "pinned"
    assert item == before
    assert reserve_pod(read_reservation(item)) == pod


def test_defaults_and_node():
    pod = made()

    assert pod["metadata"]["namespace"] == "default"
    assert pod["spec"]["nodeName"] == "n"
    assert pod["spec"]["schedulerName"] == "default-scheduler"
    assert "status" not in pod


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_one_that_has_ended_is_finished(phase):
    assert read_pod(made(phase=phase)).finished


@pytest.mark.parametrize(
    ("template", "label", "priority"),
    [
        ({"priority": 5}, "9", 5),
        ({}, "9", 9),
        ({}, "-9", -9),
        ({}, "2147483648", HIGHEST_PRIORITY),
        ({}, "nine", HIGHEST_PRIORITY),
        ({"priority": True}, "", HIGHEST_PRIORITY),
    ],
)
def test_priorities(template, label, priority):
    pod = made(template=template, labels={"koordinator.sh/priority": label})

    assert pod["spec"]["priority"] == priority


def test_an_available_one_holds_its_allocatable():
    """Example 40: it has the further container, and nothing else requests anything."""
    container = {"name": "c", "resources": {"requests": {"cpu": "4"}}, "image": "x"}
    pod = made(
        template={
            "containers": [container],
            "initContainers": [{**container, "restartPolicy": "Always"}],
            "overhead": {"cpu": "1"},
        },
        status={"allocatable": {"cpu": "8", "memory": "1Gi"}},
    )

    assert requests(pod) == {"cpu": 8000, "memory": 1 << 30}
    last = pod["spec"]["containers"][-1]
    assert last["name"] == FAKE_CONTAINER
    assert last["resources"]["limits"] == last["resources"]["requests"]
    assert "overhead" not in pod["spec"]


def test_one_that_holds_what_its_template_requests_is_as_the_template():
    pod = made(requests={"cpu": "4"}, status={"allocatable": {"cpu": "4"}})

    assert [one["name"] for one in pod["spec"]["containers"]] == ["main"]


@pytest.mark.parametrize(
    ("used", "held"),
    [
        ({"cpu": 1000}, {"cpu": 3000, "memory": 8 << 30}),
        ({"cpu": 4000, "memory": 8 << 30}, {}),
        ({"cpu": 9000, "gpu": 1}, {"memory": 8 << 30}),
    ],
)
def test_consumers_are_pods_of_their_own(used, held):
    """The reserve pod takes what they have left, so that nothing is counted twice."""
    found = reservation(
        requests={"cpu": "4", "memory": "8Gi"},
        status={"allocatable": {"cpu": "4", "memory": "8Gi"}},
    )

    assert requests(reserve_pod(found, used)) == held


def test_one_without_a_spec_that_makes_sense_still_holds_its_room():
    """After a restart there is no last good one, and its node must not be given away."""
    found = reservation(ttl="never", status={"allocatable": {"cpu": "4"}})

    assert found.spec is None
    assert requests(reserve_pod(found, {"cpu": 1000})) == {"cpu": 3000}


def test_a_template_nested_as_deep_as_json_can_be_read():
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"d": deep}

    found = reservation(template={"x": deep}, status={"allocatable": {"cpu": "8"}})

    assert reserve_pod(found)["spec"]["x"] is deep
