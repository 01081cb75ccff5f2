"""The choice of the next victim; a pod that several features count is released once.

Source: Koordinator, pkg/koordlet/qosmanager/helpers, KillAndEvictPods.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from koord.api.pods.pod import Pod

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
    """The tasks in order of their features, and the amounts released so far.

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
        """Lower the wanted amounts to those of the present tasks.

        A feature without a task wants nothing any more.
        """
        needs = {task.feature: task.amounts for task in tasks}
        self._needs = {feature: needs.get(feature, {}) for feature in self._needs}

    def gain(self, pod: Pod) -> dict[tuple[ReleaseTarget, str], int]:
        """Return the amounts that a pod releases, each resource once for all tasks."""
        gains: dict[tuple[ReleaseTarget, str], int] = {}
        for task in self._tasks:
            for name, amount in task.gain(pod).items():
                key = (task.target, name)
                gains[key] = max(gains.get(key, 0), amount)
        return gains


def _helps(gain: Amounts, rest: Amounts) -> bool:
    """Whether a pod releases a part of the rest."""
    return any(gain.get(name, 0) > 0 for name in rest)
