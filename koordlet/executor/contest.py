"""What to do about somebody else who writes a value of ours."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from koordlet.executor.claim import ClaimState, Key
from koordlet.util.clock import Clock

HOUR = 3600.0  # seconds
FIRST_PAUSE = 10.0  # seconds before a value is retaken; doubled each time within an hour
MOST_RETAKES = 5  # of one value within an hour


class OnForeignChange(StrEnum):
    """The values of --on-foreign-change."""

    RETAKE = "retake"
    YIELD = "yield"


class Verdict(NamedTuple):
    """What is done for now instead of writing. news: what is to be told; empty: told before."""

    state: ClaimState
    message: str
    news: str


@dataclass(slots=True)
class _Contest:
    """The quarrel about one value. Times are monotonic seconds."""

    retakes: list[float] = field(default_factory=list)  # when, of the past hour
    seen: float | None = None  # when the foreign value was found; None: there is none
    told: str = ""


class Contests:
    """Retakes a value after a while, less and less eagerly, or leaves it to the other."""

    def __init__(self, clock: Clock, policy: Callable[[], OnForeignChange]) -> None:
        self._clock = clock
        self._policy = policy
        self._contests: dict[Key, _Contest] = {}

    def judge(self, key: Key, found: str) -> Verdict | None:
        """Somebody else's value stands there. None: write over it."""
        now = self._clock.monotonic()
        contest = self._contests.setdefault(key, _Contest())
        contest.retakes = [at for at in contest.retakes if at > now - HOUR]
        contest.seen = now if contest.seen is None else contest.seen
        what = f"somebody else has set it to {found or 'nothing'}"
        if self._policy() is OnForeignChange.YIELD:
            message = f"{what}; it is left so (--on-foreign-change=yield)"
            return self._verdict(contest, ClaimState.YIELDED, message)
        if len(contest.retakes) >= MOST_RETAKES:
            wait = contest.retakes[0] + HOUR - now
            message = f"{what} {MOST_RETAKES + 1} times in an hour; it is left so for {wait:.0f} s"
            return self._verdict(contest, ClaimState.YIELDED, message)
        wait = contest.seen + FIRST_PAUSE * 2 ** len(contest.retakes) - now
        if wait > 0:
            message = f"{what}; it is retaken in {wait:.0f} s"
            return self._verdict(contest, ClaimState.WAITING, message)
        return None

    def retaken(self, key: Key) -> None:
        """Our value has been written over the foreign one."""
        self._contests[key].retakes.append(self._clock.monotonic())
        self.ended(key)

    def ended(self, key: Key) -> None:
        """No foreign value stands there."""
        if contest := self._contests.get(key):
            contest.seen, contest.told = None, ""

    def forget(self, key: Key) -> None:
        """The value is not claimed any more."""
        self._contests.pop(key, None)

    def _verdict(self, contest: _Contest, state: ClaimState, message: str) -> Verdict:
        news = "yielded" if state is ClaimState.YIELDED else "foreign"
        if news == contest.told:
            news = ""
        else:
            contest.told = news
        return Verdict(state, message, news)
