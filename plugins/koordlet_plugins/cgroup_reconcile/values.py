"""Memory values of the cgroups of pods, containers and QoS classes, from settings. Pure."""

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from koord.api.pod import BATCH_MEMORY, Container, Pod, pod_limit, pod_request
from koord.api.qos import KubeQoS, QoSClass
from koord.api.qosstrategy import MemoryQoS
from koord.api.quantity import Quantity
from koordlet.plugin import resources
from koordlet.plugin.kernel import Resource
from koordlet_plugins.cgroup_reconcile.settings import Effective

NO_LIMIT = -1


def memory_name(pod: Pod) -> str:
    """Return the name of the resource in which a pod requests memory."""
    return BATCH_MEMORY if pod.raw_qos_class is QoSClass.BE else "memory"


def requested(pod: Pod) -> int:
    """Return the memory that a pod requests."""
    return max(pod_request(pod, memory_name(pod)), 0)


def request_and_limit(container: Container, name: str) -> tuple[int, int]:
    """Return a container's request, 0 without one, and its limit."""
    request, limit = (
        Quantity.parse(quantities.get(name, "0")).integer
        for quantities in (container.requests, container.limits)
    )
    return max(request, 0), limit if limit > 0 else NO_LIMIT


def share(request: int, percent: int) -> int:
    """Return percent % of a request."""
    return request * percent // 100


def guaranteed(request: int, settings: MemoryQoS) -> tuple[int, int]:
    """Return the memory that is never reclaimed (min), and that reclaimed only in need (low)."""
    least = share(request, settings.min_limit_percent)
    low = share(request, settings.low_limit_percent)
    return least, max(low, least) if low > 0 else low


def throttled_from(request: int, limit: int, node: int, settings: MemoryQoS) -> int:
    """Return the usage from which allocations are slowed down (high).

    node is the memory of all pods together; it replaces a missing limit.
    """
    percent = settings.throttling_percent
    if percent == 0:
        return NO_LIMIT
    most = limit if limit > 0 else node
    high = request + max(most - request, 0) * percent // 100
    high -= high % mmap.PAGESIZE
    least, _ = guaranteed(request, settings)
    return max(high, least) if high > 0 else high


class PageCacheLimit(NamedTuple):
    """The values to write; None: unchanged."""

    enable: int | None = None  # 0 or 1
    size: int | None = None  # bytes
    sync: int | None = None  # 1: reclaim while allocating


def page_cache_limit(settings: MemoryQoS, memory_limit: int) -> PageCacheLimit:
    """Return the limit of a pod with this memory limit in bytes, -1 for none."""
    found = _of_size(_size(settings, memory_limit), reclaim=bool(settings.page_cache_reclaim_sync))
    if settings.page_cache_enable is None:
        return found
    return found._replace(enable=int(settings.page_cache_enable))


def _size(settings: MemoryQoS, memory_limit: int) -> int | None:
    size, percent = settings.page_cache_limit_size, settings.page_cache_limit_percent
    if size is not None:
        return min(size, memory_limit) if memory_limit > 0 else size
    if percent is not None and memory_limit > 0:
        return memory_limit * percent // 100
    return None


def _of_size(size: int | None, *, reclaim: bool) -> PageCacheLimit:
    if size is None:
        return PageCacheLimit()
    if size <= 0:
        return PageCacheLimit(enable=0, size=0)
    return PageCacheLimit(enable=1, size=size, sync=int(reclaim))


MIN, LOW, THROTTLING = "minLimitPercent", "lowLimitPercent", "throttlingPercent"


@dataclass(frozen=True, slots=True)
class MemoryValue:
    """A value for one file of a cgroup, and its reason."""

    resource: Resource[int]
    value: int
    reason: str
    inputs: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlainSetting:
    """A setting that is written unchanged. key is its name in JSON."""

    key: str
    resource: Resource[int]
    value: Callable[[MemoryQoS], int]


CLASS_WIDE = (  # of the cgroups of classes, too
    PlainSetting("priority", resources.MEMORY_PRIORITY, lambda qos: qos.priority),
    PlainSetting(
        "priorityEnable", resources.MEMORY_USE_PRIORITY_OOM, lambda qos: qos.priority_enable
    ),
    PlainSetting("oomKillGroup", resources.MEMORY_OOM_GROUP, lambda qos: qos.oom_kill_group),
)
EVERYWHERE_ELSE = (
    PlainSetting("wmarkRatio", resources.MEMORY_WMARK_RATIO, lambda qos: qos.wmark_ratio),
    PlainSetting(
        "wmarkScalePermill",
        resources.MEMORY_WMARK_SCALE_FACTOR,
        lambda qos: qos.wmark_scale_permill,
    ),
    PlainSetting("wmarkMinAdj", resources.MEMORY_WMARK_MIN_ADJ, lambda qos: qos.wmark_min_adj),
    *CLASS_WIDE,
)
PAGE_CACHE_KEYS = (
    "pageCacheEnable",
    "pageCacheLimitPercent",
    "pageCacheLimitSize",
    "pageCacheReclaimSync",
)
PAGE_CACHE = (
    resources.MEMORY_PAGECACHE_LIMIT_ENABLE,
    resources.MEMORY_PAGECACHE_LIMIT_SIZE,
    resources.MEMORY_PAGECACHE_LIMIT_SYNC,
)


@dataclass(frozen=True, slots=True)
class Shares:
    """A pod's part of the values of its class's cgroup, in bytes; None: no setting counts."""

    least: int | None
    low: int | None


def shares_of(pod: Pod, settings: Effective) -> Shares:
    """Return a pod's part of the values of its class."""
    request, qos = requested(pod), settings.values
    return Shares(
        share(request, qos.min_limit_percent) if settings.has(MIN) else None,
        share(request, qos.low_limit_percent) if settings.has(LOW) else None,
    )


def class_shares(pods: Iterable[tuple[KubeQoS, Shares]]) -> Mapping[KubeQoS, Shares]:
    """Return the sums of shares by class; the cgroup of guaranteed pods holds all others, too."""
    pods = list(pods)
    return {
        qos: Shares(
            _sum(shares.least for kind, shares in pods if _is_below(kind, qos)),
            _sum(shares.low for kind, shares in pods if _is_below(kind, qos)),
        )
        for qos in KubeQoS
    }


def of_pod(pod: Pod, settings: Effective) -> Iterator[MemoryValue]:
    """Return the values of a pod's own cgroup."""
    yield from _protection(requested(pod), settings)
    yield from _plain_values(EVERYWHERE_ELSE, settings)
    if any(map(settings.has, PAGE_CACHE_KEYS)):
        yield from _page_cache(pod, settings.values)


def of_container(
    container: Container, name: str, node: int, settings: Effective
) -> Iterator[MemoryValue]:
    """Return a container's values. name: see memory_name; node: allocatable memory in bytes."""
    request, limit = request_and_limit(container, name)
    yield from _protection(request, settings)
    if settings.has(THROTTLING):
        percent = settings.values.throttling_percent
        yield MemoryValue(
            resources.MEMORY_HIGH,
            throttled_from(request, limit, node, settings.values),
            f"{THROTTLING} of the way from the request to the limit, or to the node's allocatable",
            {
                "request_bytes": request,
                "limit_bytes": limit,
                "allocatable_bytes": node,
                "percent": percent,
            },
        )
    yield from _plain_values(EVERYWHERE_ELSE, settings)


def of_directory(shares: Shares, settings: Effective) -> Iterator[MemoryValue]:
    """Return the values of the cgroup of a class; shares are the sums of its pods."""
    for resource, value in (
        (resources.MEMORY_MIN, shares.least),
        (resources.MEMORY_LOW, shares.low),
    ):
        if value is not None:
            yield MemoryValue(resource, value, "what its pods are granted together")
    yield from _plain_values(CLASS_WIDE, settings)


def _protection(request: int, settings: Effective) -> Iterator[MemoryValue]:
    qos = settings.values
    least, low = guaranteed(request, qos)
    for key, resource, value, percent in (
        (MIN, resources.MEMORY_MIN, least, qos.min_limit_percent),
        (LOW, resources.MEMORY_LOW, low, qos.low_limit_percent),
    ):
        if settings.has(key):
            inputs = {"request_bytes": request, "percent": percent}
            yield MemoryValue(resource, value, f"{key} of the memory request", inputs)


def _page_cache(pod: Pod, qos: MemoryQoS) -> Iterator[MemoryValue]:
    total = pod_limit(pod, memory_name(pod))
    limit = NO_LIMIT if total is None else total.integer
    for resource, value in zip(PAGE_CACHE, page_cache_limit(qos, limit), strict=True):
        if value is not None:
            yield MemoryValue(
                resource, value, "limit of the pod's page cache", {"limit_bytes": limit}
            )


def _plain_values(rows: tuple[PlainSetting, ...], settings: Effective) -> Iterator[MemoryValue]:
    for row in rows:
        if settings.has(row.key):
            yield MemoryValue(row.resource, row.value(settings.values), f"{row.key} as it is set")


def _is_below(kind: KubeQoS, directory: KubeQoS) -> bool:
    return directory in (KubeQoS.GUARANTEED, kind)


def _sum(amounts: Iterable[int | None]) -> int | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None
