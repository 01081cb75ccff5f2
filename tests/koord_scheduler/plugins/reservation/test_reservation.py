"""The life of reservations in the scheduler: placed, used, and in the way of others."""

import json
from typing import Any

import pytest

from koord.api.reservation import AFFINITY, ALLOCATED, OPERATING_MODE, OWNERS
from koord.controlplane.testing import api_error_response
from koord.kube.transport import Call
from koord.plugin.kube import Unreachable
from koord_scheduler_plugins.default_preemption import (
    DefaultPreemption,
    DefaultPreemptionArgs,
)
from koord_scheduler_plugins.reservation.consumers import allocated_text
from tests.koord_scheduler.plugins.reservation.test_takeover import take_over
from tests.support.reservations import MINE
from tests.support.scheduler.reservations import World


async def test_a_reservation_gets_a_node_and_holds_its_room() -> None:
    world = await World().begin(4)
    await world.reservation(cpu="3")
    status = world.status()
    assert (status["phase"], status["nodeName"], status["allocatable"]) == (
        "Available",
        "n0",
        {"cpu": "3"},
    )
    assert [(one["type"], one["status"]) for one in status["conditions"]] == [
        ("Scheduled", "True"),
        ("Ready", "True"),
    ]
    assert ("r", "Scheduled", "Successfully assigned r to n0") in world.events
    assert world.requested("n0") == 3000
    other = world.api.add_pod("other", cpu="2")
    await world.settle()
    assert world.where(other) == ""
    await world.end()


async def test_an_owner_is_placed_in_the_room_of_its_reservation() -> None:
    world = await World().begin(4)
    await world.reservation(cpu="3")
    key = await world.consumer(cpu="2")
    assert (world.where(key), world.given(key)) == ("n0", "r")
    assert world.requested("n0") == 3000  # what is left of the reservation, and the pod
    second = await world.consumer("second", cpu="1")
    assert (world.where(second), world.given(second)) == ("n0", "r")
    assert world.requested("n0") == 3000
    world.api.delete_pod(key)
    await world.settle()
    assert world.requested("n0") == 3000  # the reservation has it again
    await world.end()


async def test_a_reservation_for_one_pod_is_given_once() -> None:
    world = await World().begin(5)
    await world.reservation(cpu="3", allocateOnce=True)
    first = await world.consumer("first", cpu="2")
    second = await world.consumer("second", cpu="2")
    third = await world.consumer("third", cpu="2")
    assert [world.given(key) for key in (first, second, third)] == ["r", "", ""]
    assert [world.where(key) for key in (first, second, third)] == ["n0", "n0", ""]
    assert world.status()["phase"] == "Succeeded"
    await world.end()


async def test_a_pod_that_must_have_a_reservation_waits_for_it() -> None:
    world = await World().begin(4)
    key = await world.consumer(annotations={AFFINITY: '{"name":"r"}'})
    assert world.where(key) == ""
    assert "node(s) no reservations match reservation affinity" in world.events[-1][2]
    await world.reservation(cpu="2")
    await world.advance(60)
    assert (world.where(key), world.given(key)) == ("n0", "r")
    await world.end()


async def test_a_pod_that_must_have_a_reservation_goes_nowhere_else() -> None:
    world = await World().begin(4, 8)
    await world.reservation(cpu="2", template={"nodeName": "n0"}, allocatePolicy="Restricted")
    assert world.status()["nodeName"] == "n0"
    key = await world.consumer(cpu="3", annotations={AFFINITY: '{"name":"r"}'})
    assert world.where(key) == ""
    texts = [text for _, reason, text in world.events if reason == "FailedScheduling-Reservation"]
    assert texts == [
        "0/1 reservations are available: 1 Reservation(s) exactly matches the requested "
        "reservation name, 1 Reservation(s) Insufficient cpu."
    ]
    small = await world.consumer("small", cpu="2", annotations={AFFINITY: '{"name":"r"}'})
    assert world.where(small) == "n0"
    await world.end()


async def test_what_a_pod_says_that_it_was_given_does_not_count() -> None:
    world = await World().begin(4)
    stale = {ALLOCATED: allocated_text("gone", "uid-gone")}
    key = await world.consumer(annotations=stale)
    assert (world.where(key), world.given(key)) == ("n0", "")
    await world.end()


async def test_a_malformed_annotation_rejects_only_its_pod() -> None:
    world = await World().begin(4)
    bad = await world.consumer("bad", annotations={AFFINITY: "{"})
    good = await world.consumer("good")
    assert (world.where(bad), world.where(good)) == ("", "n0")
    assert "reservation-affinity" in next(text for name, _, text in world.events if name == "bad")
    await world.end()


async def test_a_reservation_says_why_it_has_no_node_until_it_has_one() -> None:
    world = await World().begin(1)
    await world.reservation(cpu="3")
    (condition,) = world.status()["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "Scheduled",
        "False",
        "Unschedulable",
    )
    assert "Insufficient cpu" in condition["message"]
    assert ("r", "FailedScheduling") in [event[:2] for event in world.events]
    requests = world.api.requests
    await world.advance(30)
    assert world.api.requests == requests  # its own status does not have it tried again
    world.api.add_node("big", cpu="4")
    await world.settle()
    await world.advance(30)
    assert (world.status()["phase"], world.status()["nodeName"]) == ("Available", "big")
    await world.end()


def conflict(call: Call) -> None:
    if call.path.endswith("/status") and "reservations" in call.path:
        raise api_error_response(call, 409, "Conflict", "another version")


def unreachable(call: Call) -> None:
    if call.path.endswith("/status") and "reservations" in call.path:
        raise Unreachable("the answer was lost")


@pytest.mark.parametrize(("faults", "lost"), [([conflict], []), ([], [unreachable])])
async def test_a_status_is_written_until_it_is_known_to_be(faults: Any, lost: Any) -> None:
    world = await World().begin(4)
    world.api.faults, world.api.lost = list(faults), list(lost)
    await world.reservation(cpu="3")
    await world.advance(2)
    assert world.status()["phase"] == "Available"
    assert [event[:2] for event in world.events] == [("r", "Scheduled")]
    assert world.requested("n0") == 3000
    await world.end()


async def test_the_room_of_a_deleted_reservation_is_free() -> None:
    world = await World().begin(4)
    await world.reservation(cpu="3")
    other = world.api.add_pod("other", cpu="2")
    await world.settle()
    assert world.where(other) == ""
    world.api.drop("r")
    await world.settle()
    await world.advance(30)
    assert world.where(other) == "n0"
    assert world.requested("n0") == 2000
    await world.end()


async def test_an_ended_reservation_leaves_its_room_and_its_consumers() -> None:
    world = await World().begin(4)
    await world.reservation(cpu="3")
    await world.consumer(cpu="2")
    ended = json.loads(json.dumps(world.api.reservations["r"]))
    ended["status"]["phase"] = "Succeeded"
    world.api.put(ended)
    await world.settle()
    assert world.requested("n0") == 2000
    await world.end()


async def test_reservations_of_other_policies_do_not_share_a_node() -> None:
    world = await World().begin(8)
    await world.reservation("one", cpu="1", allocatePolicy="Aligned")
    await world.reservation("two", cpu="1")
    await world.reservation("three", cpu="1", allocatePolicy="Restricted")
    assert [world.status(name)["phase"] for name in ("one", "two", "three")] == [
        "Available",
        "Pending",
        "Available",
    ]
    (condition,) = world.status("two")["conditions"]
    assert "reservation allocate policy conflict" in condition["message"]
    world.api.drop("one")
    world.api.drop("three")
    await world.settle()
    await world.advance(30)
    assert world.status("two")["phase"] == "Available"
    await world.end()


@pytest.mark.parametrize("consumer_first", [True, False])
async def test_a_restart_finds_reservations_and_consumers(consumer_first: bool) -> None:
    world = World()
    node: dict[str, Any] = {"node": "n0", "phase": "Available", "allocatePolicy": "Restricted"}
    node["status"] = {"allocatable": {"cpu": "3"}}
    mine = {ALLOCATED: allocated_text("r", "uid-r")}
    await world.begin(4)
    if not consumer_first:
        await world.reservation(cpu="3", **node)
    await world.consumer(cpu="2", bound="n0", annotations=mine)
    if consumer_first:
        await world.reservation(cpu="3", **node)
    assert world.requested("n0") == 3000
    second = await world.consumer("second", cpu="1", annotations={AFFINITY: "{}"})
    third = await world.consumer("third", cpu="1", annotations={AFFINITY: "{}"})
    assert (world.given(second), world.given(third)) == ("r", "")
    assert world.where(third) == ""
    await world.end()


async def test_running_pods_become_the_owners_of_a_pre_allocated_reservation() -> None:
    world = await World().begin(4)
    running = await world.consumer("running", cpu="3", bound="n0")
    await world.reservation(cpu="3", preAllocation=True, allocatePolicy="Restricted")
    assert world.status()["phase"] == "Available"
    assert world.given(running) == "r"
    await world.settle()
    assert world.requested("n0") == 3000
    await world.end()


async def test_a_pre_allocated_reservation_takes_over_the_same_pods_after_a_crash() -> None:
    world = await World().begin(4)
    mine = {ALLOCATED: allocated_text("r", "uid-r")}
    running = await world.consumer("running", cpu="3", bound="n0", annotations=mine)
    await world.reservation(cpu="3", preAllocation=True, allocatePolicy="Restricted")
    assert (world.status()["phase"], world.given(running)) == ("Available", "r")
    await world.end()


async def test_the_room_of_a_pod_in_operating_mode_is_given_to_its_owner() -> None:
    world = await World().begin(4)
    key = world.api.add_pod("spare", cpu="3", bound="n0", labels={OPERATING_MODE: "Reservation"})
    world.api.change(key, metadata={"annotations": {OWNERS: json.dumps([MINE])}})
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    world.api.change(key, status=ready)
    await world.settle()
    web = await world.consumer(cpu="3")
    assert (world.where(web), world.given(web)) == ("n0", "spare")
    await world.end()


async def preempting(*cores: int, **args: Any) -> World:
    world = World()
    world.registry.register(
        "DefaultPreemption",
        lambda _, handle: DefaultPreemption(DefaultPreemptionArgs(), handle),
    )
    return await world.begin(*cores, more={"postFilter": {"DefaultPreemption": None}}, **args)


async def test_what_a_consumer_leaves_is_the_reservations_again_in_a_preemption() -> None:
    world = await preempting(4)
    await world.reservation(cpu="3")
    consumer = await world.consumer(cpu="3")
    urgent = world.api.add_pod("urgent", cpu="2", priority=1000)
    await world.settle()
    assert "deletionTimestamp" not in world.api.pods[consumer]["metadata"]
    assert world.where(urgent) == ""
    small = world.api.add_pod("small", cpu="1")
    await world.settle()
    assert world.where(small) == "n0"
    await world.end()


async def test_an_owner_of_higher_priority_gets_the_room_of_a_consumer() -> None:
    world = await preempting(4)
    await world.reservation(cpu="4")
    consumer = await world.consumer(cpu="4")
    urgent = await world.consumer("urgent", cpu="4", priority=1000)
    assert "deletionTimestamp" in world.api.pods[consumer]["metadata"]
    world.api.delete_pod(consumer)
    await world.settle()
    await world.advance(30)
    assert (world.where(urgent), world.given(urgent)) == ("n0", "r")
    await world.end()


@pytest.mark.parametrize("enabled", [False, True])
async def test_reservations_preempt_pods_only_if_that_is_enabled(enabled: bool) -> None:
    world = await preempting(4, enable_preemption=enabled)
    low = world.api.add_pod("low", cpu="3")
    await world.settle()
    await world.reservation(cpu="3")
    assert ("deletionTimestamp" in world.api.pods[low]["metadata"]) is enabled
    await world.end()


async def test_the_room_that_preemption_makes_is_kept_by_the_next_replica() -> None:
    """It begins with the objects alone; the victim has gone, and a rival is tried first."""
    first = await preempting(4, enable_preemption=True)
    low = first.api.add_pod("low", cpu="3")
    await first.settle()
    await first.reservation(cpu="3", template={"priority": 10})
    assert "deletionTimestamp" in first.api.pods[low]["metadata"]
    nominated = next(one for one in first.status()["conditions"] if one["type"] == "Nominated")
    assert (nominated["status"], nominated["message"]) == ("True", "n0")
    await first.end()

    second = await preempting(4, enable_preemption=True)
    rival = first.api.add_pod("rival", cpu="2", priority=10)
    first.api.delete_pod(low)
    take_over(second, first)
    await second.settle()
    assert second.where(rival) == ""
    await second.advance(60)
    assert second.status()["nodeName"] == "n0"
    assert all(one["type"] != "Nominated" for one in second.status()["conditions"])
    assert second.requested("n0") == 3000
    await second.end()


async def test_no_pod_can_take_the_place_of_the_one_that_holds_the_room() -> None:
    """Its name is none that a pod of the API server can have."""
    world = await World().begin(4)
    for name in ("r", "uid-r", "reservation-r"):
        world.api.add_pod(name, cpu="100m", bound="n0")
    await world.settle()
    await world.reservation(cpu="3")
    for name in ("r", "uid-r", "reservation-r"):
        world.api.delete_pod(f"default/{name}")
    await world.settle()
    assert world.requested("n0") == 3000
    await world.end()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"unschedulable": True}, "reservations r: unschedulable, or being deleted"),
        ({"allocatePolicy": "Restricted"}, "reservations r: too little cpu is left"),
    ],
)
async def test_a_pod_says_why_it_was_placed_beside_its_reservation(more: Any, why: str) -> None:
    """The question that is asked most often; of no reservation at all nothing is said."""
    world = await World().begin(8)
    await world.reservation(cpu="2", **more)
    key = await world.consumer(cpu="3")
    stranger = world.api.add_pod("stranger")
    await world.settle()
    assert (world.where(key), world.given(key), world.where(stranger)) == ("n0", "", "n0")
    said = [each for each in world.events if each[1] == "ReservationNotUsed"]
    text = f"placed on n0 beside available reservations of its owners: {why}"
    assert said == [("web", "ReservationNotUsed", text)]
    await world.end()


async def test_a_pod_that_has_its_reservation_says_nothing_about_it() -> None:
    world = await World().begin(8)
    await world.reservation(cpu="2")
    assert world.given(await world.consumer(cpu="1")) == "r"
    assert all(reason != "ReservationNotUsed" for _, reason, _ in world.events)
    await world.end()


OPERATING = {OPERATING_MODE: "Reservation"}
HOLDS = {OWNERS: json.dumps([MINE])}
RUNS = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


async def operate(world: World, cpu: str = "3") -> str:
    """A pod that runs on n0, and is a reservation for MINE."""
    key = world.api.add_pod("holder", cpu=cpu, bound="n0", labels=OPERATING)
    world.api.change(key, metadata={"annotations": HOLDS}, status=RUNS)
    await world.settle()
    return key


async def test_the_room_of_a_pod_in_operating_mode_counts_once() -> None:
    """It is its consumer's, as far as that requests it, and its own again after that."""
    world = await World().begin(4)
    holder = await operate(world)
    assert world.requested("n0") == 3000
    key = await world.consumer(cpu="2")
    assert (world.where(key), world.given(key)) == ("n0", "holder")
    assert world.requested("n0") == 3000
    world.api.change(holder, metadata={"labels": {**OPERATING, "seen": "yes"}})
    await world.settle()
    assert world.requested("n0") == 3000  # also after news of it
    other = world.api.add_pod("other", cpu="1")
    await world.settle()
    assert world.where(other) == "n0"
    world.api.delete_pod(key)
    await world.settle()
    assert world.requested("n0") == 4000
    late = world.api.add_pod("late", cpu="1")
    await world.settle()
    assert world.where(late) == ""
    world.api.delete_pod(holder)
    await world.settle()
    assert world.requested("n0") == 2000
    assert world.where(late) == "n0"
    await world.end()


@pytest.mark.parametrize("first", ["holder", "consumer"])
async def test_after_a_restart_the_room_of_a_pod_in_operating_mode_counts_once(first: str) -> None:
    """Whichever of the two is seen first, and also while it is not ready."""
    world = await World().begin(4)
    given = {ALLOCATED: allocated_text("holder", "uid-default-holder")}
    labels = MINE["labelSelector"]["matchLabels"]

    async def consume() -> None:
        key = world.api.add_pod("web", cpu="2", bound="n0", labels=labels)
        world.api.change(key, metadata={"annotations": given})
        await world.settle()

    if first == "consumer":
        await consume()
    holder = world.api.add_pod("holder", cpu="3", bound="n0", labels=OPERATING)
    world.api.change(holder, metadata={"annotations": HOLDS}, status=RUNS)
    if first == "holder":
        await consume()
    assert given[ALLOCATED] == allocated_text("holder", world.api.pods[holder]["metadata"]["uid"])
    await world.settle()
    assert world.requested("n0") == 3000
    world.api.change(holder, status={"phase": "Running", "conditions": []})
    await world.settle()
    assert world.requested("n0") == 3000
    world.api.change(holder, metadata={"labels": {}})
    await world.settle()
    assert world.requested("n0") == 5000  # it is no reservation any more
    await world.end()


async def test_pods_that_are_each_others_reservation_take_their_room() -> None:
    """Also one that names itself. Else their room would be free to others."""
    world = await World().begin(8)
    for name, other in (("a", "b"), ("b", "a"), ("self", "self")):
        key = world.api.add_pod(name, cpu="2", bound="n0", labels=OPERATING)
        given = {ALLOCATED: allocated_text(other, f"uid-default-{other}")}
        world.api.change(key, metadata={"annotations": {**HOLDS, **given}}, status=RUNS)
    await world.settle()
    assert [world.requested("n0") for _ in range(3)] == [6000] * 3
    await world.end()


async def test_what_a_consumer_leaves_is_reserved_although_nobody_has_looked_since() -> None:
    """No pod waits, so no view is taken between the news of both."""
    world = await World().begin(4)
    await world.reservation(cpu="3", node="n0", phase="Available")
    assert world.requested("n0") == 3000
    given = {ALLOCATED: allocated_text("r", "uid-r")}
    key = world.api.add_pod("web", cpu="3", bound="n0")
    world.api.change(key, metadata={"annotations": given})
    item = json.loads(json.dumps(world.api.reservations["r"]))
    item["metadata"]["labels"] = {"seen": "yes"}
    world.api.put(item)
    world.api.delete_pod(key)
    world.api.deliver()
    assert world.requested("n0") == 3000
    await world.end()
