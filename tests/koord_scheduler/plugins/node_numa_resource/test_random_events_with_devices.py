"""Random events for CPUs, NUMA nodes and devices together: none is given beyond what there is.

It is checked from outside, by the annotations of the pods that are there. NodeResourceTopology and
Device objects come late, vanish, shrink, have gaps in their NUMA ids, and lie. KOORD_RANDOM_EVENTS
is the number of events of each seed.
"""

import json
import os
from collections import Counter
from functools import lru_cache
from random import Random

import pytest

from koord.api.annotations import DEVICE_ALLOCATED, RESOURCE_SPEC, RESOURCE_STATUS
from koord.api.machine import parse_cpulist
from koord.api.quantity import Quantity
from koord_scheduler.plugin import ClusterPod
from koord_scheduler.plugin.testing import PluginHarness, fake_cluster, make_pod
from koord_scheduler_plugins.default_binding import DefaultPreBind
from koord_scheduler_plugins.device_share.plugin import DEVICE_OBJECTS, DeviceShare
from koord_scheduler_plugins.node_numa_resource.plugin import TOPOLOGIES, NodeNUMAResource
from tests.support.scheduler.devices import CARD, CORE, MEMORY, RATIO, device_object, gpu, nic
from tests.support.scheduler.numa import topology_object

EVENTS = int(os.environ.get("KOORD_RANDOM_EVENTS", "300"))
NODES = ("n0", "n1", "n2")
CPUS, MEMORY_OF_ZONE = 32, 32 << 30  # bytes
MAX_PODS = 40
TOPOLOGY = "node.koordinator.sh/cpu-topology"
POLICY = "node.koordinator.sh/numa-topology-policy"
POLICIES = ("", "SingleNUMANode", "SingleNUMANode", "Restricted", "BestEffort")
MOST = {MEMORY: CARD, CORE: 100, RATIO: 100}  # that a card has; an RDMA interface has 100
REQUESTS: tuple[dict[str, str], ...] = (
    {"nvidia.com/gpu": "1"},
    {"nvidia.com/gpu": "2"},
    {"nvidia.com/gpu": "4"},
    {CORE: "30", RATIO: "30"},
    {RATIO: "70"},
    {"nvidia.com/gpu": "1", "koordinator.sh/rdma": "50"},
    {},
    {},
)


@lru_cache(maxsize=1024)
def devices_in(text: str) -> tuple[tuple[str, int, str, int], ...]:
    """Type, minor, resource and amount of all that an annotation gives."""
    return tuple(
        (kind, one["minor"], resource, Quantity.parse(amount).integer)
        for kind, devices in json.loads(text).items()
        for one in devices
        for resource, amount in one["resources"].items()
    )


@lru_cache(maxsize=1024)
def cpus_in(text: str) -> tuple[frozenset[int], tuple[tuple[int, int, int], ...]]:
    """CPUs, and for each NUMA node its id, milli-CPU and bytes."""
    status = json.loads(text)
    zones = [(one["node"], one["resources"]) for one in status.get("numaNodeResources", ())]
    amounts = (
        (
            node,
            Quantity.parse(each.get("cpu", "0")).milli,
            Quantity.parse(each.get("memory", "0")).integer,
        )
        for node, each in zones
    )
    return parse_cpulist(status.get("cpuset", "")), tuple(amounts)


class Life:
    """A small cluster to which things happen."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.cluster = fake_cluster()
        extra = {"DeviceShare": DeviceShare, "DefaultPreBind": DefaultPreBind}
        self.harness = PluginHarness(NodeNUMAResource, self.cluster, extra_plugins=extra)
        self.harness.server.answer(lambda call: {})
        self.number = self.placed = self.with_both = self.with_zones = 0
        self.gap = dict.fromkeys(NODES, 1)  # between the ids of the two NUMA nodes
        self.cpus: dict[str, set[int]] = {name: set() for name in NODES}  # of good objects
        self.cards: dict[str, dict[int, int]] = {name: {} for name in NODES}  # zones
        self.policies = dict.fromkeys(NODES, "")
        for name in NODES:
            self.node(name)
            if self.chance.random() < 0.8:  # others come late
                self.topology(name)
            if self.chance.random() < 0.8:
                self.device(name)

    async def step(self) -> None:
        name = self.chance.choice(NODES)
        match self.chance.randrange(12):
            case 0:
                self.topology(name)
            case 1:
                self.device(name)
            case 2:
                self.lie_of_cpus(name)
            case 3:
                self.lie_of_devices(name)
            case 4:
                self.node(name)
            case 5 | 6:
                self.leave()
            case _:
                await self.come()
        while len(self.everyone()) > MAX_PODS:
            self.leave()
        self.check()

    def node(self, name: str) -> None:
        self.policies[name] = self.chance.choice(POLICIES)
        labels = {POLICY: self.policies[name]} if self.policies[name] else {}
        self.cluster.node(
            name, cpu=CPUS, memory="64Gi", labels=labels, allocatable={"nvidia.com/gpu": 8}
        )

    def topology(self, name: str) -> None:
        """Two NUMA nodes, of which CPUs may be unplugged, or no object at all."""
        if self.chance.random() < 0.15:
            self.cpus[name] = set()
            self.harness.informers.delete(TOPOLOGIES, name)
            return
        self.gap[name] = self.chance.choice((1, 1, 7, 60))
        found = topology_object(name, "2x1x8x2")
        rows = json.loads(found["metadata"]["annotations"][TOPOLOGY])["detail"]
        for _ in range(self.chance.choice((0, 0, 1, 9))):
            del rows[self.chance.randrange(len(rows))]
        for cpu in rows:
            cpu["node"] *= self.gap[name]
        found["zones"][1]["name"] = f"node-{self.gap[name]}"
        if self.chance.random() < 0.1:
            found["zones"][0]["resources"][0]["allocatable"] = "-5"
        found["metadata"]["annotations"][TOPOLOGY] = json.dumps({"detail": rows})
        self.cpus[name] = {cpu["id"] for cpu in rows}
        self.harness.informers.apply(TOPOLOGIES, found)

    def lie_of_cpus(self, name: str) -> None:
        """An object that is refused whole: the last good one counts."""
        found = topology_object(name, "2x1x8x2")
        rows = json.loads(found["metadata"]["annotations"][TOPOLOGY])["detail"]
        match self.chance.randrange(4):
            case 0:
                rows[3]["id"] = 4097 + self.chance.randrange(10**6)
            case 1:
                rows[3]["id"] = rows[2]["id"]
            case 2:
                rows[3]["node"] = -7
            case _:
                found["zones"][0]["name"] = "node-99999"
        found["metadata"]["annotations"][TOPOLOGY] = json.dumps({"detail": rows})
        self.harness.informers.apply(TOPOLOGIES, found)

    def device(self, name: str) -> None:
        """Eight cards, four near each NUMA node, or fewer, some broken, or no object at all."""
        if self.chance.random() < 0.15:
            self.cards[name] = {}
            self.harness.informers.delete(DEVICE_OBJECTS, name)
            return
        gap = self.gap[name]
        cards = [gpu(minor, numa=minor // 4 * gap, pcie=str(minor // 2)) for minor in range(8)]
        nics = [nic(minor + 1, numa=minor // 2 * gap, pcie=str(minor)) for minor in range(4)]
        if self.chance.random() < 0.3:
            del cards[self.chance.randrange(8) :]
        for one in self.chance.sample(cards, min(len(cards), self.chance.choice((0, 0, 2)))):
            one["health"] = False
        self.cards[name] = {
            one["minor"]: one["topology"]["nodeID"] for one in cards if one["health"]
        }
        self.harness.informers.apply(DEVICE_OBJECTS, device_object(name, cards + nics))

    def lie_of_devices(self, name: str) -> None:
        """Devices that cannot be as described, or an object that is refused whole."""
        cards = [gpu(minor, numa=0, pcie="0") for minor in range(4)]
        match self.chance.randrange(3):
            case 0:
                cards[0]["resources"] = {CORE: "-5", RATIO: "-5", MEMORY: "-1"}
                self.cards[name] = {1: 0, 2: 0, 3: 0}
            case 1:
                cards[0]["minor"] = cards[1]["minor"]
                self.cards[name] = {2: 0, 3: 0}
            case _:
                cards[0]["minor"] = "many"
        self.harness.informers.apply(DEVICE_OBJECTS, device_object(name, cards))

    async def come(self) -> None:
        self.number += 1
        cpu, asked = self.chance.choice((1, 2, 4, 6, 12)), dict(self.chance.choice(REQUESTS))
        requests = {"cpu": str(cpu), "memory": "2Gi", **asked}
        containers = [{"name": "main", "resources": {"requests": requests}}]
        annotations = {}
        if self.chance.random() < 0.3:
            annotations[RESOURCE_SPEC] = '{"requiredCPUBindPolicy":"FullPCPUs"}'
        pod = make_pod(
            f"p{self.number}",
            spec={"containers": containers},
            labels={"koordinator.sh/qosClass": self.chance.choice(("LSR", "LS"))},
            annotations=annotations,
            phase="Pending",
        )
        done = await self.harness.schedule(pod)
        if done.node is None:
            if self.cluster.state.pod(pod.key) is not None:
                self.cluster.delete("Pod", pod.key)
            return
        bound = self.cluster.state.pod(pod.key)
        assert bound is not None
        self.placed += 1
        self.check_new(bound, done.node)

    def check_new(self, pod: ClusterPod, node: str) -> None:
        """It has what is there now: CPUs, cards, and with a policy those of one NUMA node."""
        texts = dict(pod.annotations)
        cpus, zones = cpus_in(texts.get(RESOURCE_STATUS, "{}"))
        assert cpus <= self.cpus[node]
        given = devices_in(texts.get(DEVICE_ALLOCATED, "{}"))
        minors = {minor for kind, minor, _, _ in given if kind == "gpu"}
        assert minors <= self.cards[node].keys()
        self.with_both += bool(cpus and minors)
        self.with_zones += bool(zones)
        if self.policies[node] == "SingleNUMANode":
            assert len(zones) <= 1
            known = {self.cards[node][minor] for minor in minors}
            if zones and minors and known <= {0, self.gap[node]}:
                assert known == {zones[0][0]}

    def everyone(self) -> list[str]:
        view = self.cluster.state.view()
        return sorted(pod.key for row in range(len(view)) for pod in view.pods(row))

    def leave(self) -> None:
        keys = self.everyone()
        if keys:
            self.cluster.delete("Pod", self.chance.choice(keys))

    def check(self) -> None:
        """No CPU twice, no NUMA node and no device beyond what it has at the most."""
        view = self.cluster.state.view()
        for row in range(len(view)):
            had: set[int] = set()
            zones: Counter[tuple[int, str]] = Counter()
            devices: Counter[tuple[str, int, str]] = Counter()
            for pod in view.pods(row):
                texts = dict(pod.annotations)
                cpus, amounts = cpus_in(texts.get(RESOURCE_STATUS, "{}"))
                assert not had & cpus
                had |= cpus
                for node, milli, size in amounts:
                    zones[node, "cpu"] += milli
                    zones[node, "memory"] += size
                for kind, minor, resource, amount in devices_in(texts.get(DEVICE_ALLOCATED, "{}")):
                    devices[kind, minor, resource] += amount
            most = {"cpu": CPUS // 2 * 1000, "memory": MEMORY_OF_ZONE}
            assert all(amount <= most[name] for (_, name), amount in zones.items())
            assert all(amount <= MOST.get(name, 100) for (*_, name), amount in devices.items())


@pytest.mark.timeout(600 + EVENTS // 20)
@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_given_beyond_what_there_is(seed: int) -> None:
    life = Life(seed)
    async with life.harness:
        for _ in range(EVENTS):
            await life.step()
    assert life.placed > 20
    assert life.with_both > 3
    assert life.with_zones > 5
