"""DeviceShare among 1,000 nodes with 8 GPUs and 4 interfaces, and how densely it packs GPUs.

Rates are of whole cycles and bindings, with Kubernetes' default plugins and LoadAwareScheduling;
bindings cost nothing. Packing: pods of mixed sizes come until the first is pending, beside
Koordinator's rules in plain form with MostAllocated, in the same order.
"""

import asyncio
import gc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from msgspec.structs import replace as changed

from benchmarks.scheduling import Sort, World
from benchmarks.table import Row
from koord.api.annotations import DEVICE_ALLOCATED
from koord.cluster.facts import ClusterPod, LabelSet, PodSpec
from koord.cluster.kinds import NODE, POD
from koord.component.plugins.discovery import discover
from koord.controlplane.testing import FakeCluster
from koord.kube.client import DEVICES
from koord_scheduler.config.profiles import EnabledPlugin, Point, Profile
from koord_scheduler.framework.profile import PluginRegistry, build_profile, known_plugins
from koord_scheduler.plugin.testing.harness import fake_services
from koord_scheduler.scheduling.failures import Attempt
from koord_scheduler.scheduling.metrics import SchedulingMetrics
from koord_scheduler.scheduling.scheduler import Scheduler

NODES, CARDS, PODS = 1_000, 8, 2_000
SHARE_RATE, JOINT_RATE = 300.0, 150.0  # pods a second
CORE, RATIO = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory-ratio"
MEMORY, RDMA = "koordinator.sh/gpu-memory", "koordinator.sh/rdma"
CARD = 80 << 30  # bytes
PACKED_NODES, PACKED_PODS = 150, 1_000
SIZES = (25, 25, 50, 50, 100, 100, 100, 200, 200, 400, 800)  # percent of a card; each as often
SEEDS = 3

_JOINT = (
    ("scheduling.koordinator.sh/device-allocate-hint", '{"rdma":{"vfSelector":{}}}'),
    ("scheduling.koordinator.sh/device-joint-allocate", '{"deviceTypes":["gpu","rdma"]}'),
)
Json = dict[str, Any]


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield CPU time of a pod, and the share of cards that are given before one is pending."""
    gc.collect()
    gc.freeze()
    try:
        yield from asyncio.run(_rates(NODES // 10 if smoke else NODES, 40 if smoke else PODS))
        yield from asyncio.run(_packing(1 if smoke else SEEDS))
    finally:
        gc.unfreeze()


async def _rates(nodes: int, pods: int) -> list[Row]:
    rows = []
    share = (("cpu", 100), (CORE, 50), ("koordinator.sh/gpu.shared", 1), (RATIO, 50))
    for what, requests, annotations, rate in (
        ("a share of 50", share, (), SHARE_RATE),
        ("2 GPUs with RDMA", (("cpu", 100), ("nvidia.com/gpu", 2), (RDMA, 1)), _JOINT, JOINT_RATE),
    ):
        world = World(nodes, shipped=True, plugins={"DeviceShare": None}, pods_per_node=0)
        await world.build()
        equip(world, nodes)
        await world.bind(_pods("warm", 20, requests, annotations))
        took = await world.bind(_pods("pod", pods, requests, annotations))
        given = sum(_has_devices(world, f"default/pod{at}") for at in range(pods))
        assert given == pods, f"{given} of {pods} pods have devices"
        name = f"devices: and binding, {what}"
        rows.append(Row(name, took * 1e6, "µs", 1e6 / rate))
        if what == "a share of 50":
            every = [_share_of(at) for at in range(pods // 4)]
            took = await world.bind(every)
            name = "devices: and binding, shares of 99 sizes on nodes in use"
            rows.append(Row(name, took * 1e6, "µs", 1e6 / rate))
    return rows


def _share_of(number: int) -> ClusterPod:
    """A pod that requests a share of a card that few others request."""
    percent = number * 37 % 99 + 1
    [pod] = _pods(f"odd{number}-", 1, (("cpu", 100), (CORE, percent), (RATIO, percent)))
    return pod


def _has_devices(world: World, key: str) -> bool:
    pod = world.state.pod(key)
    return pod is not None and bool(pod.node) and DEVICE_ALLOCATED in dict(pod.annotations)


def equip(world: World, nodes: int) -> None:
    """Give nodes devices, and what koord-manager adds to their allocatable for them."""
    view = world.state.view()
    more = [("nvidia.com/gpu", CARDS), (RDMA, 400), ("koordinator.sh/gpu.shared", 800)]
    more += [(CORE, 100 * CARDS), (RATIO, 100 * CARDS), (MEMORY, CARD * CARDS)]
    for row in range(nodes):
        node = view.node(row)
        world.state.put(NODE, changed(node, allocatable=(*node.allocatable, *more)))
        world.services.informers.apply(DEVICES, _device(node.name))  # type: ignore[attr-defined]


def _device(name: str) -> Json:
    """8 cards on 4 PCIe switches of 2 NUMA nodes, an interface with 30 functions on each."""
    devices: list[Json] = []
    for minor in range(CARDS):
        place = {"nodeID": minor // 4, "pcieID": str(minor // 2), "socketID": -1}
        amounts = {CORE: "100", RATIO: "100", MEMORY: str(CARD)}
        devices.append(_of("gpu", minor, f"{name}-{minor}", amounts, place))
    for minor in range(4):
        place = {"nodeID": minor // 2, "pcieID": str(minor), "socketID": -1}
        found = _of("rdma", minor, f"0000:{minor}f:00.0", {RDMA: "100"}, place)
        vfs = [{"minor": -1, "busID": f"0000:{minor}f:{at // 8:02}.{at % 8}"} for at in range(30)]
        devices.append({**found, "vfGroups": [{"vfs": vfs}]})
    return {"metadata": {"name": name}, "spec": {"devices": devices}}


def _of(kind: str, minor: int, name: str, amounts: Json, place: Json) -> Json:
    found = {"type": kind, "minor": minor, "id": name, "health": True}
    return {**found, "resources": amounts, "topology": place}


def _pods(
    name: str,
    count: int,
    requests: tuple[tuple[str, int], ...],
    annotations: tuple[tuple[str, str], ...] = (),
) -> list[ClusterPod]:
    spec, labels = PodSpec(requests=requests, nonzero_cpu=100), LabelSet("default", {})
    return [
        ClusterPod(
            name=f"{name}{at}",
            uid=f"{name}{at}",
            label_set=labels,
            spec=spec,
            annotations=annotations,
            scheduler_name="bench",
        )
        for at in range(count)
    ]


async def _packing(seeds: int) -> list[Row]:
    rows = []
    for seed in range(seeds):
        chance = Random(seed)
        sizes = [chance.choice(SIZES) for _ in range(PACKED_PODS)]
        ours = await _packed(sizes)
        reference = _packed_by_koordinator(sizes)
        name = f"devices: given before the first is pending, sequence {seed}"
        rows.append(Row(name, ours, "%", None, reference, "Koordinator's rules"))
    return rows


async def _packed(sizes: Sequence[int]) -> float:
    """Percent of all cards that DeviceShare has given when the first pod is pending."""
    world = World(PACKED_NODES, shipped=False, pods_per_node=0)
    await world.build()
    registry = PluginRegistry()
    discover(registry)
    registry.register("Sort", partial(Sort, state=world.state))
    known = known_plugins(registry)
    plugins: dict[Point, tuple[EnabledPlugin, ...]] = {
        point: (EnabledPlugin("DeviceShare", 1),)
        for point in Point
        if point in known["DeviceShare"].points
    }
    plugins[Point.QUEUE_SORT] = plugins[Point.BIND] = (EnabledPlugin("Sort"),)
    read = known["DeviceShare"].args
    assert read is not None
    strategy = {"type": "MostAllocated", "resources": [{"name": RATIO, "weight": 1}]}
    args = {"DeviceShare": read.read({"scoringStrategy": strategy}, ("DeviceShare",))[0]}
    settings = Profile(scheduler_name="bench", plugins=plugins, args=args)
    services = fake_services(FakeCluster())
    world.services = replace(
        services, cluster=world.state, clock=world.clock, activate=lambda uids: None
    )
    world.profile = await build_profile(settings, registry, world.services)
    metrics = SchedulingMetrics(world.services.metrics.exposition)
    world.scheduler = Scheduler(
        [world.profile], world.state, world.services, metrics, draw=Random(1)
    )
    equip(world, PACKED_NODES)
    given = 0
    for at, size in enumerate(sizes):
        amount = ((CORE, size), (RATIO, size))
        [pod] = _pods(f"pod{at}-", 1, amount)
        if not await _fits(world, pod):
            break
        given += size
    return 100 * given / (PACKED_NODES * CARDS * 100)


async def _fits(world: World, pod: ClusterPod) -> bool:
    """Place a pod, and return whether it has a node."""
    with world.profile.services.limits:
        world.state.put(POD, pod)
        queued = world.scheduler.queue.pop_now()
        assert queued is not None
        profile = world.scheduler.profiles["bench"]
        attempt = Attempt(queued=queued, pod=pod, profile=profile, began=world.clock.monotonic())
        if await world.scheduler.cycle.run(attempt) is not None:
            return False
        world.scheduler.queue.done(pod.uid)
        world.state.put(POD, changed(attempt.pod, node=attempt.node))
    return True


class _Node:
    """Cards of a node by Koordinator's rules: what is used of each, in percent."""

    def __init__(self) -> None:
        self.used = [0] * CARDS

    def choose(self, size: int) -> list[int] | None:
        """Return cards: the smallest scope that has enough, those in use first; None: none do."""
        count, each = (size // 100, 100) if size >= 100 else (1, size)
        best: tuple[tuple[int, int, int], list[int]] | None = None
        for width, depth in ((2, 3), (4, 2), (8, 1)):
            for begin in range(0, CARDS, width):
                scope = range(begin, begin + width)
                free = [card for card in scope if self.used[card] + each <= 100]
                if len(free) < count:
                    continue
                in_use = sum(
                    any(self.used[begin // wide * wide : begin // wide * wide + wide])
                    for wide in (8, 4, 2)
                    if wide >= width
                )
                score = 0
                if each < 100:  # Koordinator exchanges free and total: cards in use score 100
                    scores = {card: 100 if self.used[card] else each for card in free}
                    free.sort(key=lambda card: (-scores[card], card))
                    score = scores[free[0]]
                order = depth, in_use, score
                if best is None or order > best[0]:
                    best = order, free[:count]
            if best is not None:
                return best[1]
        return None

    def score(self, size: int) -> int:
        """MostAllocated, by the request of one card."""
        return min(sum(self.used) + min(size, 100), CARDS * 100) * 100 // (CARDS * 100)


def _packed_by_koordinator(sizes: Sequence[int]) -> float:
    nodes, given = [_Node() for _ in range(PACKED_NODES)], 0
    for size in sizes:
        found = [(one.score(size), -at, one) for at, one in enumerate(nodes) if one.choose(size)]
        if not found:
            break
        chosen = max(found, key=lambda each: each[:2])[2]
        for card in chosen.choose(size) or ():
            chosen.used[card] += min(size, 100)
        given += size
    return 100 * given / (PACKED_NODES * CARDS * 100)
