"""Decide what to do when another agent writes a value of ours, or the kernel rejects one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from koord.util.clock import Clock
from koord.util.timebudget import Backoff
from koordlet.executor.claims.claim import ApplyResult, ClaimState, Key

RETAKE_WINDOW = 3600.0  # seconds
RETAKE_BACKOFF = 10.0  # seconds before a value is retaken; doubled each time within an hour
MAX_RETAKES = 5  # of one value within an hour


class OnForeignChange(StrEnum):
    """The values of --on-foreign-change."""

    RETAKE = "retake"
    YIELD = "yield"


class ConflictDecision(NamedTuple):
    """The result instead of a write. foreign_change: what to report; empty: reported before."""

    state: ClaimState
    message: str
    foreign_change: str


@dataclass(slots=True)
class _Conflict:
    """The conflict about one value. Times are monotonic seconds."""

    retakes: list[float] = field(default_factory=list)  # when, of the past hour
    seen: float | None = None  # when the foreign value was found; None: there is none
    reported: str = ""


class ConflictPolicy:
    """Retakes a value after a while, less and less eagerly, or leaves it to the other agent."""

    def __init__(self, clock: Clock, policy: Callable[[], OnForeignChange]) -> None:
        self._clock = clock
        self._policy = policy
        self._conflicts: dict[Key, _Conflict] = {}

    def judge(self, key: Key, found: str) -> ConflictDecision | None:
        """Decide about a foreign value that was found. None: write over it."""
        now = self._clock.monotonic()
        conflict = self._conflicts.setdefault(key, _Conflict())
        conflict.retakes = [at for at in conflict.retakes if at > now - RETAKE_WINDOW]
        conflict.seen = now if conflict.seen is None else conflict.seen
        what = f"another agent has set it to {found or 'nothing'}"
        if self._policy() is OnForeignChange.YIELD:
            message = f"{what}; it is left so (--on-foreign-change=yield)"
            return self._verdict(conflict, ClaimState.YIELDED, message)
        if len(conflict.retakes) >= MAX_RETAKES:
            wait = conflict.retakes[0] + RETAKE_WINDOW - now
            message = f"{what} {MAX_RETAKES + 1} times in an hour; it is left so for {wait:.0f} s"
            return self._verdict(conflict, ClaimState.YIELDED, message)
        wait = conflict.seen + RETAKE_BACKOFF * 2 ** len(conflict.retakes) - now
        if wait > 0:
            message = f"{what}; it is retaken in {wait:.0f} s"
            return self._verdict(conflict, ClaimState.WAITING, message)
        return None

    def retaken(self, key: Key) -> None:
        """Our value has been written over the foreign one."""
        self._conflicts[key].retakes.append(self._clock.monotonic())
        self.ended(key)

    def ended(self, key: Key) -> None:
        """No foreign value is there any more."""
        if conflict := self._conflicts.get(key):
            conflict.seen, conflict.reported = None, ""

    def forget(self, key: Key) -> None:
        """The value is not claimed any more."""
        self._conflicts.pop(key, None)

    def _verdict(self, conflict: _Conflict, state: ClaimState, message: str) -> ConflictDecision:
        foreign_change = "yielded" if state is ClaimState.YIELDED else "foreign"
        if foreign_change == conflict.reported:
            foreign_change = ""
        else:
            conflict.reported = foreign_change
        return ConflictDecision(state, message, foreign_change)


INITIAL_BACKOFF, MAX_BACKOFF = 10.0, 600.0  # seconds; doubled with each refusal in a row


@dataclass(slots=True)
class _RejectedWrite:
    text: str
    applied: ApplyResult
    backoff: Backoff
    until: float  # monotonic


class RejectedWrites:
    """At most one per value: of the text that was tried last. Another text may be tried at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rejected_writes: dict[Key, _RejectedWrite] = {}

    def record(self, key: Key, text: str, applied: ApplyResult) -> None:
        """The kernel did not take this text."""
        before = self._rejected_writes.get(key)
        same = before is not None and before.text == text
        backoff = before.backoff if before and same else Backoff(INITIAL_BACKOFF, MAX_BACKOFF)
        until = self._clock.monotonic() + backoff.next()
        self._rejected_writes[key] = _RejectedWrite(text, applied, backoff, until)

    def find(self, key: Key, text: str) -> ApplyResult | None:
        """The answer that still holds; None: try."""
        reject_reason = self._rejected_writes.get(key)
        if (
            reject_reason
            and reject_reason.text == text
            and reject_reason.until > self._clock.monotonic()
        ):
            return reject_reason.applied
        return None

    def over(self, key: Key) -> None:
        """The value is what it should be, or not claimed any more."""
        self._rejected_writes.pop(key, None)
