"""Random clusters, faults and losses of the lead: what must hold whatever happens."""

import asyncio
from random import Random
from typing import Any

import pytest
from loopkit import Loop
from schedulerkit import FreeCpu

from koord.cluster.facts import ClusterPod
from koord.controlplane.testing.server import refusal
from koord.kube.transport import Call
from koord.util.stop import Stop
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.interfaces import PermitPlugin, ReservePlugin
from koord_scheduler.framework.results import Wait
from koord_scheduler.framework.status import Status
from koord_scheduler.scheduling import scheduler

STEPS = 200


class Unreliable(ReservePlugin, PermitPlugin):
    """Raises, rejects, or has pods wait, now and then; keeps an account."""

    def __init__(self, draw: Random) -> None:
        self.draw = draw
        self.reserved: set[str] = set()

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        self.reserved.add(pod.uid)
        if self.draw.random() < 0.02:
            raise RuntimeError("reserve")
        return Status.unschedulable("no") if self.draw.random() < 0.02 else None

    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        self.reserved.discard(pod.uid)

    def permit(self, state: CycleState, pod: ClusterPod, node_name: str) -> Wait | Status | None:
        chance = self.draw.random()
        if chance < 0.05:
            return Wait(self.draw.uniform(0, 20))
        return Status.unschedulable("no permit") if chance < 0.07 else None


class Soak:
    """One random history."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.loop = Loop()
        self.account = Unreliable(self.draw)
        self.names = 0
        self.running: asyncio.Task[None] | None = None

    async def run(self) -> None:
        loop = await self.loop.build(
            filter={"FreeCpu": FreeCpu()},
            reserve={"Unreliable": self.account},
            permit={"Unreliable": self.account},
        )
        for number in range(4):
            loop.api.add_node(f"n{number}", cpu="4")
        self.lead()
        for _ in range(STEPS):
            await self.step()
            self.check()
        loop.api.faults.clear()
        loop.api.lost.clear()
        loop.api.hang = False
        for each in loop.api.hanging:
            each.set()
        self.account.draw = Random(0)
        for _ in range(60):
            await loop.advance(10)
        self.check()
        self.check_none_is_lost()
        await self.give_up()

    def lead(self) -> None:
        self.loop.stop = Stop(self.loop.clock)
        self.running = asyncio.create_task(self.loop.scheduler.run(self.loop.stop))

    async def give_up(self) -> None:
        self.loop.stop.set()
        await self.loop.clock.settle()
        assert self.running is not None
        assert self.running.done()
        bindings = len(self.loop.api.bindings)
        await self.loop.clock.advance(1)
        assert len(self.loop.api.bindings) == bindings

    async def step(self) -> None:
        loop, draw = self.loop, self.draw
        pods = sorted(loop.api.pods)
        match draw.choice(
            ["add"] * 6
            + ["delete"] * 3
            + ["fault"] * 3
            + ["lost", "hang", "node", "lead", "change"]
        ):
            case "add":
                for _ in range(draw.randrange(4)):
                    self.names += 1
                    loop.api.add_pod(f"w{self.names}", cpu=str(draw.randint(1, 3)))
            case "delete" if pods:
                loop.api.delete_pod(draw.choice(pods))
            case "fault":
                loop.api.faults.append(self.refuse)
            case "lost":
                loop.api.lost.append(self.refuse)
            case "hang":
                loop.api.hang = not loop.api.hang
                for each in () if loop.api.hang else loop.api.hanging:
                    each.set()
            case "node":
                self.change_node()
            case "lead":
                await self.give_up()
                await self.loop.settle()  # who leads next begins with a list
                self.lead()
            case "change" if pods:
                loop.api.change(draw.choice(pods), metadata={"labels": {"a": str(self.names)}})
        for _ in range(draw.randrange(3)):
            await asyncio.sleep(0)
        loop.api.deliver(draw.randrange(5))
        if draw.random() < 0.5:
            await loop.clock.advance(draw.choice([0.1, 1, 5]))
        if draw.random() < 0.3:
            await loop.settle()

    def refuse(self, call: Call) -> None:
        passing = [500, 429]  # about what is bound the server says nothing wrong
        status = self.draw.choice(passing if call.method == "GET" else [409, 404, *passing])
        raise refusal(call, status, "Fault", "no")

    def change_node(self) -> None:
        api, name = self.loop.api, f"n{self.draw.randrange(6)}"
        occupied = {pod["spec"].get("nodeName") for pod in api.pods.values()}
        if name in api.nodes and name not in occupied:
            api.delete_node(name)
        elif name not in api.nodes:
            api.add_node(name, cpu="4")

    def check(self) -> None:
        """Nothing is bound twice, and no node is over its allocatable."""
        api = self.loop.api
        bound = [key for key, _ in api.bindings]
        assert len(bound) == len(set(bound))
        used: dict[str, int] = {}
        for pod in api.pods.values():
            name = pod["spec"].get("nodeName")
            if name:
                cpu = int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])
                used[name] = used.get(name, 0) + cpu
        assert all(cpu <= 4 for cpu in used.values()), used

    def check_none_is_lost(self) -> None:
        """Each pod is bound, on its way, or in the queue; nothing else is kept of any."""
        loop, bindings = self.loop, 0
        for key, pod in loop.api.pods.items():
            place = loop.place(key)
            if pod["spec"].get("nodeName"):
                assert place == "", (key, place)
                continue
            assumed = loop.state.is_assumed(pod["metadata"]["uid"])
            bindings += assumed
            assert assumed or place in ("active", "backoff", "unschedulable"), (key, place)
        assert loop.state.assumed_count == bindings == loop.scheduler.bindings
        pending: Any = loop.scheduler.queue.pending
        assert sum(pending.values()) <= len(loop.api.pods)
        known = {pod["metadata"]["uid"] for pod in loop.api.pods.values()}
        assert self.account.reserved - known <= self.gone_when_bound()

    def gone_when_bound(self) -> set[str]:
        """Pods that were deleted after they had been bound: plugins learn of that otherwise."""
        return {f"uid-default-{key.partition('/')[2]}" for key, _ in self.loop.api.bindings}


@pytest.mark.parametrize("seed", range(8))
async def test_nothing_is_bound_twice_and_nothing_is_lost(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the server answers, whatever comes and goes, whoever leads."""
    monkeypatch.setattr(scheduler, "TURN", 0.0)  # real time would make each run another one
    await Soak(seed).run()
