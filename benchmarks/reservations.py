"""Pods among 1,000 nodes and 1,000 reservations, of which none, some or all match them.

CPU time of a scheduling cycle, with Kubernetes' default plugins, LoadAwareScheduling and
Reservation, beside the same cluster without any reservation. Rounds alternate, so that all have
the machine as it is.
"""

import asyncio
import gc
import statistics
import time
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace as changed

from benchmarks.scheduling import World
from benchmarks.table import Row
from koord.api.reservation import ALLOCATED
from koord.cluster.facts import ClusterPod, LabelSet
from koord_scheduler_plugins.reservation.status import RESERVATIONS

NODES, RESERVATIONS_COUNT, ROUNDS = 1_000, 1_000, 20
EQUAL, DIFFER = "equal pods", "own label each"
KINDS = {EQUAL: 40, DIFFER: 20}  # pods of a round
RATIO = 1.5
SOME = 10
CASES = {"none match": 0, f"{SOME} match": SOME, "all match": RESERVATIONS_COUNT}
Json = dict[str, Any]


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield CPU time of a cycle."""
    share = 10 if smoke else 1
    try:
        yield from asyncio.run(_measure(NODES // share, ROUNDS // share))
    finally:
        gc.unfreeze()


async def _measure(nodes: int, rounds: int) -> list[Row]:
    share = NODES // nodes
    without = await _world(nodes, None)
    worlds = {what: await _world(nodes, count // share) for what, count in CASES.items()}
    gc.collect()
    gc.freeze()  # as the daemon does when it has read the cluster
    rows = []
    for kind, pods in KINDS.items():
        times: dict[str, list[float]] = {what: [] for what in ("", *worlds)}
        for _ in range(rounds):
            for what, world in (("", without), *worlds.items()):
                times[what] += await _cycles(world, pods, differ=kind == DIFFER)
        name = f"reservations: cycle, {kind}, "
        reference = statistics.median(times.pop("")) * 1e6
        rows.append(Row(f"{name}no reservation", reference, "µs"))
        for what, took in times.items():
            found = statistics.median(took) * 1e6
            label = f"{name}{what}"
            rows.append(Row(label, found, "µs", None, reference, "no reservation", RATIO))
    assert _consumed(worlds["all match"]) >= rounds * sum(KINDS.values())
    return rows


async def _world(nodes: int, match: int | None) -> World:
    """A cluster with as many reservations as nodes; None: with none. match: those for its pods."""
    world = World(nodes, shipped=True, plugins={"Reservation": None})
    await world.build()
    for at in range(nodes if match is not None else 0):
        app = "new" if at < (match or 0) else "other"
        world.services.informers.apply(RESERVATIONS, _reservation(at, app))  # type: ignore[attr-defined]
    await _cycles(world, 20)
    return world


def _reservation(number: int, app: str) -> Json:
    """An available Reservation for pods of an app, on its node, with room for many of them."""
    requests = {"cpu": "8", "memory": "32Gi"}
    container = {"name": "main", "resources": {"requests": requests}}
    return {
        "metadata": {"name": f"r{number}", "uid": f"uid-r{number}"},
        "spec": {
            "owners": [{"labelSelector": {"matchLabels": {"app": app}}}],
            "allocateOnce": False,
            "ttl": "0s",
            "template": {"spec": {"containers": [container]}},
        },
        "status": {"phase": "Available", "nodeName": f"n{number}", "allocatable": requests},
    }


async def _cycles(world: World, count: int, *, differ: bool = False) -> list[float]:
    """Seconds of CPU of the cycles of pods, which are bound. differ: each has its own label."""
    run, took = world.scheduler.cycle.run, []

    async def measured(*args: Any) -> Any:
        began = time.thread_time()
        try:
            return await run(*args)
        finally:
            took.append(time.thread_time() - began)

    world.scheduler.cycle.run = measured  # type: ignore[method-assign]
    try:
        await world.bind(_pods(world, count, differ=differ))
    finally:
        world.scheduler.cycle.run = run  # type: ignore[method-assign]
    return took


def _pods(world: World, count: int, *, differ: bool) -> list[ClusterPod]:
    labels = LabelSet("default", {"app": "new"})
    found = []
    for pod in world.pods(count, "equal"):
        if differ:  # as of a StatefulSet
            name = {"statefulset.kubernetes.io/pod-name": pod.name}
            labels = LabelSet("default", {"app": "new", **name})
        found.append(changed(pod, label_set=labels))
    return found


def _consumed(world: World) -> int:
    """How many pods were given a reservation."""
    view = world.state.view()
    pods = (pod for row in range(len(view)) for pod in view.pods(row))
    return sum(ALLOCATED in dict(pod.annotations) for pod in pods)
