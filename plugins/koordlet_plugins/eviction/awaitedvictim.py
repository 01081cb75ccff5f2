"""A victim whose eviction was accepted: is it gone, and is what it held back?"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from koordlet.plugin import PodMeta, States
from koordlet_plugins.eviction.plan import EvictionTask, ReleaseTarget

MARGIN = 15.0  # seconds beyond its grace period that a victim gets to be gone
LONGEST_WAIT = 75.0  # seconds for a victim, whatever its grace period
SETTLING = 10.0  # seconds after a victim is gone in which its share must have come back
SHARE = 0.5  # of what a victim was to give back, from which on it has


class Usage(NamedTuple):
    """What the node uses of the resource that is evicted for, and when that was measured."""

    value: float  # in the unit of the amounts
    at: float  # seconds since boot


class Verdict(StrEnum):
    """What has become of a victim."""

    OPEN = "open"  # not known yet
    GONE = "gone"
    WITHOUT_EFFECT = "without_effect"  # gone, but usage did not fall
    SLOW = "slow"  # still in its grace period when the next one is due
    IGNORED = "ignored"  # still there after it


@dataclass(slots=True)
class AwaitedVictim:
    """asked and gone are monotonic seconds, gone_boot is since boot. gone None: it is not."""

    pod: PodMeta
    task: EvictionTask
    expected: int  # of the resource, that it is to give back
    before: Usage | None  # None: not measured when it was asked for
    asked: float
    gone: float | None = None
    gone_boot: float = 0.0

    def has_left(self, states: States) -> bool:
        """Whether nothing of it runs any more; the object may still be there."""
        now = states.pod(self.pod.uid)
        return now is None or now.pod.finished or (bool(self.pod.containers) and not now.containers)

    def leave(self, monotonic: float, boottime: float) -> None:
        """Nothing of it runs any more."""
        self.gone, self.gone_boot = monotonic, boottime

    def judge(self, monotonic: float, usage: Usage | None) -> Verdict:
        """What has become of it by now, given what the node uses."""
        if self.gone is None:
            return self._judge_wait(monotonic - self.asked)
        if self.task.target is not ReleaseTarget.USED:
            return Verdict.GONE
        freed = self.freed(usage)
        if freed is not None and freed >= SHARE * self.expected:
            return Verdict.GONE
        is_late = monotonic - self.gone >= SETTLING
        return Verdict.WITHOUT_EFFECT if is_late else Verdict.OPEN

    def freed(self, usage: Usage | None) -> float | None:
        """How much less the node uses; None: not measured since the victim is gone."""
        if self.before is None or usage is None or usage.at <= self.gone_boot:
            return None
        return self.before.value - usage.value

    def facts(self, monotonic: float, usage: Usage | None, resource: str) -> dict[str, float | str]:
        """How long it took and what came back, for the record."""
        after = (monotonic if self.gone is None else self.gone) - self.asked
        found: dict[str, float | str] = {"after_s": round(after, 1)}
        if self.task.target is ReleaseTarget.USED:
            found[f"expected_{resource}"] = self.expected
            freed = self.freed(usage) if self.gone is not None else None
            if freed is not None:
                found[f"freed_{resource}"] = round(freed)
        return found

    def _judge_wait(self, waited: float) -> Verdict:
        patience = self.pod.pod.grace_seconds + MARGIN
        if waited < min(patience, LONGEST_WAIT):
            return Verdict.OPEN
        return Verdict.SLOW if patience > LONGEST_WAIT else Verdict.IGNORED
