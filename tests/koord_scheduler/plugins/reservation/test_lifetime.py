"""Status, expiry and garbage collection (worked examples 35 to 40)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.podmigrationjob import time_text
from koord_scheduler_plugins.reservation import status as transitions
from koord_scheduler_plugins.reservation.controller import (
    is_garbage,
    needs_expiration,
    sync,
)
from koord_scheduler_plugins.reservation.objects import Reservation, read_reservation
from koord_scheduler_plugins.reservation.serving import utilization
from tests.support.reservations import GI, NOW, pod, reservation, reservation_json

DAY = 86400.0
BEFORE, LATER = time_text(NOW), time_text(NOW + 60)


def with_status(status: Any, **more: Any) -> Reservation:
    """The reservation after its status has been written."""
    return read_reservation({**reservation_json(**more), "status": status})


def condition(kind: str, status: str, reason: str, at: str = BEFORE) -> dict[str, str]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "lastProbeTime": at,
        "lastTransitionTime": at,
    }


READY = condition("Ready", "True", "Available")
SCHEDULED = condition("Scheduled", "True", "Scheduled")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], {**condition("Scheduled", "False", "Unschedulable", LATER), "message": "why"}),
        (
            [condition("Scheduled", "False", "Other")],
            {
                **condition("Scheduled", "False", "Unschedulable"),
                "message": "why",
                "lastProbeTime": LATER,
            },
        ),
        ([SCHEDULED], {**SCHEDULED, "lastProbeTime": LATER}),
    ],
)
def test_an_attempt_without_a_node(before, after):
    found = reservation(node="", phase="", status={"conditions": before, "other": 1})

    status = transitions.unschedulable(found, "why", NOW + 60)

    assert status == {"phase": "", "nodeName": "", "conditions": [after], "other": 1}
    assert found.raw["status"]["conditions"] == before  # type: ignore[index]


def test_becoming_available():
    """Example 40: the annotation replaces what the template requests."""
    resize = {
        "scheduling.koordinator.sh/reservation-resize-allocatable": '{"resources":{"cpu":"8"}}'
    }
    found = reservation(
        requests={"cpu": "4", "memory": "1Gi"},
        node="",
        phase="Pending",
        annotations=resize,
        status={"conditions": [condition("Scheduled", "False", "Unschedulable")]},
    )

    status = transitions.available(found, "n7", NOW)

    assert status == {
        "phase": "Available",
        "nodeName": "n7",
        "allocatable": {"cpu": "8", "memory": "1Gi"},
        "conditions": [SCHEDULED, READY],
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], condition("Ready", "False", "Expired", LATER)),
        ([READY], condition("Ready", "False", "Expired", LATER)),
        (
            [condition("Ready", "False", "Other")],
            {**condition("Ready", "False", "Expired"), "lastProbeTime": LATER},
        ),
    ],
)
def test_expiring(before, after):
    found = reservation(status={"conditions": before})

    status = transitions.expired(found, NOW + 60)

    assert (status["phase"], status["conditions"]) == ("Failed", [after])
    assert with_status(status).expired


def test_succeeding_keeps_the_time_of_the_transition():
    status = transitions.succeeded({"conditions": [READY]}, NOW + 60)

    assert status == {
        "phase": "Succeeded",
        "conditions": [
            {**condition("Ready", "False", "Succeeded"), "lastProbeTime": LATER},
        ],
    }


def test_consumers_are_counted():
    """Example 35."""
    alloc = {"cpu": "10", "memory": "10Gi"}
    found = reservation(status={"allocatable": alloc, "conditions": [READY]})
    requests = {"cpu": "2", "memory": "2Gi", "ephemeral-storage": "10Gi"}
    pods = [pod(f"p{at}", "n", requests) for at in (3, 1, 2, 0)]

    status = sync(found, pods, NOW + 1, node_exists=True).status

    assert status is not None
    assert [one["name"] for one in status["currentOwners"]] == ["p0", "p1", "p2", "p3"]
    assert status["allocated"] == {"cpu": "8", "memory": "8Gi"}
    assert status["phase"] == "Succeeded"
    assert utilization(with_status(status)) == {"cpu": 0.8, "memory": 0.8}


def test_one_that_is_shared_goes_on():
    found = reservation(allocateOnce=False, status={"allocatable": {"cpu": "4"}})
    first = sync(found, [pod("p", "n", {"cpu": "1"})], NOW, node_exists=True).status

    counted = with_status(first, allocateOnce=False)

    assert counted.available
    assert counted.allocated == {"cpu": 1000}
    assert sync(counted, [pod("p", "n", {"cpu": "1"})], NOW, node_exists=True).status is None
    none = sync(counted, [], NOW, node_exists=True).status
    assert none is not None
    assert (none["currentOwners"], none["allocated"], none["phase"]) == ([], {}, "Available")


def test_a_consumer_that_has_gone_does_not_end_it():
    """Defect D3 mended: only a pod that has it makes it Succeeded."""
    left = {"currentOwners": [{"namespace": "default", "name": "p", "uid": "x"}]}
    found = reservation(status={"allocatable": {"cpu": "4"}, **left})

    status = sync(found, [], NOW, node_exists=True).status

    assert status is not None
    assert status["phase"] == "Available"


@pytest.mark.parametrize(
    ("more", "age", "expires"),
    [
        ({"ttl": "1m"}, 2 * DAY, True),  # example 36
        ({"ttl": "1m"}, 59, False),
        ({"ttl": "0s"}, 100 * DAY, False),
        ({"ttl": "0s", "expires": BEFORE}, DAY, False),
        ({"ttl": None, "expires": LATER}, 30, False),
        ({"ttl": None, "expires": LATER}, 61, True),
        ({"ttl": "1h", "expires": LATER}, 61, True),
        ({"ttl": "1m", "phase": "Succeeded"}, DAY, False),
        ({"ttl": "1m", "phase": "Pending", "node": ""}, DAY, True),  # example 39, D2 mended
    ],
)
def test_expiry(more, age, expires):
    found = reservation(**more)

    status = sync(found, [], NOW + age, node_exists=True).status

    assert needs_expiration(found, NOW + age) is expires
    assert (status is not None and status["phase"] == "Failed") is expires


def test_a_reservation_on_a_node_that_has_gone_expires_and_is_deleted():
    """Example 38."""
    status = sync(reservation(), [], NOW + 1, node_exists=False).status
    failed = with_status(status)

    assert failed.expired
    assert is_garbage(failed, NOW + 2, DAY, node_exists=False)


def test_a_pending_reservation_has_no_node_to_lose():
    assert sync(reservation(node="", phase=""), [], NOW + 1, node_exists=False).status is None


@pytest.mark.parametrize(
    ("phase", "reason", "age", "is_old"),
    [
        ("Failed", "Expired", DAY, False),  # example 36
        ("Failed", "Expired", DAY + 1, True),
        ("Succeeded", "Succeeded", 2 * DAY, True),  # example 37
        ("Succeeded", "Succeeded", DAY, False),
        ("Failed", "Other", DAY + 1, True),
        ("Failed", "Other", DAY, False),
        ("Available", "Expired", 9 * DAY, False),
    ],
)
def test_garbage(phase, reason, age, is_old):
    found = reservation(phase=phase, status={"conditions": [condition("Ready", "False", reason)]})

    assert is_garbage(found, NOW + age, DAY, node_exists=True) is is_old


def test_one_that_expired_before_it_had_a_node_is_kept_for_a_day():
    status = sync(reservation(node="", ttl="1m"), [], NOW + 61, node_exists=False).status
    failed = with_status(status)

    assert failed.expired
    assert not is_garbage(failed, NOW + 100, DAY, node_exists=False)
    assert is_garbage(failed, NOW + 62 + DAY, DAY, node_exists=False)


@pytest.mark.parametrize(
    ("more", "age", "seconds"),
    [
        ({"ttl": "1h"}, 0, 15.0),
        ({"ttl": "1h"}, 3590, 10.0),
        ({"ttl": "1h"}, 3599, 3.0),
        ({"ttl": "0s"}, 0, None),
        ({"ttl": None, "expires": LATER}, 50, 10.0),
    ],
)
def test_it_is_looked_at_again(more, age, seconds):
    assert sync(reservation(**more), [], NOW + age, node_exists=True).requeue == seconds


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), max_size=5),
    st.sampled_from(["", "n"]),
    st.booleans(),
    st.integers(0, 8000),
)
def test_a_second_sync_has_nothing_to_write(some, node, once, age):
    """Whatever was written, it is as it should be afterwards."""
    more = {"node": node, "allocateOnce": once, "status": {"allocatable": {"cpu": "4"}}}
    pods = [pod(name, "n", {"cpu": str(cpu)}) for name, cpu in dict(some).items()]
    first = sync(reservation(**more), pods, NOW + age, node_exists=True)
    after = first.status or reservation_json(**more)["status"]

    second = with_status(after, allocateOnce=once)

    assert sync(second, pods, NOW + age, node_exists=True).status is None


def test_amounts_of_bytes_are_written_as_such():
    found = reservation(requests={"memory": "3Gi", "cpu": "1500m", "x/gpu": "2"}, node="")

    written = transitions.available(found, "n", NOW)["allocatable"]

    assert written == {"cpu": "1500m", "memory": "3Gi", "x/gpu": "2"}
    assert with_status({"allocatable": written}).allocatable == {
        "cpu": 1500,
        "memory": 3 * GI,
        "x/gpu": 2,
    }
