"""Random events: no gang is started below its minimum, and no quota filled beyond its max.

It is checked from outside, by the pods of the API server after each event. Two replicas take turns
as leaders; each begins with the objects alone. KOORD_RANDOM_EVENTS is the number of events of each
seed; 100000 take about an hour.
"""

import os
from collections import Counter
from random import Random
from typing import Any

import pytest

from koord.api.elasticquota import NAME
from koord.api.podgroup import GROUP_LABEL, LIGHTWEIGHT_MIN_LABEL, LIGHTWEIGHT_NAME_LABEL
from koord.cluster.kinds import NODE, POD
from koord_scheduler_plugins.coscheduling.serving import POD_GROUPS
from tests.koord_scheduler.plugins.elastic_quota.test_elastic_quota import World
from tests.support.clusters import read_node

EVENTS = int(os.environ.get("KOORD_RANDOM_EVENTS", "120"))
CORES = (4, 4, 6)  # of the nodes
QUOTAS = ("q1", "q2")
GROUPS = ("pg1", "pg2")
MAX_PODS = 30


class Life:
    """A small cluster to which things happen."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.names = 0
        self.quotas: dict[str, tuple[int, int, int]] = {}  # min, max, how often it was made
        self.groups: dict[str, tuple[int, int]] = {}  # minimum, how often it was made
        self.minimum: dict[str, int] = {}  # the least that a gang has had, by gang
        self.started: set[str] = set()  # gangs that have had their minimum on nodes
        self.placed: dict[str, str] = {}  # nodes of pods before the event, by key
        self.counts: Counter[str] = Counter()

    async def begin(self) -> None:
        self.world = await World().begin(*CORES, gangs=True, enable_reclaim=True)
        for name in QUOTAS:
            self.make_quota(name)
        for name in GROUPS:
            self.make_group(name)

    async def end(self) -> None:
        await self.world.end()

    async def step(self) -> None:
        happens = self.chance.choice(
            [self.gang, self.gang, self.gang, self.member, self.single, self.single]
            + [self.leave] * 4
            + [self.quota, self.group, self.take_over]
        )
        await happens()
        while len(self.world.api.pods) > MAX_PODS:
            await self.leave()
        await self.world.settle()
        await self.world.advance(11.0)
        self.check()

    # Events.

    async def gang(self) -> None:
        """A new gang, some members of which may come later or never."""
        self.names += 1
        name, minimum = f"g{self.names}", self.chance.randint(2, 4)
        self.minimum[f"default/{name}"] = minimum
        labels = {LIGHTWEIGHT_NAME_LABEL: name, LIGHTWEIGHT_MIN_LABEL: str(minimum)}
        for _ in range(minimum - (self.chance.random() < 0.2)):
            self.add(labels)

    async def member(self) -> None:
        """A pod of a gang that a PodGroup declares, whether it is there or not."""
        self.add({GROUP_LABEL: self.chance.choice(GROUPS)})

    async def single(self) -> None:
        self.add({})

    def add(self, labels: dict[str, str]) -> None:
        self.names += 1
        quota = self.chance.choice(("", *QUOTAS, *QUOTAS))
        cpu, priority = str(self.chance.randint(1, 2)), self.chance.randint(0, 3)
        self.world.add(f"p{self.names}", quota, cpu=cpu, labels=labels, priority=priority)

    async def leave(self) -> None:
        """A pod goes; those that are being deleted do first."""
        pods = self.world.api.pods
        if pods:
            leaving = [key for key in pods if "deletionTimestamp" in pods[key]["metadata"]]
            self.world.api.delete_pod(self.chance.choice(leaving or sorted(pods)))

    async def quota(self) -> None:
        """It goes, or is made anew under its name, or changes, or is absurd."""
        name = self.chance.choice(QUOTAS)
        match self.chance.randrange(4):
            case 0 if name in self.quotas:
                self.world.drop(name)
                self.quotas.pop(name)
            case 1 if name in self.quotas:
                self.world.quota(name, "-3", "-1", uid=f"{name}-{self.quotas[name][2]}")
            case 2 if name in self.quotas:
                self.world.drop(name)
                self.make_quota(name)
            case _:
                self.make_quota(name)

    def make_quota(self, name: str) -> None:
        low, times = self.chance.randint(0, 4), self.names
        self.quotas[name] = low, low + self.chance.randint(0, 6), times
        self.apply_quota(name)

    def apply_quota(self, name: str) -> None:
        low, high, times = self.quotas[name]
        self.world.quota(name, str(high), str(low), uid=f"{name}-{times}")

    async def group(self) -> None:
        """It goes, is absurd, or is made anew under its name."""
        name = self.chance.choice(GROUPS)
        match self.chance.randrange(3):
            case 0 if name in self.groups:
                self.world.services.informers.delete(POD_GROUPS, f"default/{name}")
                self.groups.pop(name)
            case 1 if name in self.groups:
                self.apply_group(name, -7, self.groups[name][1])
            case _:
                if name in self.groups and self.chance.random() < 0.5:
                    self.world.services.informers.delete(POD_GROUPS, f"default/{name}")
                self.make_group(name)

    def make_group(self, name: str) -> None:
        self.groups[name] = self.chance.randint(2, 3), self.names
        key = f"default/{name}"
        self.minimum[key] = min(self.minimum.get(key, 9), self.groups[name][0])
        self.apply_group(name, *self.groups[name])

    def apply_group(self, name: str, minimum: int, times: int) -> None:
        meta = {"namespace": "default", "name": name, "uid": f"{name}-{times}"}
        self.world.services.informers.apply(
            POD_GROUPS, {"metadata": meta, "spec": {"minMember": minimum}}
        )

    async def take_over(self) -> None:
        """The other replica leads, and knows the objects alone."""
        before, self.world = self.world, World()
        await before.lose_lead()
        before.stop.set()
        await before.clock.settle()
        api = self.world.api
        api.pods = before.api.pods
        await self.world.begin(*CORES, gangs=True, enable_reclaim=True)
        for name in self.quotas:
            self.apply_quota(name)
        for name in self.groups:
            self.apply_group(name, *self.groups[name])
        for item in api.nodes.values():
            self.world.state.put(NODE, read_node(item))
        for key in api.pods:
            self.world.state.put(POD, api.pod(key))
        self.counts["takeovers"] += 1

    # The oracle.

    def check(self) -> None:
        pods = self.world.api.pods
        nodes = {key: one["spec"]["nodeName"] for key, one in pods.items() if self.node_of(one)}
        new = nodes.keys() - self.placed.keys()
        self.counts["placed"] += len(new)
        self.placed = nodes
        for number, cores in enumerate(CORES):
            held = [self.cpu(pods[key]) for key, node in nodes.items() if node == f"n{number}"]
            assert sum(held) <= cores
        for name, (_, high, _) in self.quotas.items():
            of_quota = [key for key in nodes if pods[key]["metadata"]["labels"].get(NAME) == name]
            used = sum(self.cpu(pods[key]) for key in of_quota)
            if not new.isdisjoint(of_quota):
                assert used <= high, f"{name} has {used} of {high}"
            assert self.world.used(name) == used * 1000
        self.check_gangs(nodes, new)
        assert self.world.state.assumed_count == 0
        waiting = self.world.services.waiting
        assert all(waiting.get(one["metadata"]["uid"]) is None for one in pods.values())

    def check_gangs(self, nodes: dict[str, str], new: Any) -> None:
        """One that has been started is whole, and stays so but for members that leave."""
        bound: Counter[str] = Counter()
        for key in nodes:
            labels = self.world.api.pods[key]["metadata"]["labels"]
            name = labels.get(LIGHTWEIGHT_NAME_LABEL) or labels.get(GROUP_LABEL)
            if name:
                bound[f"default/{name}"] += 1
        for gang in self.started - bound.keys():
            self.started.discard(gang)
        for gang, count in bound.items():
            if gang not in self.started:
                assert count >= self.minimum[gang], f"{gang} has {count} of {self.minimum[gang]}"
                self.started.add(gang)
                self.counts["gangs"] += 1

    @staticmethod
    def node_of(pod: dict[str, Any]) -> str:
        found: str = pod["spec"].get("nodeName", "")
        return found

    @staticmethod
    def cpu(pod: dict[str, Any]) -> int:
        requests = pod["spec"]["containers"][0]["resources"]["requests"]
        return int(requests["cpu"])


@pytest.mark.parametrize("seed", range(3))
async def test_gangs_and_quotas_keep_their_promises_whatever_happens(seed):
    life = Life(seed)
    await life.begin()
    for _ in range(EVENTS):
        await life.step()
    await life.end()
    assert life.counts["placed"] > EVENTS / 8
    assert life.counts["gangs"] > EVENTS / 60
    assert life.counts["takeovers"]
