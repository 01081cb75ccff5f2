"""Gangs on 5,000 nodes, and plans of gangs against brute force on small clusters.

A gang of three is planned, its members are reserved one after the other, and bound; a binding
costs nothing but a turn of the event loop, and the watch event that confirms it. Topology gangs
must be in one rack of 50, all of which are looked at. Beside them single pods in the same run,
and single pods with and without the plugins of gangs, quotas and reservations.
"""

import asyncio
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace as changed

from benchmarks.scheduling import NODES, World
from benchmarks.table import Row
from koord.api.podgroup import (
    LIGHTWEIGHT_MIN_LABEL,
    LIGHTWEIGHT_NAME_LABEL,
    NETWORK_TOPOLOGY_SPEC,
)
from koord.cluster.facts import ClusterPod, LabelSet
from tests.support.scheduler.smallclusters import is_planned_rightly, running

GANG, TOPOLOGY_GANG, RACKS = 3, 10, 50  # members, members, racks
GANGS, TOPOLOGY_GANGS, SINGLE_PODS, ROUNDS = 400, 60, 200, 41
PLANNED, BOUND, TOPOLOGY = 4.0, 1e3 / 300, 1e3 / 600  # milliseconds: a gang, a gang, a pod
UNUSED = 1.03  # ratio
CLUSTERS = 1_000
IN_A_RACK = (
    (
        NETWORK_TOPOLOGY_SPEC,
        json.dumps({"gatherStrategy": [{"layer": "Rack", "strategy": "MustGather"}]}),
    ),
)


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield CPU time for a gang or a pod."""
    share = 10 if smoke else 1
    gc.collect()
    gc.freeze()
    try:
        yield from asyncio.run(_gangs(NODES // share, GANGS // share))
        yield asyncio.run(_in_racks(NODES // share, TOPOLOGY_GANGS // share))
        yield asyncio.run(_unused(NODES // share, SINGLE_PODS // share))
    finally:
        gc.unfreeze()
    yield _against_brute_force(CLUSTERS // share)


async def _gangs(nodes: int, count: int) -> list[Row]:
    world = World(nodes, shipped=True, plugins={"Coscheduling": None})
    await world.build()
    await world.bind(world.pods(GANG * 10, "equal"))
    single = await world.bind(world.pods(GANG * count, "equal")) * 1e3
    await world.bind(_members(world, 10, GANG, first=count))
    cycles = _timed(world)
    whole = await world.bind(_members(world, count, GANG)) * GANG * 1e3
    name = f"gangs: of {GANG}, planned and "
    reference = GANG * single
    return [
        Row(f"{name}reserved", cycles() * 1e3 / count, "ms", PLANNED, reference, "single pods"),
        Row(f"{name}bound", whole, "ms", BOUND, reference, "single pods"),
    ]


def _timed(world: World) -> Callable[[], float]:
    """Measure scheduling cycles from now on; returns a function for the CPU seconds of all."""
    run, total = world.scheduler.cycle.run, 0.0

    async def measured(*args: Any) -> Any:
        nonlocal total
        began = time.thread_time()
        try:
            return await run(*args)
        finally:
            total += time.thread_time() - began

    world.scheduler.cycle.run = measured  # type: ignore[method-assign]
    return lambda: total


async def _in_racks(nodes: int, count: int) -> Row:
    """Gangs of which each must be in one rack."""
    plugins = {"Coscheduling": {"awareNetworkTopology": True}}
    world = World(nodes, shipped=True, plugins=plugins, racks=RACKS)
    await world.build()
    await world.bind(_members(world, 2, TOPOLOGY_GANG, IN_A_RACK, first=count))
    pods = _members(world, count, TOPOLOGY_GANG, IN_A_RACK)
    took = await world.bind(pods) * 1e3
    for at in range(0, len(pods), TOPOLOGY_GANG):
        assert len({world.rack_of(pod) for pod in pods[at : at + TOPOLOGY_GANG]}) == 1
    return Row(f"gangs: of {TOPOLOGY_GANG} in one of {RACKS} racks, each pod", took, "ms", TOPOLOGY)


async def _unused(nodes: int, count: int) -> Row:
    """Single pods, with the plugins of gangs, quotas and reservations, of which there are none.

    Rounds with the plugins and without alternate, so that both have the machine as it is: what
    counts is the median of the ratios of two that follow each other.
    """
    plugins = ("Coscheduling", "ElasticQuota", "Reservation")
    worlds = [World(nodes, shipped=True, plugins=dict.fromkeys(names)) for names in ((), plugins)]
    for world in worlds:
        await world.build()
        await world.bind(world.pods(30, "equal"))
    pairs = []
    for number in range(ROUNDS):
        order = worlds if number % 2 else worlds[::-1]  # to be first may cost
        took = {id(world): await world.bind(world.pods(count, "equal")) for world in order}
        pairs.append([took[id(world)] * 1e6 for world in worlds])
    ratio = statistics.median(beside / without for without, beside in pairs)
    without = statistics.median(without for without, _ in pairs)
    name = "gangs: single pod, plugins enabled, not used"
    return Row(name, ratio * without, "µs", None, without, "without them", UNUSED)


def _members(
    world: World,
    gangs: int,
    size: int,
    annotations: tuple[tuple[str, str], ...] = (),
    *,
    first: int = 0,
) -> list[ClusterPod]:
    """Pending pods of gangs, whose numbers begin with first; equal labels are one, as decoded."""
    found = []
    for at, pod in enumerate(world.pods(gangs * size, "equal")):
        if at % size == 0:
            labels = {
                LIGHTWEIGHT_NAME_LABEL: f"g{first + at // size}",
                LIGHTWEIGHT_MIN_LABEL: str(size),
            }
            label_set = LabelSet("default", {"app": "new", **labels})
        found.append(changed(pod, label_set=label_set, annotations=annotations))
    return found


def _against_brute_force(clusters: int) -> Row:
    """Gangs whose plan does not hold, or that have a placement and got no plan."""
    wrong = 0
    with running() as world:
        for seed in range(clusters):
            wrong += not is_planned_rightly(world, seed)
    return Row(f"gangs: planned wrongly, {clusters:,} clusters", wrong, "gangs", 0)
