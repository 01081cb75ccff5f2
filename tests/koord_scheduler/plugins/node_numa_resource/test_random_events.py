"""Whatever happens, no CPU is given twice: checked by the pods alone."""

import json
from random import Random
from typing import Any

import pytest

from koord.api.machine import parse_cpulist
from koord_scheduler.plugin.testing import FakeCluster, PluginHarness, fake_cluster, make_pod
from koord_scheduler_plugins.default_binding import DefaultPreBind
from koord_scheduler_plugins.node_numa_resource.holdings import RESOURCE_SPEC, RESOURCE_STATUS
from koord_scheduler_plugins.node_numa_resource.plugin import TOPOLOGIES, NodeNUMAResource
from tests.support.scheduler.numa import topology_object

NODES = ("n0", "n1", "n2")
SHAPES = ("2x1x4x2", "2x1x4x2", "1x1x4x2", "2x1x4x1")
EVENTS = 400
SPECS = (None, "FullPCPUs", "SpreadByPCPUs")


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
        for name in NODES:
            self.cluster.node(name, cpu=16)
            self.report(name)

    def report(self, name: str) -> None:
        shape = self.chance.choice(SHAPES)
        self.harness.informers.apply(TOPOLOGIES, topology_object(name, shape))

    async def step(self) -> None:
        happens = self.chance.choice(
            [self.come, self.come, self.come, self.leave, self.end, self.topology, self.label]
        )
        await happens()

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
        self.placed += done.node is not None

    def someone(self) -> str | None:
        keys = sorted(pod.key for row in range(3) for pod in self.cluster.state.view().pods(row))
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
        """It vanishes, comes again, shrinks, or lies."""
        name = self.chance.choice(NODES)
        if self.chance.random() < 0.3:
            self.harness.informers.delete(TOPOLOGIES, name)
        elif self.chance.random() < 0.3:
            found: dict[str, Any] = topology_object(name)
            found["zones"][0]["name"] = "node-99999"
            self.harness.informers.apply(TOPOLOGIES, found)
        else:
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


@pytest.mark.parametrize("seed", range(4))
async def test_no_cpu_is_given_twice(seed: int) -> None:
    life = Life(seed)
    async with life.harness:
        for _ in range(EVENTS):
            await life.step()
            life.check()
    assert life.placed > 20
