"""Memory with page cache of the node, pods and containers."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Metric

from koordlet.collectors.engine.base import Tick
from koordlet.host.resources import MEMINFO, MEMORY_STAT
from koordlet.metriccache.kinds import (
    CONTAINER_MEMORY_USAGE_WITH_PAGE_CACHE,
    NODE_MEMORY_USAGE_WITH_PAGE_CACHE,
    POD_MEMORY_USAGE_WITH_PAGE_CACHE,
    AnyKind,
    Cadence,
)
from koordlet.metriccache.sample import Sample


class PageCacheCollector:
    """Works while it is wanted: the flag is set, or the NodeMetric spec asks for page cache.

    The files were read by the collectors before it, so it costs next to nothing.
    """

    name = "page_cache"
    gates: tuple[str, ...] = ()
    cadence = Cadence.USAGE

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self._wanted = wanted

    def collect(self, tick: Tick) -> Iterable[Sample]:
        if not self._wanted():
            return
        memory = tick.get(MEMINFO)
        if memory is not None:
            yield Sample(NODE_MEMORY_USAGE_WITH_PAGE_CACHE, memory.usage_with_page_cache)
        for pod in tick.pods:
            yield from _sample(tick, POD_MEMORY_USAGE_WITH_PAGE_CACHE, pod.uid, pod.cgroup)
            for container in pod.containers:
                key, group = container.container_id, container.cgroup
                yield from _sample(tick, CONTAINER_MEMORY_USAGE_WITH_PAGE_CACHE, key, group)

    def families(self) -> Iterable[Metric]:
        return ()


def _sample(tick: Tick, kind: AnyKind, key: str, group: str) -> Iterator[Sample]:
    memory = tick.get(MEMORY_STAT, group)
    if memory is not None:
        yield Sample(kind, memory.usage_with_page_cache, (key,))
