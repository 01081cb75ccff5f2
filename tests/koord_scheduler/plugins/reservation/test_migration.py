"""Reservations as koord-descheduler makes them: its migrations reserve first, and then evict."""

from koord.api.reservation import ALLOCATED
from koord_descheduler_plugins.migration.jobs import reservation_body
from koord_scheduler_plugins.node_constraints import NodeAffinity, NodeAffinityArgs
from koord_scheduler_plugins.reservation.consumers import allocated_text
from tests.support.descheduler.migration import make_job
from tests.support.scheduler.reservations import World

OWNER = {
    "apiVersion": "apps/v1",
    "kind": "ReplicaSet",
    "name": "web",
    "uid": "uid-of-web",
    "controller": True,
}


async def test_the_successor_of_a_migrated_pod_gets_what_was_reserved_for_it() -> None:
    world = World()
    world.registry.register(
        "NodeAffinity", lambda _, handle: NodeAffinity(NodeAffinityArgs(), handle)
    )
    points = {"preFilter": {"NodeAffinity": None}, "filter": {"NodeAffinity": None}}
    await world.begin(4, 4, more=points)
    mine = {ALLOCATED: allocated_text("earlier", "uid-of-earlier")}
    old = await world.consumer("old", cpu="2", bound="n0", annotations=mine)
    world.api.change(old, metadata={"ownerReferences": [OWNER]})
    body = reservation_body(make_job(), world.api.pods[old], "5m", world.clock.wall())
    body["metadata"] |= {"uid": "uid-of-it", "creationTimestamp": "2023-11-14T22:13:20Z"}
    world.api.put(body)
    await world.settle()
    name = body["metadata"]["name"]
    assert (world.status(name)["phase"], world.status(name)["nodeName"]) == ("Available", "n1")
    stranger = await world.consumer("stranger", cpu="3")
    assert world.where(stranger) == ""  # two of four cores are free on each node
    world.api.delete_pod(old)
    new = world.api.add_pod("new", cpu="2")
    world.api.change(new, metadata={"ownerReferences": [OWNER]})
    await world.settle()
    await world.advance(1)
    assert (world.where(new), world.given(new)) == ("n1", name)
    assert world.status(name)["phase"] == "Succeeded"
    assert [one["name"] for one in world.status(name)["currentOwners"]] == ["new"]
    await world.end()
