"""The controller: consumers in the status, expiry, garbage, and an API server that fails."""

import json
from dataclasses import replace
from typing import Any

import pytest

from koord.api.podmigrationjob import time_text
from koord.api.reservation import ALLOCATED
from koord.controlplane.testing import api_error_response
from koord.kube.transport import Call
from koord.util.health import HealthStatus
from koord_scheduler_plugins.reservation.consumers import allocated_text
from koord_scheduler_plugins.reservation.controller import ReservationController
from tests.support.reservations import MINE, reservation_json
from tests.support.scheduler.reservations import World

HOUR, DAY = 3600.0, 86400.0


def created(world: World, ago: float = 0.0) -> str:
    return time_text(world.clock.wall() - ago)


def controller(world: World) -> ReservationController:
    made = world.services.shared._parts["reservationController"].part
    assert isinstance(made, ReservationController)
    return made


async def test_the_status_has_the_consumers_and_what_they_hold() -> None:
    world = await World().begin(8)
    await world.reservation(cpu="4", created=created(world))
    first = await world.consumer("a", cpu="1")
    await world.consumer("b", cpu="2")
    await world.advance(1)
    owners = [one["name"] for one in world.status()["currentOwners"]]
    assert (sorted(owners), world.status()["allocated"]) == (["a", "b"], {"cpu": "3"})
    world.api.delete_pod(first)
    await world.settle()
    await world.advance(1)
    owners = [one["name"] for one in world.status()["currentOwners"]]
    assert (owners, world.status()["allocated"]) == (["b"], {"cpu": "2"})
    written = len(world.api.written)
    await world.advance(300)
    assert len(world.api.written) == written  # nothing has changed
    await world.end()


async def test_a_reservation_ends_when_its_time_is_over_and_goes_a_day_later() -> None:
    world = await World().begin(4)
    await world.reservation(cpu="4", ttl="1h", created=created(world))
    other = world.api.add_pod("other", cpu="4")
    await world.settle()
    await world.advance(HOUR - 60)
    assert world.status()["phase"] == "Available"
    await world.advance(120)
    ready = next(one for one in world.status()["conditions"] if one["type"] == "Ready")
    assert (world.status()["phase"], ready["reason"]) == ("Failed", "Expired")
    await world.advance(60)
    assert world.where(other) == "n0"
    await world.advance(DAY - 600)
    assert "r" in world.api.reservations
    await world.advance(1200)
    assert world.api.reservations == {}
    await world.end()


async def test_a_reservation_that_never_got_a_node_ends_too() -> None:
    world = await World().begin(1)
    await world.reservation(cpu="4", ttl="10m", created=created(world))
    await world.advance(700)
    assert world.status()["phase"] == "Failed"
    world.api.add_node("big", cpu="8")
    await world.settle()
    await world.advance(60)
    assert world.status()["phase"] == "Failed"
    await world.end()


async def test_a_reservation_goes_with_its_node() -> None:
    world = await World().begin(4)
    await world.reservation(cpu="4", created=created(world))
    world.api.delete_node("n0")
    await world.settle()
    await world.advance(1)
    assert world.status()["phase"] == "Failed"
    await world.advance(120)
    assert world.api.reservations == {}
    await world.end()


async def test_garbage_stays_if_it_is_to_stay() -> None:
    world = await World().begin(4, disable_garbage_collection=True)
    await world.reservation(cpu="4", ttl="1h", created=created(world))
    await world.advance(2 * HOUR)
    assert world.status()["phase"] == "Failed"
    await world.end()


async def test_a_status_that_cannot_be_written_is_tried_again() -> None:
    world = await World().begin(4)
    await world.reservation(cpu="4", created=created(world))

    def forbidden(call: Call) -> None:
        if call.method == "PATCH" and "reservations" in call.path:
            raise api_error_response(call, 403, "Forbidden", "no")
        world.api.faults.append(forbidden)

    world.api.faults.append(forbidden)
    await world.consumer("a", cpu="1")
    await world.advance(1)
    assert "currentOwners" not in world.status()
    assert controller(world).health().status is HealthStatus.DEGRADED
    assert "Reservation r cannot be written" in controller(world).health().reason
    await world.advance(6)
    assert [one["name"] for one in world.status()["currentOwners"]] == ["a"]
    assert controller(world).health().status is HealthStatus.OK
    await world.end()


async def test_what_another_replica_left_undone_is_done() -> None:
    world = await World().begin(4)
    status: dict[str, Any] = {"allocatable": {"cpu": "4"}}
    node = {"node": "gone", "phase": "Available"}
    await world.reservation(cpu="4", created=created(world), status=status, **node)
    await world.advance(70)
    assert (
        world.api.reservations.get("r", {"status": {"phase": "Failed"}})["status"]["phase"]
        == "Failed"
    )
    await world.end()


@pytest.mark.parametrize("enabled", [True, False])
async def test_pods_lose_a_reservation_that_has_gone_if_the_gate_is_on(enabled: bool) -> None:
    """Those of others stay, and so does what a pod says that has no node yet."""
    world = World()
    on = {"CleanExpiredReservationAllocated"} if enabled else set[str]()
    world.services = replace(world.services, gates=lambda name: name in on)
    await world.begin(8)
    for name in ("gone", "stays"):
        await world.reservation(name, cpu="2", created=created(world))
    keys = [await world.consumer(name, cpu="2") for name in ("a", "b")]
    await world.advance(1)
    given = {world.given(key): key for key in keys}
    assert given.keys() == {"gone", "stays"}
    world.api.drop("gone")
    await world.settle()
    await world.advance(5)
    assert world.given(given["stays"]) == "stays"
    assert world.given(given["gone"]) == ("" if enabled else "gone")
    await world.end()


async def test_a_reservation_that_is_not_known_yet_has_not_gone() -> None:
    """As at the start, when pods may be listed before Reservations; and a name that is none."""
    world = World()
    world.services = replace(world.services, gates=lambda name: True)
    await world.begin(8)
    await world.reservation("late", cpu="2", created=created(world))
    key = await world.consumer("a", cpu="1")
    world.plugin.tracker._changed(world.plugin.tracker.reservations["late"], None)
    await world.advance(5)
    assert world.given(key) == "late"
    odd = world.api.add_pod("odd", bound="n0")
    annotations = {ALLOCATED: allocated_text("../pods", "uid-odd")}
    world.api.change(odd, metadata={"annotations": annotations})
    await world.settle()
    await world.advance(5)
    assert world.given(odd) == ""
    await world.end()


ABSURD: dict[str, Any] = {
    "owners that match everything": {"owners": [MINE, {}]},
    "a selector without requirements": {"owners": [{"labelSelector": {}}]},
    "an unknown operator": {
        "owners": [{"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}]
    },
    "no values": {
        "owners": [{"labelSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}]
    },
    "a negative amount": {
        "template": {"spec": {"containers": [{"resources": {"requests": {"cpu": "-4"}}}]}}
    },
    "an amount that is none": {
        "template": {"spec": {"containers": [{"resources": {"requests": {"cpu": "four"}}}]}}
    },
    "a negative ttl": {"ttl": "-1h"},
    "no template": {"template": None},
    "an unknown policy": {"allocatePolicy": "Sideways"},
    "too many owners": {"owners": [MINE] * 300},
}


@pytest.mark.parametrize("change", ABSURD.values(), ids=ABSURD)
async def test_an_absurd_spec_is_said_by_a_condition_and_the_last_good_one_counts_on(
    change: dict[str, Any],
) -> None:
    """Its room stays as large as it was, its owners are the same, and no other pod gets it."""
    world = await World().begin(4)
    await world.reservation(cpu="3", created=created(world))
    good = world.api.reservations["r"]["spec"]
    put_spec(world, {**good, **change})
    await world.settle()
    await world.advance(1)
    assert world.requested("n0") == 3000
    said = next(one for one in world.status()["conditions"] if one["type"] == "Valid")
    assert (said["status"], said["reason"]) == ("False", "Invalid")
    assert said["message"].startswith(("reservation.spec", "the reservation misses"))
    written = len(world.api.written)
    await world.advance(300)
    assert len(world.api.written) == written  # it is said once
    other = world.api.add_pod("other", cpu="2")
    owner = await world.consumer("owner", cpu="2")
    assert (world.where(other), world.where(owner)) == ("", "n0")
    assert (world.given(owner), world.requested("n0")) == ("r", 3000)
    put_spec(world, good)
    await world.settle()
    await world.advance(1)
    said = next(one for one in world.status()["conditions"] if one["type"] == "Valid")
    assert (said["status"], said["message"]) == ("True", "")
    await world.end()


@pytest.mark.parametrize("template", [None, "text", {"metadata": {"namespace": 5}}, {"spec": []}])
async def test_whoever_starts_with_an_absurd_object_keeps_its_room(template: Any) -> None:
    """Its status says how much that is."""
    world = await World().begin(4)
    item = reservation_json("r", {"cpu": "3"}, node="n0", status={"allocatable": {"cpu": "3"}})
    item["metadata"].pop("creationTimestamp")
    item["spec"]["template"] = template
    world.api.put(item)
    await world.settle()
    await world.advance(1)
    assert world.requested("n0") == 3000
    other = world.api.add_pod("other", cpu="2")
    await world.settle()
    assert world.where(other) == ""
    await world.end()


def put_spec(world: World, spec: Any) -> None:
    item = json.loads(json.dumps(world.api.reservations["r"]))
    world.api.put({**item, "spec": spec})
