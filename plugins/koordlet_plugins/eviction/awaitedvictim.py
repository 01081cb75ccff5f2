"""A victim whose eviction was accepted, until it is gone and usage has fallen."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from koordlet.plugin import PodMeta, States
from koordlet_plugins.eviction.plan import EvictionTask, ReleaseTarget

MARGIN = 15.0  # seconds beyond its grace period that a victim gets to be gone
LONGEST_WAIT = 75.0  # seconds for a victim, whatever its grace period
SETTLING = 10.0  # seconds after a victim is gone in which its share must have come back
SHARE = 0.5  # of the expected release, from which on the eviction had an effect


class UsageSample(NamedTuple):
    """The node's usage of the resource that pods are evicted for, and the time of its sample."""

    value: float  # in the unit of the amounts
    at: float  # seconds since boot


class VictimState(StrEnum):
    """The outcome of an accepted eviction."""

    OPEN = "open"  # not known yet
    GONE = "gone"
    WITHOUT_EFFECT = "without_effect"  # gone, but usage did not fall
    SLOW = "slow"  # still in its grace period when the next eviction is due
    IGNORED = "ignored"  # still there after it


@dataclass(slots=True)
class AwaitedVictim:
    """The victim. asked and gone are monotonic seconds, gone_boot is since boot; None: not yet."""

    pod: PodMeta
    task: EvictionTask
    expected: int  # amount of the resource that it is to release
    before: UsageSample | None  # None: not measured at the time of the eviction
    asked: float
    gone: float | None = None
    gone_boot: float = 0.0

    def has_left(self, states: States) -> bool:
        """Whether none of its containers runs any more; the object may still be there."""
        now = states.pod(self.pod.uid)
        return now is None or now.pod.finished or (bool(self.pod.containers) and not now.containers)

    def leave(self, monotonic: float, boottime: float) -> None:
        """Record that none of its containers runs any more."""
        self.gone, self.gone_boot = monotonic, boottime

    def judge(self, monotonic: float, usage: UsageSample | None) -> VictimState:
        """Return the outcome so far, given the node's usage."""
        if self.gone is None:
            return self._judge_wait(monotonic - self.asked)
        if self.task.target is not ReleaseTarget.USED:
            return VictimState.GONE
        freed = self.freed(usage)
        if freed is not None and freed >= SHARE * self.expected:
            return VictimState.GONE
        is_late = monotonic - self.gone >= SETTLING
        return VictimState.WITHOUT_EFFECT if is_late else VictimState.OPEN

    def freed(self, usage: UsageSample | None) -> float | None:
        """Return the decrease of the node's usage; None: not measured since the victim is gone."""
        if self.before is None or usage is None or usage.at <= self.gone_boot:
            return None
        return self.before.value - usage.value

    def facts(
        self, monotonic: float, usage: UsageSample | None, resource: str
    ) -> dict[str, float | str]:
        """Return the time that it took and the released amount, for the record."""
        after = (monotonic if self.gone is None else self.gone) - self.asked
        found: dict[str, float | str] = {"after_s": round(after, 1)}
        if self.task.target is ReleaseTarget.USED:
            found[f"expected_{resource}"] = self.expected
            freed = self.freed(usage) if self.gone is not None else None
            if freed is not None:
                found[f"freed_{resource}"] = round(freed)
        return found

    def _judge_wait(self, waited: float) -> VictimState:
        patience = self.pod.pod.grace_seconds + MARGIN
        if waited < min(patience, LONGEST_WAIT):
            return VictimState.OPEN
        return VictimState.SLOW if patience > LONGEST_WAIT else VictimState.IGNORED
