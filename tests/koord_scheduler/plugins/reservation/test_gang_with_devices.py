"""Gangs whose members get devices or CPUs that reservations hold: planned as a whole."""

from typing import Any

import pytest

from koord.cluster.decoder import Decoder
from koord.cluster.keptfields import reads_of
from koord_scheduler_plugins.coscheduling.plugin import Coscheduling, CoschedulingArgs
from koord_scheduler_plugins.device_share.plugin import DeviceShare
from koord_scheduler_plugins.node_numa_resource.plugin import NodeNUMAResource
from koord_scheduler_plugins.reservation.plugin import ReservationPlugin
from tests.koord_scheduler.plugins.reservation.test_gang import POINTS
from tests.koord_scheduler.plugins.reservation.test_held_by_reservations import (
    LSR,
    MUST,
    HeldWorld,
    container,
)
from tests.support.scheduler.gangs import labels_of
from tests.support.scheduler.reservations import Points

PLUGINS = (ReservationPlugin, DeviceShare, NodeNUMAResource, Coscheduling)


class GangWorld(HeldWorld):
    """The same world with gangs."""

    async def begin(self, *cores: int, more: Points | None = None, **args: Any) -> "GangWorld":
        self.registry.register(
            "Coscheduling", lambda _, handle: Coscheduling(CoschedulingArgs(), handle)
        )
        points: dict[str, Any] = {point: dict(each) for point, each in (more or {}).items()}
        for point in POINTS:
            points[point] = {**points.get(point, {}), "Coscheduling": None}
        await super().begin(*cores, more=points, **args)
        return self

    async def gang(self, count: int, percent: int = 0, cpu: int = 0, *, must: bool) -> list[str]:
        labels = {"app": "web", **labels_of(count), **(LSR if cpu else {})}
        keys = []
        for number in range(count):
            each = [container(percent, cpu)]
            name = f"m{number}"
            keys.append(self.api.add_pod(name, labels=labels, containers=each, priority=9999))
            if must:
                self.api.change(keys[-1], metadata={"annotations": dict(MUST)})
        await self.settle()
        await self.advance(2)
        return keys


@pytest.fixture
async def world():
    made = await GangWorld().open("n0")
    reads = reads_of(PLUGINS[0])
    for one in PLUGINS[1:]:
        reads |= reads_of(one)
    made.api.decoder = Decoder(reads)
    made.services.pod_decoder._decoder = made.api.decoder
    yield made
    await made.end()


@pytest.mark.parametrize("must", [True, False])
@pytest.mark.parametrize("policy", ["Aligned", "Restricted"])
async def test_each_member_gets_the_card_of_its_own_reservation(
    world: GangWorld, policy: str, must: bool
) -> None:
    """Both cards of the node are reserved, each by another Reservation."""
    for name in ("r1", "r2"):
        await world.reserve(name, 100, allocatePolicy=policy)
    held = {name: world.cards_of(name) for name in ("r1", "r2")}
    keys = await world.gang(2, 100, must=must)
    assert [world.where(key) for key in keys] == ["n0", "n0"]
    assert sorted(world.given(key) for key in keys) == ["r1", "r2"]
    assert all(world.cards(key) == held[world.given(key)] for key in keys)
    assert world.used() == {0: 100, 1: 100}


@pytest.mark.parametrize("policy", ["Aligned", "Restricted"])
async def test_members_share_the_cards_of_one_reservation(world: GangWorld, policy: str) -> None:
    await world.reserve("r", 200, allocatePolicy=policy)
    keys = await world.gang(4, 50, must=True)
    assert {world.given(key) for key in keys} == {"r"}
    assert sum(sum(world.cards(key).values()) for key in keys) == 200
    assert world.used() == {0: 100, 1: 100}


async def test_a_gang_for_which_the_reserved_cards_do_not_suffice_waits_as_a_whole(
    world: GangWorld,
) -> None:
    """No member holds anything; when another Reservation has come, all are placed."""
    await world.reserve("r1", 100, allocatePolicy="Restricted")
    keys = await world.gang(2, 100, must=True)
    assert [world.where(key) for key in keys] == ["", ""]
    assert world.used() == {0: 100} or world.used() == {1: 100}
    await world.reserve("r2", 100, allocatePolicy="Restricted")
    await world.advance(60)
    assert sorted(world.given(key) for key in keys) == ["r1", "r2"]


async def test_a_gang_gets_no_card_that_only_others_have_reserved(world: GangWorld) -> None:
    owners = [{"labelSelector": {"matchLabels": {"app": "db"}}}]
    await world.reserve("theirs", 100, owners=owners)
    keys = await world.gang(2, 100, must=False)
    assert [world.where(key) for key in keys] == ["", ""]
    world.api.drop("theirs")
    await world.settle()
    await world.advance(60)
    assert [world.where(key) for key in keys] == ["n0", "n0"]
    assert world.used() == {0: 100, 1: 100}


@pytest.mark.parametrize("policy", ["Aligned", "Restricted"])
async def test_each_member_gets_the_cpus_of_its_own_reservation(
    world: GangWorld, policy: str
) -> None:
    for name in ("r1", "r2"):
        await world.reserve(name, cpu=8, allocatePolicy=policy)
    held = {name: world.cpus_of(name) for name in ("r1", "r2")}
    keys = await world.gang(2, cpu=8, must=True)
    assert sorted(world.given(key) for key in keys) == ["r1", "r2"]
    assert all(world.cpus(key) == held[world.given(key)] for key in keys)
