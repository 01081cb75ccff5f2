"""NodeNUMAResource among 5,000 nodes of 2 sockets, 32 cores each, with 2 threads.

Rates are of whole cycles and bindings, all nodes looked at, with Kubernetes' default plugins and
LoadAwareScheduling; bindings cost nothing.
"""

import asyncio
import gc
import json
import statistics
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace as changed

from benchmarks.devices import equip
from benchmarks.scheduling import World
from benchmarks.table import Row
from koord.cluster.facts import ClusterPod, LabelSet, PodSpec
from koord.cluster.kinds import NODE
from koord.plugin.kube import ApiResource

NODES, PODS = 5_000, 3_000
RATE = 300.0  # pods a second
SLOWER = 3.0  # percent that pods without CPUs and devices may cost more
STATUS = "scheduling.koordinator.sh/resource-status"
TOPOLOGIES = ApiResource("topology.node.k8s.io/v1alpha1", "noderesourcetopologies")
PAIRS = 15  # with the plugins and without

_GI = 2**30
_LABELS = LabelSet("default", {"koordinator.sh/qosClass": "LSR"})
_DETAIL = json.dumps(
    {
        "detail": [
            {"id": cpu, "core": cpu // 2, "socket": cpu // 64, "node": cpu // 64}
            for cpu in range(128)
        ]
    }
)
_SPREAD = (
    ("scheduling.koordinator.sh/resource-spec", '{"requiredCPUBindPolicy":"SpreadByPCPUs"}'),
)
_SINGLE = (
    (
        "scheduling.koordinator.sh/numa-topology-spec",
        '{"numaTopologyPolicy":"SingleNUMANode","singleNUMANodeExclusive":"Preferred"}',
    ),
)


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield CPU time of a pod."""
    gc.collect()
    gc.freeze()
    try:
        yield from asyncio.run(_rates(NODES // 10 if smoke else NODES, 40 if smoke else PODS))
        yield from asyncio.run(_beside(NODES // 10 if smoke else NODES, 40 if smoke else 500))
    finally:
        gc.unfreeze()


async def _world(nodes: int, *plugins: str) -> World:
    world = World(nodes, shipped=True, plugins=dict.fromkeys(plugins), pods_per_node=0)
    await world.build()
    view = world.state.view()
    for row in range(nodes):
        node = view.node(row)
        amounts = (("cpu", 128_000), ("memory", 512 * _GI), ("pods", 250))
        world.state.put(NODE, changed(node, allocatable=amounts))
        if plugins:
            world.services.informers.apply(TOPOLOGIES, _topology(node.name))  # type: ignore[attr-defined]
    return world


async def _rates(nodes: int, pods: int) -> list[Row]:
    rows = []
    for what, annotations, count, budget in (
        ("4 CPUs of its own", (), pods, 1e6 / RATE),
        ("4 CPUs on different cores", _SPREAD, pods // 4, 1e6 / RATE),
        ("4 CPUs of one NUMA node, 64 nodes tried", _SINGLE, pods // 20, None),
    ):
        world = await _world(nodes, "NodeNUMAResource")
        await world.bind(_pods("warm", 20, annotations))
        took = await world.bind(_pods("pod", count, annotations))
        given = sum(_has_cpus(world, f"default/pod{at}") for at in range(count))
        assert given == count, f"{given} of {count} pods have CPUs"
        rows.append(Row(f"cpusets: and binding, {what}", took * 1e6, "µs", budget))
    return rows


async def _beside(nodes: int, pods: int) -> list[Row]:
    """Pods without CPUs and devices, on nodes that have both, with the plugins and without.

    Each pair binds as many pods in both; which comes first takes turns.
    """
    alone = ("DefaultPreBind",)
    worlds = {
        "with": await _world(nodes, *alone, "NodeNUMAResource", "DeviceShare"),
        "without": await _world(nodes, *alone),
    }
    for world in worlds.values():
        equip(world, nodes)
    ratios, times = [], []
    for number in range(PAIRS + 1):
        took: dict[str, float] = {}
        for name in sorted(worlds, reverse=bool(number % 2)):
            label = f"{name}{number}-"
            took[name] = await worlds[name].bind(
                _pods(label, pods, (), labels=LabelSet("default", {}))
            )
        if number:
            ratios.append(took["with"] / took["without"])
            times.append(took["with"])
        else:  # what they know by now lasts, and the daemon has frozen it
            gc.collect()
            gc.freeze()
    slower = 100 * (statistics.median(ratios) - 1)
    took_with = statistics.median(times) * 1e6
    return [
        Row("cpusets: and binding, a pod without CPUs and devices", took_with, "µs"),
        Row("cpusets: slower than without both plugins", slower, "%", SLOWER),
    ]


def _has_cpus(world: World, key: str) -> bool:
    pod = world.state.pod(key)
    return pod is not None and bool(pod.node) and "cpuset" in dict(pod.annotations).get(STATUS, "")


def _topology(name: str) -> dict[str, Any]:
    amounts = [("cpu", "64"), ("memory", "256Gi")]
    return {
        "metadata": {"name": name, "annotations": {"node.koordinator.sh/cpu-topology": _DETAIL}},
        "zones": [
            {
                "name": f"node-{node}",
                "type": "Node",
                "resources": [{"name": key, "allocatable": value} for key, value in amounts],
            }
            for node in (0, 1)
        ],
    }


def _pods(
    name: str, count: int, annotations: tuple[tuple[str, str], ...], labels: LabelSet = _LABELS
) -> list[ClusterPod]:
    spec = PodSpec(
        requests=(("cpu", 4000), ("memory", 4 * _GI)), nonzero_cpu=4000, nonzero_memory=4 * _GI
    )
    return [
        ClusterPod(
            name=f"{name}{at}",
            uid=f"{name}{at}",
            label_set=labels,
            spec=spec,
            priority=9500,
            annotations=annotations,
            scheduler_name="bench",
        )
        for at in range(count)
    ]
