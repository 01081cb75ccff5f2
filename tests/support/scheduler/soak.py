"""A random history of a cluster, its faults and its leaders, and what must hold in it.

All is drawn from one seed on simulated time: a seed is always the same history.
"""

import asyncio
import sys
from collections.abc import Callable
from itertools import accumulate, repeat
from random import Random
from unittest.mock import patch

from koord.cluster.facts import ClusterPod
from koord.component.plugins.execution import RepeatedTimeLimit
from koord.controlplane.testing import api_error_response
from koord.kube.errors import Unreachable
from koord.kube.transport import Call
from koord.util import timebudget
from koord.util.simulatedclock import SimulatedClock
from koord_scheduler.framework.interfaces import PermitPlugin, PreBindPlugin, ReservePlugin
from koord_scheduler.framework.status import CycleState, Status, Wait
from tests.support.kube.inline_executor import InlineExecutor
from tests.support.scheduler.loop import Json
from tests.support.scheduler.soak_audit import Audit
from tests.support.scheduler.soak_replica import Replica
from tests.support.scheduler.soak_server import COLLECTIONS, THEIRS, Server
from tests.support.scheduler.soak_storage import KEPT, MADE, ONCE_POD, claims_of

STEPS = 200
MOST_PENDING = 12


class Unreliable(ReservePlugin, PermitPlugin, PreBindPlugin):
    """Raises, rejects, is slow, or has pods wait, now and then; keeps an account."""

    def __init__(self, clock: SimulatedClock, draw: Random) -> None:
        self.clock = clock
        self.draw = draw
        self.reserved: set[str] = set()
        self.decided: dict[str, float] = {}  # monotonic seconds, by uid
        self.behaves = False

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        self.reserved.add(pod.uid)
        self.decided[pod.uid] = self.clock.monotonic()
        if self._chance(0.02):
            raise RuntimeError("reserve")
        return Status.unschedulable("no") if self._chance(0.02) else None

    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        self.reserved.discard(pod.uid)

    def permit(self, state: CycleState, pod: ClusterPod, node_name: str) -> Wait | Status | None:
        if self._chance(0.05):
            return Wait(self.draw.uniform(0, 20))
        return Status.unschedulable("no permit") if self._chance(0.02) else None

    def pre_bind_pre_flight(
        self, state: CycleState, pod: ClusterPod, node_name: str
    ) -> Status | None:
        return None if self._chance(0.1) else Status.skip()

    async def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        await self.clock.sleep(self.draw.uniform(0, 10))
        if self._chance(0.1):
            raise RuntimeError("pre bind")
        return None

    def _chance(self, share: float) -> bool:
        return not self.behaves and self.draw.random() < share


class Soak:
    """One random history."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.clock = SimulatedClock()
        self.server = Server(self.clock)
        self.audit = Audit(self.server)
        self.limits = RepeatedTimeLimit()
        self.scheduled: list[str] = []  # uids of pods, by the events of processes that have ended
        self.names = 0
        self.missing: list[str] = []  # names of claims that pods have, and that do not exist
        self.steps: list[str] = []  # for who looks at a failure

    async def run(self) -> None:
        for number in range(4):
            self.server.add_node(f"n{number}")
        self.leader, self.standby = await self.replica(), await self.replica()
        await self.settle()
        self.leader.lead()
        for _ in range(STEPS):
            await self.step()
            self.check()
        await self.calm()
        self.check()
        self.check_quiet()
        for replica in self.replicas:
            await replica.end()
        self.check()

    @property
    def replicas(self) -> tuple[Replica, Replica]:
        return self.leader, self.standby

    async def replica(self) -> Replica:
        """A process begins."""
        account = Unreliable(self.clock, self.draw)
        made = Replica(self.server, self.clock, self.draw, account, self.limits)
        made.line.decided = account.decided
        await made.start()
        return made

    async def calm(self) -> None:
        """End all faults, and wait for less than what is retried without a reason.

        What a plugin has rejected that names no events is tried again when any happens.
        """
        for replica in self.replicas:
            line = replica.line
            line.faults.clear()
            line.lost.clear()
            line.away = False
            line.let_go()
        for replica in self.replicas:
            replica.plugin.behaves = True
        for number in range(30):
            if number == 10:  # all permits are over
                self.server.label_nodes("calm")
            self.reap()
            self.server.storage.work(self.server.nodes, lambda: False)
            await self.clock.advance(5)
            await self.settle()

    async def settle(self) -> None:
        """Let everything happen that happens without time, watch events too."""
        await self.clock.settle()
        for _ in range(1000):
            version = self.server.version
            for replica in self.replicas:
                for collection in COLLECTIONS:
                    replica.line.deliver(collection)
            await self.clock.settle()
            if version == self.server.version:
                return
        raise AssertionError("the cluster does not come to rest")

    async def step(self) -> None:
        draw = self.draw
        action = draw.choice(ACTIONS)
        self.steps.append(action)
        await getattr(self, f"do_{action}")()
        for _ in range(draw.randrange(3)):
            await asyncio.sleep(0)
        for replica in self.replicas:
            for collection in COLLECTIONS:
                if draw.random() < 0.8:
                    replica.line.deliver(collection, draw.randrange(6))
        if draw.random() < 0.5:
            await self.clock.advance(draw.choice([0.1, 1, 5]))
        if draw.random() < 0.3:
            await self.settle()
        if draw.random() < 0.3:
            self.reap()

    async def do_add(self) -> None:
        """Pods, as long as few are pending: what is tried again and again shows nothing new."""
        draw, pods = self.draw, self.server.pods.values()
        pending = sum(not pod["spec"].get("nodeName") for pod in pods)
        for _ in range(draw.randrange(max(1, min(12, MOST_PENDING - pending)))):
            self.names += 1
            more = {"priority": draw.choice([0, 0, 0, 10])}
            if draw.random() < 0.2:
                more["ports"] = [{"containerPort": 80, "hostPort": draw.choice([80, 81])}]
            name = f"w{self.names}"
            memory = f"{draw.randint(1, 3)}Gi"
            if draw.random() < 0.3:
                more["volumes"] = self.claims()
            self.server.add_pod(name, cpu=str(draw.randint(1, 3)), memory=memory, **more)

    def claims(self) -> list[Json]:
        """Volumes of a new pod: one or two claims, new, another pod's, or missing."""
        draw, storage, made = self.draw, self.server.storage, []
        for _ in range(draw.choice([1, 1, 2])):
            if storage.claims and draw.random() < 0.3:
                made.append(draw.choice(sorted(storage.claims)).partition("/")[2])
                continue
            self.names += 1
            made.append(f"c{self.names}")
            if draw.random() < 0.9:
                self.claim(made[-1], MADE if len(made) > 1 else draw.choice([KEPT, MADE]))
            else:
                self.missing.append(made[-1])
        return [
            {"name": f"v{at}", "persistentVolumeClaim": {"claimName": name}}
            for at, name in enumerate(dict.fromkeys(made))
        ]

    def claim(self, name: str, cls: str) -> None:
        """A claim that is bound, waits for its first pod, or is for one pod only."""
        draw = self.draw
        zone = draw.choice(["", "", "a", "b"]) if cls == MADE else ""
        mode = draw.choice(["ReadWriteOnce", "ReadWriteOnce", ONCE_POD])
        self.server.storage.add_claim(name, cls=cls, mode=mode, zone=zone)

    async def do_volumes(self) -> None:
        """The controllers work; a volume, or a claim that was missing, comes; others go."""
        draw, storage = self.draw, self.server.storage
        storage.work(self.server.nodes, lambda: draw.random() < 0.2)
        if draw.random() < 0.5:
            storage.add_volume(draw.choice("ab"))
        if self.missing and draw.random() < 0.5:
            self.claim(self.missing.pop(0), MADE)
        used = {key for pod in self.server.pods.values() for key in claims_of(pod)}
        for key in sorted(storage.claims.keys() - used):
            if draw.random() < 0.3:
                storage.delete_claim(key)

    async def do_limit(self) -> None:
        """A node can attach more volumes."""
        name = self.draw.choice(sorted(self.server.storage.limits))
        self.server.storage.limit(name, self.server.storage.limits[name] + 1)

    async def do_delete(self) -> None:
        for _ in range(self.draw.randrange(10)):
            if self.server.pods:
                self.server.delete_pod(self.draw.choice(sorted(self.server.pods)))

    async def do_again(self) -> None:
        """A pod is deleted, and made again at once, as those of a StatefulSet are."""
        if self.server.pods:
            key = self.draw.choice(sorted(self.server.pods))
            self.server.delete_pod(key)
            self.names += 1
            name = key.partition("/")[2]
            self.server.add_pod(name, uid=f"uid-{name}-{self.names}")

    async def do_change(self) -> None:
        if self.server.pods:
            key = self.draw.choice(sorted(self.server.pods))
            self.server.change(key, metadata={"labels": {"a": str(self.names)}})

    async def do_ending(self) -> None:
        if self.server.pods:
            key = self.draw.choice(sorted(self.server.pods))
            self.server.change(key, metadata={"deletionTimestamp": "2026-07-24T06:52:45Z"})

    async def do_taken(self) -> None:
        """Another scheduler binds one of our pods, to a node of its own."""
        pending = [key for key, pod in self.server.pods.items() if not pod["spec"].get("nodeName")]
        if pending:
            if THEIRS not in self.server.nodes:
                self.server.add_node(THEIRS, unschedulable=True)
            self.server.change(self.draw.choice(sorted(pending)), spec={"nodeName": THEIRS})

    async def do_fault(self) -> None:
        self.leader.line.faults.append(self.refuse)

    async def do_lost(self) -> None:
        self.leader.line.lost.append(self.refuse)

    async def do_hang(self) -> None:
        line = self.leader.line
        if line.hang or line.hang_after:
            line.let_go()
        elif self.draw.random() < 0.5:
            line.hang = True
        else:
            line.hang_after = True

    async def do_away(self) -> None:
        line = self.draw.choice(self.replicas).line
        line.away = not line.away

    async def do_cut(self) -> None:
        how = self.draw.choice(["closed", "broken", "expired", "bookmark"])
        self.draw.choice(self.replicas).line.cut(self.draw.choice(COLLECTIONS), how)

    async def do_compact(self) -> None:
        self.server.compact()

    async def do_node(self) -> None:
        """A node comes, goes if it is empty, shrinks, grows, or is cordoned."""
        draw, server, name = self.draw, self.server, f"n{self.draw.randrange(6)}"
        occupied = {pod["spec"].get("nodeName") for pod in server.pods.values()}
        if name not in server.nodes:
            server.add_node(name)
        elif draw.random() < 0.5:
            more = {"unschedulable": True} if draw.random() < 0.3 else {}
            server.add_node(
                name, cpu=str(draw.choice([4, 8, 12])), pods=str(draw.choice([4, 8])), **more
            )
        elif name not in occupied:
            server.delete_node(name)

    async def do_clock(self) -> None:
        self.clock.step_wall(self.draw.choice([-3600, -1, 1, 3600]))

    async def do_lead(self) -> None:
        """The other one takes the lead: it is given up, or runs out while its holder hangs."""
        old, new = self.replicas
        hangs = self.draw.random() < 0.5
        if hangs:
            old.is_leader = False
            await self.clock.advance(5)
            new.lead()
            for _ in range(self.draw.randrange(20)):
                await asyncio.sleep(0)
        await old.end(lost=hangs)
        self.scheduled += [uid for uid, _ in old.events("Scheduled")]
        self.server.lines.remove(old.line)
        old.is_leader = False
        if not hangs:
            new.lead()
        self.leader, self.standby = new, await self.replica()

    def refuse(self, call: Call) -> None:
        """About what is bound the server says nothing wrong."""
        passing = [500, 503, 429, 401, 0]
        status = self.draw.choice(passing if call.method == "GET" else [409, 404, *passing])
        if status == 0:
            raise Unreachable(f"{call.where}: the connection was reset")
        raise api_error_response(call, status, "Fault", "no")

    def reap(self) -> None:
        """Pods that are ending have ended."""
        for key, pod in sorted(self.server.pods.items()):
            if "deletionTimestamp" in pod["metadata"]:
                self.server.delete_pod(key)

    def check(self) -> None:
        self.audit.check_log()
        assert not self.audit.faults, (self.audit.faults, self.steps)

    def check_quiet(self) -> None:
        """All is as the server has it, and nothing that could be bound is pending."""
        self.audit.check_pending()
        assert not self.audit.faults, (self.audit.faults, self.steps)
        assert not (leaks := self.leader.leaks(self.server)), (leaks, self.steps)
        unbound = {
            pod["metadata"]["uid"]
            for pod in self.server.pods.values()
            if not pod["spec"].get("nodeName")
        }
        reserved = self.leader.plugin.reserved & unbound
        assert not reserved, (reserved, self.steps)
        scheduled = [*self.scheduled, *(uid for uid, _ in self.leader.events("Scheduled"))]
        assert len(scheduled) == len(set(scheduled))
        assert set(scheduled) <= set(self.audit.bound)


ACTIONS = (
    ["add"] * 6
    + ["delete"] * 8
    + ["fault"] * 3
    + ["node"] * 2
    + ["volumes"] * 4
    + ["limit", "again", "change", "ending", "taken", "lost", "hang", "away", "cut", "compact"]
    + ["clock", "lead"]
)


def drawn_seconds(draw: Random) -> Callable[[], float]:
    """Time that passes while work holds the event loop: real one would make each run another."""
    steps = (draw.choice([0.0, 0.001, 0.01]) for _ in repeat(None))
    return accumulate(steps).__next__


async def play(seed: int) -> list[str]:
    """Play the history of a seed; return what the API server has been asked, and when."""
    asyncio.get_running_loop().set_default_executor(InlineExecutor(1))
    with patch.object(timebudget, "real_seconds", drawn_seconds(Random(seed))):
        soak = Soak(seed)
        await soak.run()
    return soak.server.journal


if __name__ == "__main__":  # SEED: in a process of its own
    print(*asyncio.run(play(int(sys.argv[1]))), sep="\n")
