"""Reservations over running pods (worked examples 41 to 46)."""

from typing import Any

import pytest

from koord.api.reservation import (
    ALLOCATED,
    IS_PRE_ALLOCATABLE,
    PRE_ALLOCATABLE_PRIORITY,
    PRE_ALLOCATION_REQUIRED,
    RESERVE_POD,
)
from koord_scheduler_plugins.reservation.consumers import ReservationInfo
from koord_scheduler_plugins.reservation.fit import NodeRoom
from koord_scheduler_plugins.reservation.placing import (
    NO_CLUSTER_MODE,
    NO_PODS,
    UNSUPPORTED,
    labelled_candidates,
    multiple_score,
    owned_candidates,
    select,
    unsupported,
)
from tests.support.reservations import GI, info, pod, reservation

BY_NODE = ("Insufficient cpu by node", "Insufficient memory by node")


def pending(
    cpu: int, memory: int, *, required: bool = False, multiple: bool = False, **more: Any
) -> ReservationInfo:
    return info(
        requests={"cpu": str(cpu), "memory": f"{memory}Gi"},
        node="",
        phase="Pending",
        labels={PRE_ALLOCATION_REQUIRED: "true"} if required else {},
        allocatePolicy="Restricted",
        preAllocation=True,
        preAllocationPolicy={"enableMultiple": multiple},
        **more,
    )


def room(cpu: int, memory: int, used_cpu: int, used_memory: int) -> NodeRoom:
    return NodeRoom(
        allocatable={"cpu": cpu * 1000, "memory": memory * GI},
        requested={"cpu": used_cpu * 1000, "memory": used_memory * GI},
    )


def running(name: str, cpu: int, memory: int, priority: int = 0) -> Any:
    return pod(
        name,
        "n",
        {"cpu": str(cpu), "memory": f"{memory}Gi"},
        {"app": "web", IS_PRE_ALLOCATABLE: "true"},
        {PRE_ALLOCATABLE_PRIORITY: str(priority)},
    )


def by_priority(*pods: Any) -> list[Any]:
    return labelled_candidates(pods, IS_PRE_ALLOCATABLE)


def test_a_node_with_room_needs_no_pods():
    """Example 41."""
    found = select(pending(4, 16), room(32, 32, 12, 0), [])

    assert (found.passes, found.pods) == (True, ())


def test_pods_can_be_required():
    """Example 42."""
    found = select(pending(4, 16, required=True), room(32, 32, 12, 0), [])

    assert (found.passes, found.reasons) == (False, (NO_PODS,))


def test_a_full_node_without_candidates_is_left_to_the_fit():
    """Example 43."""
    assert select(pending(4, 1), room(32, 32, 30, 0), []).passes


def test_candidates_that_do_not_help():
    """Example 44."""
    found = select(pending(4, 1), room(32, 32, 30, 0), [running("small", 1, 1)])

    assert (found.passes, found.reasons) == (False, BY_NODE[:1])


def test_only_pods_that_make_room_are_selected():
    """Defect D10 mended: each of them alone is enough."""
    pods = [running("small", 1, 1), running("large", 3, 1), running("other", 2, 1)]

    found = select(pending(4, 1), room(32, 32, 30, 4), pods)

    assert [one.name for one in found.pods] == ["large", "other"]


def test_a_pod_larger_than_the_reservation_cannot_have_it():
    found = select(pending(4, 1, required=True), room(32, 32, 30, 8), [running("p", 5, 1)])

    assert found.reasons == ("Reservation(s) Insufficient cpu",)


def test_several_pods_that_are_not_enough():
    """Example 45."""
    pods = by_priority(running("c", 4, 2, 50), running("a", 1, 2, 70), running("b", 2, 10, 90))

    found = select(pending(4, 8, multiple=True), room(16, 32, 14, 28), pods)

    assert [one.name for one in pods] == ["b", "a", "c"]
    assert (found.passes, found.pods, found.reasons) == (False, (), BY_NODE)


def test_several_pods_together_make_room():
    """Example 46."""
    pods = by_priority(running("a", 1, 2, 70), running("b", 5, 10, 90), running("c", 1, 2, 50))

    found = select(pending(4, 8, multiple=True), room(16, 32, 14, 28), pods)

    assert [one.name for one in found.pods] == ["a", "c"]
    assert (multiple_score(found.pods), multiple_score(())) == (33, 100)


def test_a_node_without_pods_in_the_way_can_be_preferred():
    pods = [running("p", 4, 8)]

    assert not select(pending(4, 8), room(32, 32, 4, 8), pods, prefer_none=True).pods
    assert select(pending(4, 8), room(32, 32, 4, 8), pods).pods


def test_a_pod_is_counted_once_in_a_full_node():
    """The reserve pod takes the place of the pod, also in the number of pods."""
    full = NodeRoom(
        allocatable={"cpu": 4000, "memory": 8 * GI},
        requested={"cpu": 4000, "memory": 8 * GI},
        allowed_pods=1,
        pods=1,
    )

    assert select(pending(4, 8), full, [running("p", 4, 8)]).passes


def test_other_plugins_can_reject_a_pod():
    found = select(
        pending(4, 8, required=True),
        room(32, 32, 30, 30),
        [running("p", 4, 8)],
        rejects=lambda one: [f"no devices for {one.name}"],
    )

    assert found.reasons == ("no devices for p",)


@pytest.mark.parametrize(
    ("policy", "mode", "enabled", "problem"),
    [
        ("Restricted", "Default", False, ""),
        ("Restricted", "Cluster", True, ""),
        ("Restricted", "Cluster", False, NO_CLUSTER_MODE),
        ("Aligned", "Default", True, UNSUPPORTED),
    ],
)
def test_what_is_supported(policy, mode, enabled, problem):
    spec = reservation(allocatePolicy=policy, preAllocationPolicy={"mode": mode}).spec

    assert spec is not None
    assert unsupported(spec, cluster_mode=enabled) == problem


def test_candidates_run_and_have_no_reservation():
    pods = [
        pod("b", "n"),
        pod("a", "n"),
        pod("a", "n"),
        pod("pending"),
        pod("db", "n", labels={"app": "db"}),
        pod("taken", "n", annotations={ALLOCATED: '{"uid":"u"}'}),
        pod("reserve", "n", annotations={RESERVE_POD: "true"}),
    ]
    by_label, by_uid = reservation().spec, reservation(owners=[{"object": {"name": "a"}}]).spec

    assert by_label is not None
    assert by_uid is not None
    assert [one.name for one in owned_candidates(by_label, pods)] == ["a", "b"]
    assert owned_candidates(by_uid, pods) == []


def test_priorities_that_are_none_count_as_zero():
    pods = [running(name, 1, 1) for name in "ba"]
    odd = pod("0", "n", {}, {IS_PRE_ALLOCATABLE: "true"}, {PRE_ALLOCATABLE_PRIORITY: "9" * 40})

    ordered = by_priority(*pods, odd, running("z", 1, 1, 1), running("y", 1, 1, -1))

    assert [one.name for one in ordered] == ["z", "0", "a", "b", "y"]
