"""Which pod to evict next, so that what several features want back is given back once.

Source: Koordinator, pkg/koordlet/qosmanager/helpers, KillAndEvictPods.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from koord.api.pod import Pod

Amounts = Mapping[str, int]
"""By resource: milli-cores of CPU, bytes of memory."""


def amounts_text(amounts: Amounts) -> str:
    """Return amounts for people: "1.50 GiB memory, 2 cores kubernetes.io/batch-cpu"."""
    return ", ".join(
        f"{amount / 2**30:.2f} GiB {name}"
        if "memory" in name
        else f"{amount / 1000:g} cores {name}"
        for name, amount in amounts.items()
    )


class ReleaseTarget(StrEnum):
    """What of a pod counts."""

    USED = "podUsed"
    REQUEST = "podResourceRequest"


@dataclass(frozen=True, kw_only=True, slots=True)
class EvictionTask:
    """What one feature wants back, and from whom. gain: what a pod would give back.

    trigger says with numbers why, in one sentence; inputs are these numbers. order says by what
    the candidates are sorted.
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
    """The tasks in order of their features, and what was released so far.

    A pod that two tasks mention is released once, for both.
    """

    def __init__(self, tasks: Iterable[EvictionTask]) -> None:
        self._tasks = [task for task in tasks if any(n > 0 for n in task.amounts.values())]
        self._needs = {task.feature: task.amounts for task in self._tasks}
        self.released: Counter[tuple[ReleaseTarget, str]] = Counter()
        self._handled: set[str] = set()

    @property
    def features(self) -> frozenset[str]:
        """The features that take part."""
        return frozenset(self._needs)

    def next(self) -> tuple[EvictionTask, Pod] | None:
        """Return the next victim and on whose behalf; None: all is released, or nobody is left.

        A pod that gives back nothing of what is still to be released is no victim.
        """
        for task in self._tasks:
            rest = self.rest(task)
            for pod in task.candidates if rest else ():
                if pod.uid not in self._handled and _helps(task.gain(pod), rest):
                    return task, pod
        return None

    def rest(self, task: EvictionTask) -> Amounts:
        """Return what is still to be released; only what is above zero."""
        needs = self._needs[task.feature]
        left = {
            name: min(wanted - self.released[task.target, name], needs.get(name, 0))
            for name, wanted in task.amounts.items()
        }
        return {name: amount for name, amount in left.items() if amount > 0}

    def wanting(self) -> list[EvictionTask]:
        """Return the tasks that are not done."""
        return [task for task in self._tasks if self.rest(task)]

    def release(self, pod: Pod) -> None:
        """Count a pod as released: it ends, or has ended."""
        self._handled.add(pod.uid)
        for key, amount in self.gain(pod).items():
            self.released[key] += amount

    def pass_over(self, pod: Pod) -> None:
        """Leave a pod out that cannot be evicted."""
        self._handled.add(pod.uid)

    def see(self, tasks: Iterable[EvictionTask]) -> None:
        """Take note of what is wanted by now: more than that is not released any more.

        A feature without a task wants nothing any more.
        """
        needs = {task.feature: task.amounts for task in tasks}
        self._needs = {feature: needs.get(feature, {}) for feature in self._needs}

    def gain(self, pod: Pod) -> dict[tuple[ReleaseTarget, str], int]:
        """Return what a pod gives back, each resource once however many tasks count it."""
        gains: dict[tuple[ReleaseTarget, str], int] = {}
        for task in self._tasks:
            for name, amount in task.gain(pod).items():
                key = (task.target, name)
                gains[key] = max(gains.get(key, 0), amount)
        return gains


def _helps(gain: Amounts, rest: Amounts) -> bool:
    """Whether a pod gives back some of what is still to be released."""
    return any(gain.get(name, 0) > 0 for name in rest)
