"""BECPUEvict: evicts best-effort pods while they get too little of their CPU requests."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from koord.api.eviction import EvictionOutcome
from koord.api.pods.pod import Pod
from koord.api.pods.requests import BATCH_CPU, pod_request
from koord.api.slo.strategies import CPUEvictPolicy, ResourceThreshold
from koordlet.plugin import MetricCache, kinds
from koordlet_plugins.eviction.plan import EvictionTask, ReleaseTarget
from koordlet_plugins.eviction.releases import (
    Satisfaction,
    allocatable_batch_cpu,
    is_covered,
    satisfaction_release,
)
from koordlet_plugins.eviction.settings import EvictionBlocked, satisfaction_band
from koordlet_plugins.eviction.victims import best_effort, by_share

NAME = "BECPUEvict"
ORDER = "by priority and usage of the request"

_SERIES = {
    "request": kinds.NODE_BE.key("cpu", "request"),
    "limit": kinds.NODE_BE.key("cpu", "real-limit"),
    "used": kinds.NODE_BE.key("cpu", "usage"),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """CPU of best-effort pods over a window, and now; counts are the samples of the window."""

    mean: Satisfaction
    now: Satisfaction
    counts: Mapping[str, int]


def read_figures(cache: MetricCache, seconds: float) -> Figures | None:
    """Return the figures of the last seconds; None: a series is missing or too old.

    None, too, while best-effort pods have no limit.
    """
    means: dict[str, float] = {}
    latest: dict[str, float] = {}
    counts: dict[str, int] = {}
    for name, key in _SERIES.items():
        found = cache.aggregate(kinds.NODE_BE, key, seconds)
        last = cache.last(kinds.NODE_BE, *key)
        if found is None or last is None:
            return None
        means[name], latest[name], counts[name] = found.avg(), last, found.count
    return Figures(Satisfaction(**means), Satisfaction(**latest), counts)


def build_task(
    slo: ResourceThreshold,
    figures: Figures | None,
    pods: Iterable[Pod],
    usage: Callable[[Pod], float],
    *,
    allocatable: int | None,
    interval: float,
    window: float,
    under_way: bool,
) -> EvictionTask | None:
    """Return the task to release batch CPU requests; None: there is none to release.

    usage returns a pod's usage in cores; allocatable is the node's batch CPU.

    Raises:
        EvictionBlocked: the NodeSLO is not complete, or figures are missing.
    """
    band = satisfaction_band(NAME, slo)
    if figures is None:
        message = "wanted request, limit and usage of best-effort pods, found none of late"
        raise EvictionBlocked(NAME, EvictionOutcome.NO_DATA, message)
    if not is_covered(figures.counts, interval, window):
        return None
    mean, now = figures.mean, figures.now
    if slo.cpu_evict_policy is CPUEvictPolicy.BY_ALLOCATABLE:
        limit = allocatable_batch_cpu(allocatable)
        mean, now = (Satisfaction(each.request, limit, each.used) for each in (mean, now))
    release = satisfaction_release(mean, now, band.while_under_way() if under_way else band)
    if release <= 0:
        return None
    return EvictionTask(
        feature=NAME,
        target=ReleaseTarget.REQUEST,
        amounts={BATCH_CPU: release},
        candidates=tuple(by_share(best_effort(pods, NAME), _share_of(usage))),
        gain=lambda pod: {BATCH_CPU: pod_request(pod, BATCH_CPU)},
        trigger=f"best-effort pods may use {now.limit:.0f} of {now.request:.0f} milli-cores that "
        f"they asked for, lower mark {band.lower} %, up to {band.upper} %",
        inputs={
            "mean_request": mean.request,
            "mean_limit": mean.limit,
            "mean_used": mean.used,
            "request": now.request,
            "limit": now.limit,
            "used": now.used,
            "lower_percent": band.lower,
            "upper_percent": band.upper,
            "usage_percent": band.usage,
            "release": release,
        },
        order=ORDER,
    )


def _share_of(usage: Callable[[Pod], float]) -> Callable[[Pod], float]:
    def share(pod: Pod) -> float:
        """Usage of the request; 0 without a request."""
        request = pod_request(pod, BATCH_CPU)
        return usage(pod) * 1000 / request if request else 0.0

    return share
