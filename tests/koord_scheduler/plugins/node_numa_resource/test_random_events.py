"""Whatever happens, no CPU is given twice: checked by the pods alone.

KOORD_RANDOM_EVENTS is the number of events of each seed; 100000 take some minutes, and the time
limit grows with them.
"""

import json
import os
from random import Random
from typing import Any

import pytest

from koord.api.annotations import RESOURCE_SPEC, RESOURCE_STATUS
from koord.api.machine import parse_cpulist
from koord_scheduler.plugin.testing import FakeCluster, PluginHarness, fake_cluster, make_pod
from koord_scheduler_plugins.default_binding import DefaultPreBind
from koord_scheduler_plugins.node_numa_resource.plugin import TOPOLOGIES, NodeNUMAResource
from tests.support.scheduler.numa import topology_object

NODES = ("n0", "n1", "n2")
SHAPES = ("2x1x4x2", "2x1x4x2", "1x1x4x2", "2x1x4x1")
EVENTS = int(os.environ.get("KOORD_RANDOM_EVENTS", "400"))
MAX_PODS = 40
SPECS = (None, "FullPCPUs", "SpreadByPCPUs")


TOPOLOGY = "node.koordinator.sh/cpu-topology"


def details(found: dict[str, Any]) -> list[dict[str, int]]:
    """The CPUs of a NodeResourceTopology."""
    rows: list[dict[str, int]] = json.loads(found["metadata"]["annotations"][TOPOLOGY])["detail"]
    return rows


def with_details(found: dict[str, Any], rows: list[dict[str, int]]) -> dict[str, Any]:
    found["metadata"]["annotations"][TOPOLOGY] = json.dumps({"detail": rows})
    return found


def a_numa_node_that_none_has(found: dict[str, Any]) -> None:
    found["zones"][0]["name"] = "node-99999"


def a_cpu_that_none_has(found: dict[str, Any]) -> None:
    rows = details(found)
    rows[3]["id"] = 4097
    with_details(found, rows)


def a_cpu_twice(found: dict[str, Any]) -> None:
    rows = details(found)
    rows[3]["id"] = rows[2]["id"]
    with_details(found, rows)


LIES = (a_numa_node_that_none_has, a_cpu_that_none_has, a_cpu_twice)


class Life:
    """A small cluster to which things happen."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.cluster: FakeCluster = fake_cluster()
        self.harness = PluginHarness(
            NodeNUMAResource, self.cluster, extra_plugins={"DefaultPreBind": DefaultPreBind}
        )
        self.harness.server.answer(lambda call: {})
        self.number = 0
        self.placed = 0
        self.there: dict[str, set[int]] = {}  # CPUs of the last good object; {}: there is none
        for name in NODES:
            self.cluster.node(name, cpu=16)
            self.report(name)

    def report(self, name: str) -> None:
        self.put(name, topology_object(name, self.chance.choice(SHAPES)))

    def put(self, name: str, found: dict[str, Any]) -> None:
        """Apply an object that can be read."""
        self.there[name] = {cpu["id"] for cpu in details(found)}
        self.harness.informers.apply(TOPOLOGIES, found)

    async def step(self) -> None:
        happens = self.chance.choice(
            [self.come, self.come, self.come, self.leave, self.end, self.topology, self.label]
        )
        await happens()
        while len(self.everyone()) > MAX_PODS:
            await self.leave()

    async def come(self) -> None:
        self.number += 1
        spec = self.chance.choice(SPECS)
        annotations = (
            {} if spec is None else {RESOURCE_SPEC: json.dumps({"requiredCPUBindPolicy": spec})}
        )
        if self.chance.random() < 0.1:  # what its author has written
            annotations[RESOURCE_STATUS] = '{"cpuset":"0-15"}'
        qos = self.chance.choice(["LSR", "LSE", "LS"])
        pod = make_pod(
            f"p{self.number}",
            cpu=self.chance.choice([1, 2, 2, 4, 6]),
            labels={"koordinator.sh/qosClass": qos},
            annotations=annotations,
            phase="Pending",
        )
        done = await self.harness.schedule(pod)
        if done.node is not None:
            self.placed += 1
            bound = self.cluster.state.pod(pod.key)
            assert bound is not None
            text = dict(bound.annotations).get(RESOURCE_STATUS, "{}")
            assert parse_cpulist(json.loads(text).get("cpuset", "")) <= self.there[done.node]

    def everyone(self) -> list[str]:
        view = self.cluster.state.view()
        return sorted(pod.key for row in range(len(NODES)) for pod in view.pods(row))

    def someone(self) -> str | None:
        keys = self.everyone()
        return self.chance.choice(keys) if keys else None

    async def leave(self) -> None:
        key = self.someone()
        if key is not None:
            self.cluster.delete("Pod", key)

    async def end(self) -> None:
        """A pod finishes, and still has its annotation."""
        key = self.someone()
        pod = None if key is None else self.cluster.state.pod(key)
        if pod is not None and not pod.finished:
            cpu = dict(pod.spec.requests)["cpu"] // 1000
            self.cluster.pod(
                pod.name, pod.node, cpu=cpu, annotations=dict(pod.annotations), phase="Succeeded"
            )

    async def topology(self) -> None:
        """It vanishes, comes again, shrinks, has gaps, loses a CPU, or lies."""
        name = self.chance.choice(NODES)
        match self.chance.randrange(6):
            case 0:
                self.there[name] = set()
                self.harness.informers.delete(TOPOLOGIES, name)
            case 1:
                found = topology_object(name)
                self.chance.choice(LIES)(found)
                self.harness.informers.apply(TOPOLOGIES, found)
            case 2:
                found = topology_object(name)
                for cpu in (rows := details(found)):
                    cpu["node"] *= 7
                found["zones"][1]["name"] = "node-7"
                self.put(name, with_details(found, rows))
            case 3:
                found = topology_object(name)
                rows = details(found)
                del rows[self.chance.randrange(len(rows))]
                self.put(name, with_details(found, rows))
            case 4:
                found = topology_object(name)
                found["zones"][0]["resources"][0]["allocatable"] = "-5"
                self.put(name, found)
            case _:
                self.report(name)

    async def label(self) -> None:
        policy = self.chance.choice(["None", "FullPCPUsOnly", "SpreadByPCPUs"])
        labels = {"node.koordinator.sh/cpu-bind-policy": policy}
        self.cluster.node(self.chance.choice(NODES), cpu=16, labels=labels)

    def check(self) -> None:
        """Of the pods on a node that are not finished, no two have the same CPU."""
        view = self.cluster.state.view()
        for row in range(len(view)):
            had: set[int] = set()
            for pod in view.pods(row):
                text = dict(pod.annotations).get(RESOURCE_STATUS)
                if text is None or pod.finished:
                    continue
                cpus = parse_cpulist(json.loads(text).get("cpuset", ""))
                assert len(cpus) <= dict(pod.spec.requests)["cpu"] // 1000
                assert not had & cpus
                had |= cpus


@pytest.mark.timeout(600 + EVENTS // 20)
@pytest.mark.parametrize("seed", range(4))
async def test_no_cpu_is_given_twice(seed: int) -> None:
    life = Life(seed)
    async with life.harness:
        for _ in range(EVENTS):
            await life.step()
            life.check()
    assert life.placed > 20
