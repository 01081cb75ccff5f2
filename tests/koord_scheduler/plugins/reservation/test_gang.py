"""Gangs whose members are placed in reservations: planned as a whole, each in its own."""

from typing import Any

import pytest

from koord.api.podgroup import GROUP_ID_KEYS, MEMBER_COUNT_KEYS
from koord.api.reservation import AFFINITY
from koord.cluster.decoder import Decoder
from koord.cluster.keptfields import reads_of
from koord_scheduler_plugins.coscheduling.plugin import Coscheduling, CoschedulingArgs
from koord_scheduler_plugins.reservation.plugin import ReservationPlugin
from tests.support.scheduler.framework import FreeCpu
from tests.support.scheduler.gangs import labels_of
from tests.support.scheduler.reservations import World

POINTS = ("preEnqueue", "preFilter", "postFilter", "reserve", "permit", "preBind")


async def ganging(*cores: int) -> World:
    world = World()
    world.registry.register(
        "Coscheduling", lambda _, handle: Coscheduling(CoschedulingArgs(), handle)
    )
    more: dict[str, Any] = {point: {"Coscheduling": None} for point in POINTS}
    more["score"] = {"FreeCpu": FreeCpu()}
    await world.begin(*cores, more=more)
    world.api.decoder = Decoder(reads_of(ReservationPlugin) | reads_of(Coscheduling))
    return world


def add(
    world: World, name: str, cpu: str, minimum: int, app: str = "web", **annotations: str
) -> str:
    labels = {"app": app, **labels_of(minimum)}
    key = world.api.add_pod(name, cpu=cpu, labels=labels)
    if annotations:
        world.api.change(key, metadata={"annotations": annotations})
    return key


@pytest.mark.parametrize("once", [True, False])
async def test_each_member_gets_a_reservation_of_its_own(once: bool) -> None:
    world = await ganging(4)
    for name in ("one", "two"):
        await world.reservation(name, cpu="2", allocateOnce=once, allocatePolicy="Restricted")
    keys = [add(world, name, "2", 2, **{AFFINITY: "{}"}) for name in ("a", "b")]
    await world.settle()
    await world.advance(1)
    assert [world.where(key) for key in keys] == ["n0", "n0"]
    assert sorted(world.given(key) for key in keys) == ["one", "two"]
    await world.end()


async def test_a_gang_for_which_the_reservations_do_not_suffice_waits_as_a_whole() -> None:
    world = await ganging(4, 8)
    await world.reservation(cpu="3", allocatePolicy="Restricted", template={"nodeName": "n0"})
    keys = [add(world, name, "2", 2, **{AFFINITY: "{}"}) for name in ("a", "b")]
    await world.settle()
    await world.advance(1)
    assert [world.where(key) for key in keys] == ["", ""]
    assert world.requested("n0") == 3000
    await world.end()


@pytest.mark.parametrize("owner_first", [True, False])
async def test_a_member_is_not_planned_in_the_room_of_another_ones_reservation(
    owner_first: bool,
) -> None:
    """Though the nodes of the other one's cycle are without the pod that holds it."""
    world = await ganging(4, 8)
    world.api.add_pod("full", cpu="6", bound="n1")
    await world.reservation(cpu="3", template={"nodeName": "n0"})
    if owner_first:
        owner = add(world, "a", "1", 2, **{AFFINITY: "{}"})
    other = add(world, "b", "2", 2, app="other")
    if not owner_first:
        owner = add(world, "a", "1", 2, **{AFFINITY: "{}"})
    await world.settle()
    await world.advance(1)
    assert (world.where(owner), world.given(owner)) == ("n0", "r")
    assert (world.where(other), world.given(other)) == ("n1", "")
    await world.end()


async def test_a_reservation_that_is_a_member_says_with_how_many_it_was_placed() -> None:
    """Worked example 40 of gangs: in the annotations of the Reservation."""
    world = await ganging(4)
    await world.reservation("r", cpu="2", labels=labels_of(2))
    assert world.status()["phase"] == "Pending"
    key = add(world, "a", "2", 2, app="other")
    await world.settle()
    await world.advance(1)
    assert world.where(key) == "n0"
    assert world.status()["phase"] == "Available"
    annotations = world.api.reservations["r"]["metadata"]["annotations"]
    assert {annotations.get(one) for one in MEMBER_COUNT_KEYS} == {"2"}
    assert {annotations.get(one) for one in GROUP_ID_KEYS} == {"default/g"}
    await world.end()
