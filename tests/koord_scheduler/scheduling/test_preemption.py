"""DefaultPreemption in the loop: from a pod without room to its binding where others have left."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from koord.controlplane.testing import api_error_response
from koord.util.stop import Stop
from koord_scheduler.framework.preemptions import Preemptions
from koord_scheduler_plugins.default_preemption import DefaultPreemption, DefaultPreemptionArgs
from tests.support.scheduler.loop import Loop


@asynccontextmanager
async def leading() -> AsyncIterator[Loop]:
    """A loop with DefaultPreemption, whose shared part runs."""
    loop = Loop()

    def make(args: object, handle: Any) -> DefaultPreemption:
        return DefaultPreemption(DefaultPreemptionArgs(), handle)

    loop.registry.register("DefaultPreemption", make)
    plugin: Any = {"DefaultPreemption": None}
    await loop.build(preEnqueue=plugin, postFilter=plugin)
    await loop.start()
    stop = Stop(loop.clock)
    acting = asyncio.create_task(Preemptions.of(loop.services).run(stop))
    try:
        yield loop
    finally:
        stop.set()
        await acting
        await loop.end()


async def full(loop: Loop) -> None:
    """Two nodes of two cores without room; on a the pods are less important."""
    for name, priority in (("a", 1), ("b", 2)):
        loop.api.add_node(name, cpu="2")
        for at in range(2):
            loop.api.add_pod(f"{name}{at}", bound=name, priority=priority)
    await loop.settle()


async def test_a_pod_of_higher_priority_gets_the_room_of_another_one() -> None:
    """One victim, marked and deleted; the pod waits for its end and is bound to that node."""
    async with leading() as loop:
        await full(loop)
        key = loop.api.add_pod("new", priority=10)
        await loop.settle()
        leaving = [name for name in loop.api.pods if loop.api.pod(name).deleting]
        assert len(leaving) == 1
        victim = leaving[0]
        assert victim in ("default/a0", "default/a1")
        condition = loop.api.pods[victim]["status"]["conditions"][0]
        assert (condition["type"], condition["reason"]) == (
            "DisruptionTarget",
            "PreemptionByScheduler",
        )
        assert loop.api.pods[key]["status"]["nominatedNodeName"] == "a"
        assert loop.place(key) == "unschedulable"

        loop.api.add_node("other", cpu="0")  # something happens, and the pod is tried again
        await loop.advance(5)
        assert [name for name in loop.api.pods if loop.api.pod(name).deleting] == leaving
        assert loop.where(key) == ""

        loop.api.delete_pod(victim)
        await loop.advance(10)
        assert loop.where(key) == "a"
        assert ("new", "Scheduled", "Successfully assigned default/new to a") in loop.events
        assert [reason for name, reason, _ in loop.events if name == victim[8:]] == ["Preempted"]


async def test_many_pods_take_no_more_victims_than_they_need() -> None:
    """Each takes room that none of the others was promised; equal ones wait."""
    async with leading() as loop:
        await full(loop)
        keys = [loop.api.add_pod(f"new{at}", priority=10) for at in range(5)]
        await loop.settle()
        for _ in range(12):
            for name in [name for name in loop.api.pods if loop.api.pod(name).deleting]:
                loop.api.delete_pod(name)
            await loop.advance(6)
        assert sorted(loop.where(key) for key in keys) == ["", "a", "a", "b", "b"]
        assert set(loop.api.pods) == set(keys)
        victims = {name for name, reason, _ in loop.events if reason == "Preempted"}
        assert victims == {"a0", "a1", "b0", "b1"}


async def test_a_deletion_that_fails_leads_to_another_try() -> None:
    """Without waiting for anything to happen in the cluster."""

    def fail(call: Any) -> None:
        if call.method == "DELETE":
            raise api_error_response(call, 500, "InternalError", "scripted")
        loop.api.faults.append(fail)

    async with leading() as loop:
        await full(loop)
        loop.api.faults.append(fail)
        key = loop.api.add_pod("new", priority=10)
        await loop.settle()
        assert loop.api.faults == []
        await loop.advance(10)
        (victim,) = [name for name in loop.api.pods if loop.api.pod(name).deleting]
        loop.api.delete_pod(victim)
        await loop.advance(10)
        assert loop.where(key) == "a"
