"""What is advised for a gang that waits places it, in random cases."""

import re
from random import Random
from typing import Any

import pytest

from koord.api.podgroup import GROUP_LABEL, GROUPS
from koord_scheduler.planning.report import Running, explanation
from koord_scheduler_plugins.queueing import SchedulingGates
from tests.support.scheduler.gangs import World

CASES = 500
WANTED = 0.95  # share of cases in which the advice must help
GATES = [{"name": "example.com/gate"}]


async def advice(world: World, name: str) -> list[str]:
    found: Any = await explanation(
        Running(world.scheduler, world.state), f"default/{name}", is_leader=True
    )
    sentences: list[str] = found["decision"]["advice"]
    return sentences


async def test_a_gang_without_room_names_the_node_that_would_help():
    world = await World().begin(2)
    for name in "abc":
        world.add(name, 3, cpu="2")
    await world.settle()
    assert await advice(world, "a") == [
        "1 of 3 pods that its gang group needs have nodes together",
        "its gang group would have room with a node with cpu:4 free",
    ]
    world.api.add_node("more", cpu="4")
    await world.advance(15.0)
    assert world.bound == ["a", "b", "c"]
    assert await advice(world, "a") == []
    await world.end()


class Case:
    """A random group of one or two gangs, of which pods, PodGroups, gates or room are lacking."""

    def __init__(self, draw: Random, world: World) -> None:
        self.draw, self.world = draw, world
        self.gangs = {name: draw.randint(1, 4) for name in ("g", "h")[: draw.randint(1, 2)]}
        self.group = "[" + ",".join(f'"default/{name}"' for name in self.gangs) + "]"
        self.gated: list[str] = []
        self.pods = self.nodes = 0

    def make(self) -> None:
        for name, minimum in self.gangs.items():
            if name == "g" or self.draw.random() < 0.7:
                self.make_group(name)
            there = self.draw.choice((minimum, minimum, self.draw.randint(0, minimum)))
            for _ in range(max(there, name == "g")):
                self.add(name, gated=self.draw.random() < 0.1)

    def make_group(self, name: str) -> None:
        self.world.pod_group(name, self.gangs[name], **{GROUPS: self.group})

    def add(self, gang: str, *, gated: bool = False) -> None:
        name = f"{gang}{self.pods}"
        self.pods += 1
        gates: dict[str, Any] = {"schedulingGates": GATES} if gated else {}
        if gated:
            self.gated.append(name)
        labels = {GROUP_LABEL: gang}
        self.world.api.add_pod(name, cpu=str(self.draw.randint(1, 3)), labels=labels, **gates)

    def ungated(self) -> str:
        """A member that its own gates do not keep; "": there is none."""
        names = sorted(key.partition("/")[2] for key in self.world.api.pods)
        return next((name for name in names if name not in self.gated), "")

    def apply(self, text: str) -> bool:
        """Do what a sentence says; return whether it says anything."""
        if found := re.search(r"gang default/(\w) needs more pods: (\d) of (\d)", text):
            for _ in range(int(found[3]) - int(found[2])):
                self.add(found[1])
        elif found := re.search(r"gang default/(\w) (of its group is missing|has no legal)", text):
            self.make_group(found[1])
        elif "have scheduling gates" in text:
            for name in self.gated:
                self.world.api.change(f"default/{name}", spec={"schedulingGates": []})
            self.gated = []
        elif found := re.search(r"with a node with cpu:(\d+) free", text):
            self.nodes += 1
            self.world.api.add_node(f"more{self.nodes}", cpu=found[1])
        else:
            return False
        return True


async def one_case(seed: int) -> bool | None:
    """Whether a gang that waits is placed after the advice; None: it does not wait."""
    draw, world = Random(seed), World()
    world.more = {"preEnqueue": {"SchedulingGates": SchedulingGates(None, None)}}
    await world.begin(*(draw.randint(1, 4) for _ in range(draw.randint(1, 3))))
    case = Case(draw, world)
    case.make()
    await world.settle()
    wanted, placed = "g0", None
    if case.ungated() and wanted not in world.bound:
        for _ in range(4):  # what is lacking after the first shortage is known then
            sentences = await advice(world, case.ungated())
            if not [one for one in sentences if case.apply(one)]:
                break
            await world.settle()
            await world.advance(15.0)
        placed = wanted in world.bound
    await world.end()
    return placed


@pytest.mark.parametrize("part", range(5))
async def test_the_cure_places_the_gang(part):
    """Until so many gangs have waited."""
    tried = placed = 0
    failed = []
    seed = part * 1_000_000
    while tried < CASES // 5:
        found = await one_case(seed)
        if found is not None:
            tried += 1
            placed += found
            if not found:
                failed.append(seed)
        seed += 1
    assert placed >= WANTED * tried, (placed, tried, failed[:10])
