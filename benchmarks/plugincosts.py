"""The cost of the plugins that ship with koord-scheduler among 5,000 nodes, by extension point.

Between two pods one is placed, as in cycles, so that each works on a view that is new. Of pods
without rules and of those with rules about others; "row" is the plain form for one node, which an
equal pod costs. For comparison: the numpy prototype of a whole cycle.
"""

import asyncio
import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
from msgspec.structs import replace as changed

from benchmarks.scheduling import NODES, PROTOTYPE, World, prototype
from benchmarks.table import Row
from koord.cluster.facts import ClusterPod
from koord.cluster.kinds import POD
from koord.cluster.view import View
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.status import CycleState
from koord_scheduler.framework.types import NodeInfo

KINDS = ("1,000 specs", "spread", "zone", "affinity", "anti-affinity")
POINTS = Point.PRE_FILTER, Point.FILTER, Point.PRE_SCORE, Point.SCORE
PODS, LEAST = 300, 2.0  # microseconds; what costs less is not worth a line
ROW = 5.0  # microseconds that one node may cost in the plain form
T = TypeVar("T")


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield CPU time of a call, the median."""
    gc.collect()
    gc.freeze()
    try:
        yield from asyncio.run(_measure(NODES // 10 if smoke else NODES, 20 if smoke else PODS))
    finally:
        gc.unfreeze()


async def _measure(nodes: int, pods: int) -> list[Row]:
    world = World(nodes, shipped=True)
    await world.build()
    found = {one.name: one.plugin for point in POINTS for one in world.profile.at(point)}
    rows, seen = [], set()
    for kind in KINDS:
        costs = _costs(world, found, world.pods(pods, kind))
        reference = prototype(world.state.view()) * 1e6
        for (name, what), took in sorted(costs.items(), key=lambda one: -one[1]):
            if took >= LEAST and (kind == "1,000 specs" or (name, what) not in seen):
                budget = ROW if what.endswith("row") else None
                rows.append(
                    Row(f"{name}: {what}, {kind}", took, "µs", budget, reference, PROTOTYPE)
                )
                seen.add((name, what))
    return rows


def _costs(
    world: World, plugins: dict[str, Any], pods: list[ClusterPod]
) -> dict[tuple[str, str], float]:
    took: dict[tuple[str, str], list[float]] = defaultdict(list)
    for at, pod in enumerate(pods):
        nodes, state = world.state.view(), CycleState()
        for name, plugin in plugins.items():
            _call_all(name, plugin, pod, nodes, state, took)
        world.state.put(POD, changed(pod, node=f"n{at * 37 % len(nodes)}"))
    return {key: statistics.median(times) for key, times in took.items()}


def _call_all(
    name: str,
    plugin: Any,
    pod: ClusterPod,
    nodes: View,
    state: CycleState,
    took: dict[tuple[str, str], list[float]],
) -> None:
    """Call what a plugin has, in the order of a cycle; what it skips is not called."""
    every, node = np.ones(len(nodes), np.bool_), NodeInfo(nodes, 5)

    def timed(what: str, work: Callable[[], T]) -> T:
        began = time.perf_counter()
        found = work()
        took[name, what].append((time.perf_counter() - began) * 1e6)
        return found

    def skips(what: str, work: Callable[[], Any]) -> bool:
        response = timed(what, work)
        return response is not None and not getattr(response, "ok", True)

    def keyed(what: str, *args: Any) -> None:
        ask = getattr(plugin, what, None)
        if ask is not None:
            timed(f"{what.removesuffix('_reuse_key')} key", lambda: ask(*args))

    keyed("pre_filter_reuse_key", pod, nodes)
    filters = not (
        hasattr(plugin, "pre_filter")
        and skips("PreFilter", lambda: plugin.pre_filter(state, pod, nodes))
    )
    if filters and hasattr(plugin, "filter_all"):
        keyed("filter_reuse_key", state, pod, nodes)
        timed("Filter", lambda: plugin.filter_all(state, pod, nodes))
        timed("Filter, row", lambda: plugin.filter(state, pod, node))
    keyed("pre_score_reuse_key", pod, nodes)
    scores = not (
        hasattr(plugin, "pre_score")
        and skips("PreScore", lambda: plugin.pre_score(state, pod, nodes, every))
    )
    if scores and hasattr(plugin, "score_all"):
        keyed("score_reuse_key", state, pod, nodes)
        found = timed("Score", lambda: plugin.score_all(state, pod, nodes))
        timed("Score, row", lambda: plugin.score(state, pod, node))
        if hasattr(plugin, "normalize_scores"):
            timed("NormalizeScore", lambda: plugin.normalize_scores(state, pod, found))
