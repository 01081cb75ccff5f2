"""Cold memory of the node, pods, containers and host applications, and their usage without it.

Cold are the pages of files that nobody has used for 300 seconds. Kernels with kidled say how many
there are; on others with idle page tracking koordlet goes over all pages itself, a little in each
round (koordlet.host.idle_pages).
"""

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import Metric

from koordlet.collectors.engine.collector import FamilySpec, Tick
from koordlet.host.cgroups.layout import host_app_group
from koordlet.host.cgroups.tree import CgroupFs
from koordlet.host.idle_pages import IDLE_BITMAP
from koordlet.host.paths import HostPaths
from koordlet.host.resources import MEMINFO, MEMORY_IDLE_PAGES, MEMORY_STAT
from koordlet.metriccache.kinds import (
    CONTAINER_MEMORY_COLD_PAGE_SIZE,
    CONTAINER_MEMORY_WITH_HOT_PAGE_USAGE,
    HOST_APP_MEMORY_COLD_PAGE_SIZE,
    HOST_APP_MEMORY_WITH_HOT_PAGE_USAGE,
    NODE_MEMORY_COLD_PAGE_SIZE,
    NODE_MEMORY_WITH_HOT_PAGE_USAGE,
    POD_MEMORY_COLD_PAGE_SIZE,
    POD_MEMORY_WITH_HOT_PAGE_USAGE,
    AnyKind,
    Cadence,
    Sample,
)

if TYPE_CHECKING:  # for the few kernels that have it
    from koordlet.host.idle_pages import IdleTracking

COLD_PAGE_GATE = "ColdPageCollector"
MAX_GROUPS = 256  # cgroups below one, that are looked at
_AGE = 300  # seconds


class _Kinds(NamedTuple):
    cold: AnyKind
    hot: AnyKind  # usage with page cache, less what is cold


_NODE = _Kinds(NODE_MEMORY_COLD_PAGE_SIZE, NODE_MEMORY_WITH_HOT_PAGE_USAGE)
_POD = _Kinds(POD_MEMORY_COLD_PAGE_SIZE, POD_MEMORY_WITH_HOT_PAGE_USAGE)
_CONTAINER = _Kinds(CONTAINER_MEMORY_COLD_PAGE_SIZE, CONTAINER_MEMORY_WITH_HOT_PAGE_USAGE)
_HOST_APP = _Kinds(HOST_APP_MEMORY_COLD_PAGE_SIZE, HOST_APP_MEMORY_WITH_HOT_PAGE_USAGE)


class _ColdPageGroup(NamedTuple):
    """A node, pod, container or host application with a cgroup that can have cold memory."""

    kinds: _Kinds
    key: tuple[str, ...]
    group: str


_NODE_MEMORY_COLD_PAGE_BYTES = FamilySpec(
    "koordlet_node_memory_cold_page_bytes",
    "Pages of files that were not used for 300 seconds or longer.",
    ("node",),
    "bytes",
)


class ColdPageCollector:
    """Has no samples on kernels with neither; then the usage with hot pages is that without any."""

    name = "cold_page"
    gates: tuple[str, ...] = (COLD_PAGE_GATE,)
    cadence = Cadence.COLD_PAGE

    def __init__(self, node: str, paths: HostPaths, budget: float) -> None:
        """budget: seconds of CPU time for each round of idle page tracking."""
        self._label = (node,)
        self._paths = paths
        self._budget = budget
        self._tracking: IdleTracking | None = None
        self._tracked: dict[str, int] = {}  # cold bytes by group, of the latest pass
        self._pass = 0
        self._latest: float | None = None

    def collect(self, tick: Tick) -> Iterable[Sample]:
        cold = self._cold_by_kidled(tick) or self._cold_by_tracking(tick)
        self._latest = cold.get("")
        for kinds, key, group in _groups(tick):
            if group in cold:
                yield Sample(kinds.cold, cold[group], key)
                usage = _usage_with_page_cache(tick, group)
                if usage is not None:
                    yield Sample(kinds.hot, max(usage - cold[group], 0), key)

    def families(self) -> Iterator[Metric]:
        latest = self._latest
        yield _NODE_MEMORY_COLD_PAGE_BYTES.metric(
            [(self._label, latest)] if latest is not None else ()
        )

    def _cold_by_kidled(self, tick: Tick) -> dict[str, int]:
        """Return the cold bytes of each readable cgroup, from kidled.

        Empty while the scanner is off or leaves out children.
        """
        if tick.get(MEMORY_IDLE_PAGES) is None:
            return {}
        cold = {}
        for _, _, group in _groups(tick):
            pages = tick.get(MEMORY_IDLE_PAGES, group)
            size = pages.cold_after(_AGE) if pages is not None else None
            if size is not None:
                cold[group] = size
        return cold

    def _cold_by_tracking(self, tick: Tick) -> dict[str, int]:
        """Return the cold bytes of each cgroup, from the latest pass of idle page tracking.

        A cgroup that is newer than the pass has 0.
        """
        if self._tracking is None:
            from koordlet.host.idle_pages import IdleTracking

            if not (self._paths.sys / IDLE_BITMAP).exists():
                return {}
            self._tracking = IdleTracking(self._paths)
        tracking = self._tracking
        tick.call("idle page tracking", lambda: tracking.advance(tick.monotonic, self._budget))
        if not tracking.passes:
            return {}
        if tracking.passes != self._pass:
            found = tick.call("cgroups of idle pages", lambda: self._by_group(tick, tracking))
            self._tracked, self._pass = found[0] if found else {}, tracking.passes
        return {group: self._tracked.get(group, 0) for _, _, group in _groups(tick)}

    def _by_group(self, tick: Tick, tracking: "IdleTracking") -> dict[str, int]:
        cgroups = CgroupFs(self._paths.cgroup)
        root = cgroups.hierarchy("memory", cgroups.version("memory"))
        by_group = {"": sum(tracking.cold.values())}
        for _, _, group in _groups(tick):
            if group:
                by_group[group] = sum(tracking.cold.get(one, 0) for one in _inodes(root / group))
        return by_group


def _groups(tick: Tick) -> Iterator[_ColdPageGroup]:
    yield _ColdPageGroup(_NODE, (), "")
    for pod in tick.pods:
        yield _ColdPageGroup(_POD, (pod.uid,), pod.cgroup)
        for container in pod.containers:
            yield _ColdPageGroup(_CONTAINER, (container.container_id,), container.cgroup)
    for app in tick.slo.host_applications if tick.slo else ():
        yield _ColdPageGroup(_HOST_APP, (app.name,), host_app_group(tick.layouts[0], app))


def _usage_with_page_cache(tick: Tick, group: str) -> int | None:
    memory = tick.get(MEMORY_STAT, group) if group else tick.get(MEMINFO)
    return None if memory is None else memory.usage_with_page_cache


def _inodes(directory: os.PathLike[str]) -> Iterator[int]:
    """Return the inodes of a cgroup and of those below it; none if it has ended."""
    seen = 0
    for path, _, _ in os.walk(directory):
        try:
            yield os.stat(path).st_ino
        except OSError:
            continue  # it has just ended
        seen += 1
        if seen == MAX_GROUPS:
            return
