"""The tasks of the eviction features: trigger, amount and victims in one. Pure.

CPU is in milli-cores, memory in bytes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from koord.api.pods.pod import Pod
from koord.api.pods.requests import amount, pod_request
from koord.api.priority import PriorityClass
from koordlet_plugins.eviction.plan import EvictionTask, ReleaseTarget, amounts_text
from koordlet_plugins.eviction.releases import Band, used_percent, used_release
from koordlet_plugins.eviction.victims import by_priority, offered

OWNERS_ORDER = "by eviction priority, priority and size"


@dataclass(frozen=True, kw_only=True, slots=True)
class UsedFeature:
    """A feature that compares the node's usage of a resource with its capacity."""

    name: str
    resource: str  # "cpu" or "memory"
    band: Band
    order: str  # of the victims, for people
    under_way: bool = False  # it has begun to evict, and goes on to the lower mark


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestFeature:
    """A feature that compares the requests of lower tiers with the node's allocatable."""

    name: str
    resource: Callable[[PriorityClass], str]  # the resource that a tier requests
    release: Callable[[int, int, Band], int]  # from the sum, the allocatable and the band
    band: Band
    ceiling: int  # highest priority that counts
    under_way: bool = False


def used_task(
    feature: UsedFeature,
    used: int,
    capacity: int,
    victims: Callable[[], Iterable[Pod]],
    usage: Callable[[Pod], int],
) -> EvictionTask | None:
    """Return the task to release the usage beyond the lower mark; None: below the threshold.

    victims, called only when there is something to release, returns the candidates in order; usage
    returns a pod's usage.
    """
    band = feature.band.while_under_way() if feature.under_way else feature.band
    release = used_release(used, capacity, band)
    if release <= 0:
        return None
    percent = used_percent(used, capacity)
    return EvictionTask(
        feature=feature.name,
        target=ReleaseTarget.USED,
        amounts={feature.resource: release},
        candidates=tuple(victims()),
        gain=lambda pod: {feature.resource: usage(pod)},
        trigger=f"node {feature.resource} {percent} % used, threshold {feature.band.threshold} %, "
        f"down to {feature.band.lower} %",
        inputs={
            "used": used,
            "capacity": capacity,
            "used_percent": percent,
            "threshold_percent": feature.band.threshold,
            "lower_percent": feature.band.lower,
            "release": release,
        },
        order=feature.order,
    )


def requested_task(
    feature: RequestFeature,
    asked: Mapping[str, int],
    allocatable: Mapping[str, str],
    victims: Callable[[], Iterable[Pod]],
) -> EvictionTask | None:
    """Return the task to release the requests beyond the lower mark; None: below the threshold.

    asked is the sum for each tier; victims, called only when there is something to release, returns
    the candidates in any order.
    """
    band = feature.band.while_under_way() if feature.under_way else feature.band
    has = {name: amount(name, allocatable[name]) if name in allocatable else 0 for name in asked}
    released = {name: feature.release(total, has[name], band) for name, total in asked.items()}
    amounts = {name: release for name, release in released.items() if release > 0}
    if not amounts:
        return None

    def request(pod: Pod) -> dict[str, int]:
        name = feature.resource(pod.priority_class)
        return {name: pod_request(pod, name)} if name in amounts else {}

    allowed = offered(victims(), feature.name, feature.ceiling)
    giving = [pod for pod in allowed if any(request(pod).values())]
    names = sorted(amounts)
    wanted = amounts_text({name: asked[name] for name in names})
    there = amounts_text({name: has[name] for name in names})
    return EvictionTask(
        feature=feature.name,
        target=ReleaseTarget.REQUEST,
        amounts=amounts,
        candidates=tuple(by_priority(giving, lambda pod: sum(request(pod).values()))),
        gain=request,
        trigger=f"{wanted} requested, allocatable {there}, threshold {feature.band.threshold} %, "
        f"down to {feature.band.lower} %",
        inputs={
            **{f"requested {name}": asked[name] for name in amounts},
            **{f"allocatable {name}": has[name] for name in amounts},
            **{f"release {name}": release for name, release in amounts.items()},
            "threshold_percent": feature.band.threshold,
            "lower_percent": feature.band.lower,
        },
        order=OWNERS_ORDER,
    )
