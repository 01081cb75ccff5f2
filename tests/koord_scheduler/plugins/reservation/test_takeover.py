"""A process that is killed at any point of a reservation's life, and another that goes on."""

import asyncio
from typing import Any

import pytest

from koord.api.reservation import AFFINITY
from koord.kube.transport import Call
from koord.plugin.kube import Unreachable
from tests.support.scheduler.reservations import World

REQUESTS = 12  # more than it takes until the reservation has its owner


def fine(call: Call) -> None:
    """The request is carried out."""


def dead(call: Call) -> None:
    raise Unreachable("the process was killed")


@pytest.mark.parametrize("answered", [True, False], ids=["before a request", "before its answer"])
@pytest.mark.parametrize("requests", range(REQUESTS))
async def test_another_process_ends_what_one_has_begun(requests: int, answered: bool) -> None:
    """The reservation is available once, its one owner has it, and nothing is given twice."""
    first = await World().begin(4)
    first.api.faults = [fine] * (requests + (not answered)) + [dead] * 1000
    if not answered:
        first.api.lost = [fine] * requests + [dead] * 1000
    await first.reservation("r", cpu="3", allocateOnce=True, allocatePolicy="Restricted")
    owner = await first.consumer("owner", cpu="2", annotations={AFFINITY: '{"name":"r"}'})
    await first.advance(30)
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    second = await World().begin(4)
    take_over(second, first)
    await second.settle()
    await second.advance(300)

    assert (second.where(owner), second.given(owner)) == ("n0", "r")
    assert second.status()["phase"] == "Succeeded"
    assert [one["name"] for one in second.status()["currentOwners"]] == ["owner"]
    assert len([key for key, _ in second.api.bindings if key == owner]) == 1
    assert second.requested("n0") == 2000
    late = await second.consumer("late", cpu="2")
    assert (second.where(late), second.given(late)) == ("n0", "")
    await second.end()


def take_over(second: World, first: World) -> None:
    """What the API server has is listed by another process, pods before Reservations."""
    api: Any = second.api
    api.pods, api.bindings, api.versions = first.api.pods, first.api.bindings, 1000
    for key in api.pods:
        api._publish(key)
    for item in tuple(first.api.reservations.values()):
        api.put(item)
