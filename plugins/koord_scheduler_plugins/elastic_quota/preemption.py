"""Which pods of a quota make room: for another pod of it, or because it uses more than it may."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from koord.api.elasticquota import DEFAULT_QUOTA, Amounts


@dataclass(frozen=True, kw_only=True, slots=True)
class QuotaPod:
    """A pod that uses a quota."""

    key: str  # namespace/name
    uid: str = ""
    quota: str
    node: str = ""
    priority: int = 0
    started: float = 0.0  # Unix seconds
    request: Amounts
    preemptible: bool = True
    protected: bool = False  # evicting it would violate a PodDisruptionBudget
    gang: str = ""  # namespace/name; "": none

    @property
    def importance(self) -> tuple[int, float, str]:
        """Sort key: the least important pod first; of equal priority the one started last."""
        return (self.priority, -self.started, self.key)


def candidates(
    pods: Iterable[QuotaPod], quota: str, priority: int, *, spare_default: bool = False
) -> list[QuotaPod]:
    """Return pods that one of this priority may preempt, the least important one first.

    spare_default: pods of the default quota are no victims.
    """
    if spare_default and quota == DEFAULT_QUOTA:
        return []
    found = (pod for pod in pods if pod.quota == quota and pod.preemptible)
    return sorted((pod for pod in found if pod.priority < priority), key=_importance)


def quota_victims(
    pods: Sequence[QuotaPod], admitted: Callable[[Amounts], bool]
) -> list[QuotaPod] | None:
    """Return the pods of a quota to evict so that a preemptor is admitted; None: none suffice.

    pods: candidates of the whole quota. admitted: whether the preemptor is admitted when so much
    of what the quota uses is freed. First all pods are taken away, then those come back without
    which it still is, those that a budget protects and the most important ones first. So nobody
    is evicted unless the preemptor is admitted afterwards.
    """
    freed: dict[str, int] = {}
    for pod in pods:
        _add(freed, pod.request, 1)
    if not admitted(freed):
        return None
    victims: list[QuotaPod] = []
    for pod in sorted(pods, key=_reprieve):
        _add(freed, pod.request, -1)
        if not admitted(freed):
            _add(freed, pod.request, 1)
            victims.append(pod)
    return victims


def over_use(used: Amounts, limit: Amounts) -> tuple[str, ...]:
    """Return the resources of which more is used than the limit; what it lacks is not limited."""
    return tuple(key for key in sorted(used) if key in limit and used[key] > limit[key])


def revoked(
    pods: Iterable[QuotaPod],
    used: Amounts,
    limit: Amounts,
    spare: Mapping[str, int] | None = None,
) -> list[QuotaPod]:
    """Return the pods of a quota to evict until what it uses is within its limit.

    The least important ones are collected until it is; if all of them do not suffice, all are
    evicted. Otherwise the most important ones of the collected come back as long as it is.

    spare: how many members each gang can lose and still have its minimum. Its further members are
    collected together, after all pods whose end breaks no gang.

    Source: Koordinator, QuotaOverUsedGroupMonitor.getToRevokePodList.
    """
    left = {key: amount for key, amount in used.items() if key in limit}
    collected: list[tuple[QuotaPod, ...]] = []
    for unit in _units(pods, spare or {}):
        if not over_use(left, limit):
            break
        _add_all(left, unit, -1)
        collected.append(unit)
    if over_use(left, limit):
        return [pod for unit in collected for pod in unit]
    evicted: list[QuotaPod] = []
    for unit in reversed(collected):
        _add_all(left, unit, 1)
        if over_use(left, limit):
            _add_all(left, unit, -1)
            evicted += unit
    return evicted


def _units(pods: Iterable[QuotaPod], spare: Mapping[str, int]) -> list[tuple[QuotaPod, ...]]:
    """Pods that leave together, the least important ones first, then whole gangs."""
    alone: list[tuple[QuotaPod, ...]] = []
    together: dict[str, list[QuotaPod]] = {}
    left = dict(spare)
    for pod in sorted(pods, key=_importance):
        if not pod.preemptible:
            continue
        if pod.gang not in left or left[pod.gang] > 0:
            alone.append((pod,))
            if pod.gang in left:
                left[pod.gang] -= 1
        else:
            together.setdefault(pod.gang, []).append(pod)
    gangs = sorted(together.values(), key=lambda members: members[-1].importance)
    return [*alone, *map(tuple, gangs)]


@dataclass(frozen=True, slots=True)
class OverUse:
    """How long a quota has been using more than it may."""

    under_used: float  # seconds of a monotonic clock; when it last did not

    def next(self, now: float, delay: float, *, over: bool) -> tuple["OverUse", bool]:
        """Return the state after a round, and whether pods are to be revoked now.

        delay: seconds that use above the limit is tolerated.
        """
        if over and now - self.under_used <= delay:
            return self, False
        return OverUse(now), over


def _importance(pod: QuotaPod) -> tuple[int, float, str]:
    return pod.importance


def _reprieve(pod: QuotaPod) -> tuple[bool, int, float, str]:
    return (not pod.protected, -pod.priority, pod.started, pod.key)


def _add_all(amounts: dict[str, int], pods: Iterable[QuotaPod], sign: int) -> None:
    for pod in pods:
        _add(amounts, pod.request, sign)


def _add(amounts: dict[str, int], request: Amounts, sign: int) -> None:
    for key, amount in request.items():
        amounts[key] = amounts.get(key, 0) + sign * amount
