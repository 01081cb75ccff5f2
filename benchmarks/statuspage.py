"""The agent's status page at 150 pods: what one that is open costs, and what is sent to it."""

import asyncio
import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Mapping

from benchmarks import history
from benchmarks.table import Row
from koord.component.http.responses import json_bytes
from koord.util.clock import stamp
from koord.util.health import Health
from koordlet.metriccache import kinds
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import Sample
from koordlet.plugin.testing import SimulatedClock, make_pod
from koordlet.server.page import AgentPage, AgentPageSources, ChangeAnnotations
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.podmeta import PodMeta

PODS = 150
PLUGINS = 40


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield the CPU time of the first response and the mean of one a second, encoded; and sizes."""
    clock = SimulatedClock(boottime=10_000.0)
    cache = history.open_cache(None, "benchmark", clock)
    pods = tuple(make_pod(f"pod-{n}", uid=str(uuid.UUID(int=n))) for n in range(PODS))
    history.fill(cache, clock, pods)
    page = _page(cache, clock, pods)
    first, seconds, sizes = asyncio.run(_look(page, cache, clock, pods, 5 if smoke else 60))
    cache.close()
    yield Row(f"status page, first answer, {PODS} pods", first[0] * 1000, "ms")
    yield Row("status page, first answer", first[1] / 1024, "KiB")
    yield Row("status page, one second", statistics.fmean(seconds) * 1000, "ms", 10.0)
    yield Row("status page, one second", statistics.fmean(sizes) / 1024, "KiB")


async def _look(
    page: AgentPage,
    cache: MetricCache,
    clock: SimulatedClock,
    pods: tuple[PodMeta, ...],
    rounds: int,
) -> tuple[tuple[float, int], list[float], list[int]]:
    """CPU seconds and bytes of the first response, and of each of so many seconds."""
    clock.tick(1.0)
    begin = time.process_time()
    response = await page.snapshot()
    size = len(json_bytes(response))
    first = time.process_time() - begin, size
    seconds, sizes = [], []
    for number in range(rounds):
        clock.tick(1.0)
        cache.append(stamp(clock), _samples(number, pods))
        begin = time.process_time()
        response = await page.changes(_now(response))
        sizes.append(len(json_bytes(response)))
        seconds.append(time.process_time() - begin)
        if "whole" in response or len(response["sections"]["pods"]) != PODS:  # type: ignore[index]
            raise RuntimeError("wanted the changes of a second with all pods")
    return first, seconds, sizes


def _now(response: Mapping[str, object]) -> float:
    now = response["now"]
    if not isinstance(now, float):
        raise TypeError(f"wanted a time, found {now!r}")
    return now


def _samples(number: int, pods: tuple[PodMeta, ...]) -> list[Sample]:
    node = (kinds.NODE_CPU_USAGE, kinds.NODE_MEMORY_USAGE, kinds.SYS_CPU_USAGE)
    pod = (kinds.POD_CPU_USAGE, kinds.POD_MEMORY_USAGE, kinds.POD_CPU_THROTTLED)
    return [
        *(Sample(kind, 1.0 + number, ()) for kind in node),
        *(Sample(kind, 1.0 + number, (each.uid,)) for kind in pod for each in pods),
    ]


def _page(cache: MetricCache, clock: SimulatedClock, pods: tuple[PodMeta, ...]) -> AgentPage:
    states = StatesInformer(clock)
    states.set_pods(pods)
    plugin = {"name": "CPUSuppress", "state": "running", "rounds": {"done": 5}, "reason": ""}

    async def explain(_: str) -> Callable[[], Mapping[str, object]]:
        return dict

    async def flush() -> None:
        return None

    return AgentPage(
        AgentPageSources(
            node="node",
            cache=cache,
            states=states,
            health=Health(),
            cpu_limits=dict,
            plugins=lambda: [plugin] * PLUGINS,
            dry_run=dict,
            decisions=list,
            explain=explain,
            flush=flush,
            audit=lambda _: {},
            annotations=ChangeAnnotations(clock.wall),
        ),
        clock,
    )
