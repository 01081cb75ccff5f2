"""The tasks of the eviction features and the choice of the next victim; a pod is released once."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from koord.api.gojson import parse_json
from koord.api.pod import Pod, amount, pod_request
from koord.api.qos import KoordPriorityClass, QoSClass
from koord.plugin import InvalidObject
from koordlet.plugin import PodMeta
from koordlet_plugins.eviction.settings import Band, used_percent, used_release

EVICTION_ENABLED = "koordinator.sh/eviction-enabled"  # label
EVICTION_POLICY = "koordinator.sh/eviction-policy"  # annotation: list of features as JSON
EVICTION_PRIORITY = "koordinator.sh/eviction-priority"  # annotation: whole number of 32 bits
PRIORITY = "koordinator.sh/priority"  # label: whole number, the order within a priority class

_DECIMAL = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_INT32, _INT64 = 2**31, 2**63

Amount = Callable[[Pod], float]
"""The size of a pod in its order, for example the bytes that it uses."""


def best_effort(pods: Iterable[Pod], feature: str) -> list[Pod]:
    """Return the pods that a feature for best-effort pods may evict: those with that very label."""
    return [
        pod
        for pod in pods
        if pod.raw_qos_class is QoSClass.BE and pod.active and allows(pod, feature)
    ]


def offered(pods: Iterable[Pod], feature: str, ceiling: int) -> list[Pod]:
    """Return the pods up to a priority with the eviction label whose policy allows the feature."""
    return [
        pod
        for pod in pods
        if pod.active
        and is_enabled(pod)
        and pod.effective_priority <= ceiling
        and allows(pod, feature)
    ]


def by_priority(pods: Iterable[Pod], size: Amount) -> list[Pod]:
    """Return the pods, first victim first: as their owners rank them, the larger one before.

    The ranks are the eviction priority, the priority and the priority label; lower goes first.
    """

    def rank(pod: Pod) -> tuple[Any, ...]:
        priorities = eviction_priority(pod), pod.effective_priority, label_priority(pod)
        return (*priorities, -size(pod), pod.namespace, pod.name)

    return sorted(pods, key=rank)


def by_share(pods: Iterable[Pod], share: Amount) -> list[Pod]:
    """Return the pods, first victim first: lower priority, then the larger share.

    A pod without a priority has that of its class. Of equals the last name goes first.
    """
    named = sorted(pods, key=lambda pod: (pod.name, pod.namespace), reverse=True)
    return sorted(named, key=lambda pod: (pod.effective_priority, -share(pod)))


def allows(pod: Pod, feature: str) -> bool:
    """Whether the pod's policy lets this feature evict it; without a policy every one may.

    A policy that is no list of names, or an empty one, allows nothing. A null in it is no name, as
    Go reads it.
    """
    text = pod.annotations.get(EVICTION_POLICY)
    if text is None:
        return True
    try:
        features = parse_json(text, EVICTION_POLICY)
    except InvalidObject:
        return False
    return isinstance(features, list) and all(map(_is_name, features)) and feature in features


def is_enabled(pod: Pod) -> bool:
    """Whether the pod's label offers it for eviction."""
    return pod.labels.get(EVICTION_ENABLED) == "true"


def eviction_priority(pod: Pod) -> int:
    """Return the rank that the annotation gives: lower is evicted first. 0 without a valid one."""
    found = _whole_number(pod.annotations.get(EVICTION_PRIORITY, ""), _INT32)
    return 0 if found is None else found


def label_priority(pod: Pod) -> int:
    """Return the number of the priority label, or else the pod's priority."""
    found = _whole_number(pod.labels.get(PRIORITY, ""), _INT64)
    return pod.effective_priority if found is None else found


def _is_name(value: object) -> bool:
    return value is None or isinstance(value, str)


def _whole_number(text: str, bound: int) -> int | None:
    if not _DECIMAL.fullmatch(text):
        return None
    number = int(text)
    return number if -bound <= number < bound else None


Amounts = Mapping[str, int]
"""By resource: milli-cores of CPU, bytes of memory."""


def amounts_text(amounts: Amounts) -> str:
    """Return amounts for people: "1.50 GiB memory, 2 cores kubernetes.io/batch-cpu"."""
    return ", ".join(
        f"{value / 2**30:.2f} GiB {name}" if "memory" in name else f"{value / 1000:g} cores {name}"
        for name, value in amounts.items()
    )


class ReleaseTarget(StrEnum):
    """The amount of a pod that counts as released: its usage or its requests."""

    USED = "podUsed"
    REQUEST = "podResourceRequest"


@dataclass(frozen=True, kw_only=True, slots=True)
class EvictionTask:
    """The amounts that one feature has to release, and its candidates.

    gain returns the amounts that a pod would release. trigger is the reason in one sentence with
    numbers; inputs are these numbers. order names the sort order of the candidates.
    """

    feature: str
    target: ReleaseTarget
    amounts: Amounts
    candidates: tuple[Pod, ...]  # first victim first
    gain: Callable[[Pod], Amounts]
    trigger: str = ""
    inputs: Mapping[str, float] = field(default_factory=dict)
    order: str = ""


class EvictionPlan:
    """The tasks in order of their features, and the amounts released already.

    A pod that is a candidate of two tasks is released once, for both.
    """

    def __init__(self, tasks: Iterable[EvictionTask]) -> None:
        self._tasks = [task for task in tasks if any(n > 0 for n in task.amounts.values())]
        self._needs = {task.feature: task.amounts for task in self._tasks}
        self.released: Counter[tuple[ReleaseTarget, str]] = Counter()
        self._handled: set[str] = set()

    @property
    def features(self) -> frozenset[str]:
        """The features that have a task."""
        return frozenset(self._needs)

    def next(self) -> tuple[EvictionTask, Pod] | None:
        """Return the next victim and its task; None: all is released, or no candidate is left.

        A pod that releases none of the amounts that are still wanted is no victim.
        """
        for task in self._tasks:
            rest = self.rest(task)
            for pod in task.candidates if rest else ():
                if pod.uid not in self._handled and _helps(task.gain(pod), rest):
                    return task, pod
        return None

    def rest(self, task: EvictionTask) -> Amounts:
        """Return the amounts that are still to be released; only those above zero."""
        needs = self._needs[task.feature]
        left = {
            name: min(wanted - self.released[task.target, name], needs.get(name, 0))
            for name, wanted in task.amounts.items()
        }
        return {name: value for name, value in left.items() if value > 0}

    def wanting(self) -> list[EvictionTask]:
        """Return the tasks that are not done."""
        return [task for task in self._tasks if self.rest(task)]

    def release(self, pod: Pod) -> None:
        """Count a pod as released: it ends, or has ended."""
        self._handled.add(pod.uid)
        for key, value in self.gain(pod).items():
            self.released[key] += value

    def pass_over(self, pod: Pod) -> None:
        """Leave a pod out that cannot be evicted."""
        self._handled.add(pod.uid)

    def see(self, tasks: Iterable[EvictionTask]) -> None:
        """Lower the wanted amounts to those of the present tasks.

        A feature without a task wants nothing any more.
        """
        needs = {task.feature: task.amounts for task in tasks}
        self._needs = {feature: needs.get(feature, {}) for feature in self._needs}

    def gain(self, pod: Pod) -> dict[tuple[ReleaseTarget, str], int]:
        """Return the amounts that a pod releases, each resource once for all tasks."""
        gains: dict[tuple[ReleaseTarget, str], int] = {}
        for task in self._tasks:
            for name, value in task.gain(pod).items():
                key = (task.target, name)
                gains[key] = max(gains.get(key, 0), value)
        return gains


def _helps(gain: Amounts, rest: Amounts) -> bool:
    """Whether a pod releases a part of the rest."""
    return any(gain.get(name, 0) > 0 for name in rest)


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
    resource: Callable[[KoordPriorityClass], str]  # the resource that a tier requests
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


TIERS = (KoordPriorityClass.BATCH, KoordPriorityClass.MID)
"""The priority classes whose requests are counted, and released, as resources of their own."""


class TierRequests:
    """Caches the latest sums: the states informer replaces the tuple of pods as a whole."""

    def __init__(self, resource: Callable[[KoordPriorityClass], str]) -> None:
        """resource returns the resource that a tier requests."""
        self.resource = resource
        self._pods: tuple[PodMeta, ...] | None = None
        self._ceiling = 0
        self._sums: Mapping[str, int] = {}

    def sums(self, pods: tuple[PodMeta, ...], ceiling: int) -> Mapping[str, int]:
        """Return the sums over the pods up to a priority, as requested_by_tier."""
        if pods is not self._pods or ceiling != self._ceiling:
            found = (meta.pod for meta in pods)
            self._sums = requested_by_tier(found, ceiling, self.resource)
            self._pods, self._ceiling = pods, ceiling
        return self._sums


def requested_by_tier(
    pods: Iterable[Pod], ceiling: int, resource: Callable[[KoordPriorityClass], str]
) -> Mapping[str, int]:
    """Return the sum of requests of the pods up to a priority, by the resource of their tier.

    Only pods that have not ended count, and only tiers whose pods can be evicted for it.
    """
    sums: Counter[str] = Counter()
    for pod in pods:
        tier = pod.priority_class
        if tier in TIERS and pod.active and pod.effective_priority <= ceiling:
            sums[resource(tier)] += pod_request(pod, resource(tier))
    return sums
