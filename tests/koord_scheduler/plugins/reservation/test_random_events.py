"""Random events: no room is given twice, and nobody who is gone holds any.

It is checked from outside after each event, by the objects of the API server. Two replicas take
turns as leaders; each begins with the objects alone, in any order. KOORD_RANDOM_EVENTS is the
number of events of each seed; 100,000 take about eight minutes of CPU.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from koord.api.reservation import AFFINITY, ALLOCATED, OPERATING_MODE, OWNERS, RESERVE_POD_NAME
from koord.kube.transport import Call
from koord.plugin.kube import Unreachable
from koord_scheduler_plugins.reservation.consumers import CONSUMERS, allocated_text, pool_name
from tests.support.reservations import reservation_json
from tests.support.scheduler.reservations import World

EVENTS = int(os.environ.get("KOORD_RANDOM_EVENTS", "120"))
CORES = (6, 6, 4)  # of the nodes
APPS = ("web", "db")
NAMES = ("r1", "r2", "r3", "r4", "r5")
MAX_PODS = 16
RUNS = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
ABSURD: tuple[dict[str, Any], ...] = (
    {"owners": [{}]},
    {"owners": [{"labelSelector": {}}]},
    {"owners": [{"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}]},
    {"ttl": "-5s"},
    {"template": {"spec": {"containers": [{"resources": {"requests": {"cpu": "-4"}}}]}}},
    {"template": None},
    {"allocatePolicy": "Sideways"},
)
Json = dict[str, Any]


class Life:
    """A small cluster to which things happen."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.names = 0
        self.app: dict[str, str] = {}  # of the owners, by uid of the reservation
        self.once: dict[str, bool] = {}
        self.restricted: dict[str, bool] = {}
        self.given: dict[str, str] = {}  # uids of reservations by key of the pod, before the event
        self.counts: Counter[str] = Counter()

    async def begin(self) -> None:
        self.world = await World().begin(*CORES)

    async def step(self) -> None:
        happens = self.chance.choice(
            [self.reserve, self.reserve, self.recreate, self.drop, self.absurd, self.operating]
            + [self.pod] * 6
            + [self.leave] * 4
            + [self.fault, self.cordon, self.take_over]
        )
        await happens()
        while len(self.world.api.pods) > MAX_PODS:
            await self.leave()
        await self.world.settle()
        await self.world.advance(31.0)
        for key, pod in self.world.api.pods.items():
            if self.is_operating(pod) and pod["spec"].get("nodeName") and self.changes(0.5):
                self.world.api.change(
                    key, status=RUNS if self.changes(0.8) else {"phase": "Running"}
                )
        await self.world.settle()
        self.check()
        self.counts["events"] += 1

    def changes(self, share: float) -> bool:
        return self.chance.random() < share

    # Events.

    async def reserve(self) -> None:
        name = self.chance.choice(NAMES)
        if name not in self.world.api.reservations:
            self.make(name)

    def make(self, name: str) -> None:
        self.names += 1
        uid, app = f"uid-{name}-{self.names}", self.chance.choice(APPS)
        policy, once = self.chance.choice(("", "Aligned", "Restricted")), self.changes(0.3)
        self.app[uid], self.once[uid] = app, once
        self.restricted[uid] = policy == "Restricted"
        more: Json = {"allocatePolicy": policy} if policy else {}
        if self.changes(0.3):
            more["ttl"] = "120s"
        item = reservation_json(
            name,
            {"cpu": str(self.chance.randint(1, 4))},
            node="",
            phase="Pending",
            template={"schedulerName": "p"},
            owners=[{"labelSelector": {"matchLabels": {"app": app}}}],
            allocateOnce=once,
            **more,
        )
        item["metadata"]["uid"] = uid
        item["metadata"].pop("creationTimestamp")
        self.world.api.put(item)

    async def recreate(self) -> None:
        """Another one under the same name, before anybody has seen that there was none."""
        for name in self.some(self.world.api.reservations):
            self.world.api.drop(name)
            self.make(name)

    async def drop(self) -> None:
        for name in self.some(self.world.api.reservations):
            self.world.api.drop(name)

    async def absurd(self) -> None:
        """The last good spec counts on."""
        for name in self.some(self.world.api.reservations):
            item = json.loads(json.dumps(self.world.api.reservations[name]))
            item["spec"] |= self.chance.choice(ABSURD)
            self.world.api.put(item)
            self.counts["absurd"] += 1

    async def operating(self) -> None:
        self.names += 1
        owners = [{"labelSelector": {"matchLabels": {"app": self.chance.choice(APPS)}}}]
        labels = {OPERATING_MODE: "Reservation"}
        key = self.world.api.add_pod(
            f"o{self.names}", cpu=str(self.chance.randint(1, 3)), labels=labels
        )
        self.world.api.change(key, metadata={"annotations": {OWNERS: json.dumps(owners)}})

    async def pod(self) -> None:
        self.names += 1
        labels = {"app": self.chance.choice((*APPS, *APPS, "other"))}
        cpu = str(self.chance.randint(1, 2))
        key = self.world.api.add_pod(f"p{self.names}", cpu=cpu, labels=labels)
        annotations = {}
        if self.changes(0.15):
            annotations[AFFINITY] = self.chance.choice(('{"name":"r1"}', "{}", "{"))
        if self.changes(0.1):  # what a pod says itself does not count
            annotations[ALLOCATED] = allocated_text("r1", "uid-r1-1")
        if annotations:
            self.world.api.change(key, metadata={"annotations": annotations})

    async def leave(self) -> None:
        for key in self.some(self.world.api.pods):
            self.world.api.delete_pod(key)

    async def fault(self) -> None:
        """Some requests are not carried out, or not answered."""

        def lost(call: Call) -> None:
            if call.method != "GET" and self.changes(0.5):
                raise Unreachable("lost")

        faults = [lost] * self.chance.randint(1, 6)
        if self.changes(0.5):
            self.world.api.faults = faults
        else:
            self.world.api.lost = faults
        self.counts["faults"] += 1

    async def cordon(self) -> None:
        """A node takes no more pods, or does so again; what it has stays."""
        number = self.chance.randrange(len(CORES))
        spec = {"unschedulable": True} if self.changes(0.4) else {}
        self.world.api.add_node(f"n{number}", cpu=str(CORES[number]), **spec)

    async def take_over(self) -> None:
        """The other replica leads, and knows the objects alone; the first may be cut short."""
        before = self.world
        if self.changes(0.5):
            await before.settle()
        mine = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not mine]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.world = await World().begin(*CORES)
        api: Any = self.world.api
        api.pods, api.bindings = before.api.pods, before.api.bindings
        api.versions = before.api.versions
        say = [lambda key=key: api._publish(key) for key in api.pods]
        say += [lambda item=item: api.put(item) for item in before.api.reservations.values()]
        self.chance.shuffle(say)
        for one in say:
            one()
        self.counts["takeovers"] += 1

    def some(self, names: Iterable[str]) -> list[str]:
        every = sorted(names)
        return [self.chance.choice(every)] if every else []

    # The oracle.

    def check(self) -> None:
        api = self.world.api
        bound = {key: one for key, one in api.pods.items() if one["spec"].get("nodeName")}
        self.counts["bound"] = max(self.counts["bound"], len(bound))
        rooms = {
            one["metadata"]["uid"]: (one["status"]["nodeName"], self.amount(one["status"]))
            for one in api.reservations.values()
            if one["status"].get("phase") == "Available"
        }
        holders = {
            one["metadata"]["uid"]: (one["spec"]["nodeName"], self.cpu(one))
            for one in bound.values()
            if self.is_operating(one)
        }
        used: Counter[str] = Counter()
        consumers: dict[str, list[str]] = {}
        for key, one in bound.items():
            text = one["metadata"].get("annotations", {}).get(ALLOCATED)
            uid = json.loads(text)["uid"] if text else ""
            place = (rooms | holders).get(uid)
            if place is not None:
                assert place[0] == one["spec"]["nodeName"], f"{key} is elsewhere than {uid}"
                used[uid] += self.cpu(one)
                consumers.setdefault(uid, []).append(key)
            if uid and key not in self.given:
                self.counts["consumers"] += 1
                if uid in self.app:
                    assert one["metadata"]["labels"]["app"] == self.app[uid]
            self.given[key] = uid
        for uid, (_, amount) in rooms.items():
            if self.restricted[uid]:
                assert used[uid] <= amount, f"{uid} of {amount} has given {used[uid]}"
        for uid, keys in consumers.items():
            if self.once.get(uid, True):
                assert len(keys) == 1, f"{uid} was given to {keys}"
        for number, cores in enumerate(CORES):
            node = f"n{number}"
            held = sum(
                self.cpu(one)
                for one in bound.values()
                if one["spec"]["nodeName"] == node and one["metadata"]["uid"] not in holders
            )
            held += sum(
                max(0, amount - used[uid])
                for uid, (name, amount) in (rooms | holders).items()
                if name == node
            )
            assert held <= cores, f"{node} with {cores} cores has given {held}"
            assert self.world.requested(node) == 1000 * held, node
        self.check_account(rooms, holders, consumers)

    def check_account(self, rooms: Json, holders: Json, consumers: dict[str, list[str]]) -> None:
        """Nobody who is gone is in it, and no reserve pod whose Reservation is gone."""
        world = self.world
        account = world.state.account
        for uid, (node, _) in (rooms | holders).items():
            members = account.pool(CONSUMERS, pool_name(uid, node)).members
            assert sorted(members) == sorted(consumers.get(uid, ()))
        view = world.state.view()
        names = [pod.name for row in range(len(view)) for pod in view.pods(row)]
        there = sorted(name for name in names if name.startswith(RESERVE_POD_NAME))
        available = (
            name for name, one in world.api.reservations.items() if one["metadata"]["uid"] in rooms
        )
        assert there == sorted(f"{RESERVE_POD_NAME}{name}" for name in available)
        assert world.state.assumed_count == 0

    @staticmethod
    def is_operating(pod: Json) -> bool:
        return OPERATING_MODE in pod["metadata"].get("labels", {})

    @staticmethod
    def cpu(pod: Json) -> int:
        return int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])

    @staticmethod
    def amount(status: Json) -> int:
        return int(status["allocatable"]["cpu"])


@pytest.mark.parametrize("seed", range(*map(int, os.environ.get("KOORD_SEEDS", "0:3").split(":"))))
async def test_reservations_keep_their_promises_whatever_happens(seed: int) -> None:
    life = Life(seed)
    await life.begin()
    for _ in range(EVENTS):
        await life.step()
    await life.world.end()
    assert life.counts["consumers"] > EVENTS / 30
    assert life.counts["takeovers"]
    assert life.counts["faults"]
    assert life.counts["bound"] > 5
