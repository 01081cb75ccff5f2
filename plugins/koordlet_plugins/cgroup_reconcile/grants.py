"""Memory values of the cgroups of pods, containers and QoS classes, from settings. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from koord.api.pods.pod import Container, Pod
from koord.api.pods.totals import pod_limit
from koord.api.qos import KubeQoS
from koord.api.slo.resourceqos import MemoryQoS
from koordlet.plugin import resources
from koordlet.plugin.kernel import Resource
from koordlet_plugins.cgroup_reconcile.amounts import (
    NO_LIMIT,
    guaranteed,
    memory_name,
    request_and_limit,
    requested,
    share,
    throttled_from,
)
from koordlet_plugins.cgroup_reconcile.merging import Effective
from koordlet_plugins.cgroup_reconcile.pagecache import page_cache_limit

MIN, LOW, THROTTLING = "minLimitPercent", "lowLimitPercent", "throttlingPercent"


@dataclass(frozen=True, slots=True)
class Grant:
    """A value for one file of a cgroup, and its reason."""

    resource: Resource[int]
    value: int
    reason: str
    inputs: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plain:
    """A setting that is written unchanged. key is its name in JSON."""

    key: str
    resource: Resource[int]
    value: Callable[[MemoryQoS], int]


CLASS_WIDE = (  # of the cgroups of classes, too
    Plain("priority", resources.MEMORY_PRIORITY, lambda qos: qos.priority),
    Plain("priorityEnable", resources.MEMORY_USE_PRIORITY_OOM, lambda qos: qos.priority_enable),
    Plain("oomKillGroup", resources.MEMORY_OOM_GROUP, lambda qos: qos.oom_kill_group),
)
EVERYWHERE_ELSE = (
    Plain("wmarkRatio", resources.MEMORY_WMARK_RATIO, lambda qos: qos.wmark_ratio),
    Plain(
        "wmarkScalePermill",
        resources.MEMORY_WMARK_SCALE_FACTOR,
        lambda qos: qos.wmark_scale_permill,
    ),
    Plain("wmarkMinAdj", resources.MEMORY_WMARK_MIN_ADJ, lambda qos: qos.wmark_min_adj),
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


def of_pod(pod: Pod, settings: Effective) -> Iterator[Grant]:
    """Return the values of a pod's own cgroup."""
    yield from _protection(requested(pod), settings)
    yield from _plain(EVERYWHERE_ELSE, settings)
    if any(map(settings.has, PAGE_CACHE_KEYS)):
        yield from _page_cache(pod, settings.values)


def of_container(
    container: Container, name: str, node: int, settings: Effective
) -> Iterator[Grant]:
    """Return a container's values. name: see memory_name; node: allocatable memory in bytes."""
    request, limit = request_and_limit(container, name)
    yield from _protection(request, settings)
    if settings.has(THROTTLING):
        percent = settings.values.throttling_percent
        yield Grant(
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
    yield from _plain(EVERYWHERE_ELSE, settings)


def of_directory(shares: Shares, settings: Effective) -> Iterator[Grant]:
    """Return the values of the cgroup of a class; shares are the sums of its pods."""
    for resource, value in (
        (resources.MEMORY_MIN, shares.least),
        (resources.MEMORY_LOW, shares.low),
    ):
        if value is not None:
            yield Grant(resource, value, "what its pods are granted together")
    yield from _plain(CLASS_WIDE, settings)


def _protection(request: int, settings: Effective) -> Iterator[Grant]:
    qos = settings.values
    least, low = guaranteed(request, qos)
    for key, resource, value, percent in (
        (MIN, resources.MEMORY_MIN, least, qos.min_limit_percent),
        (LOW, resources.MEMORY_LOW, low, qos.low_limit_percent),
    ):
        if settings.has(key):
            inputs = {"request_bytes": request, "percent": percent}
            yield Grant(resource, value, f"{key} of the memory request", inputs)


def _page_cache(pod: Pod, qos: MemoryQoS) -> Iterator[Grant]:
    total = pod_limit(pod, memory_name(pod))
    limit = NO_LIMIT if total is None else total.integer
    for resource, value in zip(PAGE_CACHE, page_cache_limit(qos, limit), strict=True):
        if value is not None:
            yield Grant(resource, value, "limit of the pod's page cache", {"limit_bytes": limit})


def _plain(rows: tuple[Plain, ...], settings: Effective) -> Iterator[Grant]:
    for row in rows:
        if settings.has(row.key):
            yield Grant(row.resource, row.value(settings.values), f"{row.key} as it is set")


def _is_below(kind: KubeQoS, directory: KubeQoS) -> bool:
    return directory in (KubeQoS.GUARANTEED, kind)


def _sum(amounts: Iterable[int | None]) -> int | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None
