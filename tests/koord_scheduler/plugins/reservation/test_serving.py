"""What people see of reservations: the endpoint, metrics, advice, plans of groups."""

from typing import Any

import pytest

from koord.api.reservation import AFFINITY, ALLOCATED
from koord_scheduler.framework.extension.providers import PluginRequest
from koord_scheduler.framework.types import NodeInfo
from koord_scheduler_plugins.reservation.consumers import allocated_text
from tests.support.reservations import MINE
from tests.support.scheduler.reservations import World


async def answer(world: World, node: str) -> Any:
    [endpoint] = world.plugin.endpoints()
    path = f"/nodeReservations/{node}"
    parameters = endpoint.match("GET", path)
    assert parameters == {"node": node}
    return await endpoint.answer(PluginRequest(parameters=parameters))


async def test_the_endpoint_has_the_reservations_of_a_node() -> None:
    world = await World().begin(8)
    await world.reservation(cpu="4", allocatePolicy="Restricted")
    await world.consumer(cpu="1")
    assert await answer(world, "n0") == {
        "items": [
            {
                "name": "r",
                "uid": "uid-r",
                "kind": "Reservation",
                "available": True,
                "allocateOnce": False,
                "allocatePolicy": "Restricted",
                "allocatable": {"cpu": "4"},
                "allocated": {"cpu": "1"},
                "availableResource": {
                    "MilliCPU": 3000,
                    "Memory": 0,
                    "EphemeralStorage": 0,
                    "AllowedPodNumber": 0,
                },
                "allocatedResource": {
                    "MilliCPU": 1000,
                    "Memory": 0,
                    "EphemeralStorage": 0,
                    "AllowedPodNumber": 0,
                },
                "owners": [MINE],
                "assignedPods": [
                    {
                        "Namespace": "default",
                        "Name": "web",
                        "UID": "uid-default-web",
                        "Requests": {"cpu": "1"},
                    }
                ],
            }
        ]
    }
    assert await answer(world, "other") == {}
    await world.end()


def sample(world: World, metric: str, **labels: str) -> float | None:
    return world.exposition.get_sample_value(metric, labels)


async def test_metrics_have_phases_and_amounts_of_the_reservations_that_there_are() -> None:
    world = await World().begin(8)
    await world.reservation(cpu="4")
    await world.reservation("large", cpu="40")
    await world.consumer(cpu="1")
    await world.advance(70)
    phase, amount = "scheduler_reservation_status_phase", "scheduler_reservation_resource"
    assert sample(world, phase, name="r", phase="Available") == 1
    assert sample(world, phase, name="r", phase="Pending") == 0
    assert sample(world, phase, name="large", phase="Pending") == 1
    labels = {"name": "r", "resource": "cpu"}
    assert sample(world, amount, type="allocatable", unit="core", **labels) == 4
    assert sample(world, amount, type="allocated", unit="core", **labels) == 1
    assert sample(world, amount, type="utilization", unit="ratio", **labels) == 0.25
    world.api.drop("r")
    await world.settle()
    await world.advance(70)
    assert sample(world, phase, name="r", phase="Available") is None
    await world.end()


@pytest.mark.parametrize(
    ("more", "affinity", "cpu", "advice"),
    [
        (
            {"owners": [{"labelSelector": {"matchLabels": {"app": "db"}}}]},
            "{}",
            "1",
            [
                "it must have a reservation, and no available one has an owner that matches it",
                "reservation r would help with an owner that matches the pod",
            ],
        ),
        (
            {},
            '{"name":"s"}',
            "1",
            [
                "reservations r: the pod names another one",
                "reservation r would help with annotation reservation-affinity of the pod: "
                '{"name": "r"}',
            ],
        ),
        (
            {"unschedulable": True},
            "{}",
            "1",
            [
                "reservations r: unschedulable, or being deleted",
                "reservation r would help with spec.unschedulable: false",
            ],
        ),
        (
            {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
            "{}",
            "1",
            [
                "reservations r: taint {k: v} is not tolerated",
                "reservation r would help with a toleration of taint k in annotation "
                "reservation-affinity of the pod",
            ],
        ),
        (
            {"allocatePolicy": "Restricted"},
            "{}",
            "3",
            [
                "reservations r: too little cpu is left",
                "reservation r would help with requests of the pod of cpu: 2 instead of 3",
            ],
        ),
        ({}, "{}", "2", []),
    ],
)
async def test_advice_says_why_reservations_do_not_help(
    more: Any, affinity: str, cpu: str, advice: list[str]
) -> None:
    world = await World().begin(4)
    await world.reservation(cpu="2", **more)
    assert world.status()["phase"] == "Available"
    key = await world.consumer(cpu=cpu, annotations={AFFINITY: affinity}, schedulerName="other")
    assert list(world.plugin.pending_advice(world.api.pod(key))) == advice
    await world.end()


async def test_a_plan_of_a_group_says_which_reservation_a_member_gets() -> None:
    world = await World().begin(4)
    await world.reservation(cpu="2")
    stale = {ALLOCATED: allocated_text("old", "uid-old")}
    mine = await world.consumer(schedulerName="other", annotations=stale)
    view = world.state.view()
    found = world.plugin.planned_annotations(world.api.pod(mine), NodeInfo(view, 0))
    assert found == {ALLOCATED: allocated_text("r", "uid-r")}
    world.api.drop("r")
    await world.settle()
    view = world.state.view()
    found = world.plugin.planned_annotations(world.api.pod(mine), NodeInfo(view, 0))
    assert found == {ALLOCATED: ""}
    await world.end()
