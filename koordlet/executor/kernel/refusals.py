"""Remembers values that the kernel refused, so that they are not tried again at once."""

from dataclasses import dataclass

from koord.util.backoff import Backoff
from koord.util.clock import Clock
from koordlet.executor.claims.claim import Key
from koordlet.executor.claims.desired import ApplyResult

FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0  # seconds; doubled with each refusal in a row


@dataclass(slots=True)
class _Refusal:
    text: str
    applied: ApplyResult
    backoff: Backoff
    until: float  # monotonic


class Refusals:
    """At most one per value: of the text that was tried last. Another text may be tried at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refusals: dict[Key, _Refusal] = {}

    def note(self, key: Key, text: str, applied: ApplyResult) -> None:
        """The kernel did not take this text."""
        before = self._refusals.get(key)
        same = before is not None and before.text == text
        backoff = before.backoff if before and same else Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        until = self._clock.monotonic() + backoff.next()
        self._refusals[key] = _Refusal(text, applied, backoff, until)

    def find(self, key: Key, text: str) -> ApplyResult | None:
        """The answer that still holds; None: try."""
        refusal = self._refusals.get(key)
        if refusal and refusal.text == text and refusal.until > self._clock.monotonic():
            return refusal.applied
        return None

    def over(self, key: Key) -> None:
        """The value is what it should be, or not claimed any more."""
        self._refusals.pop(key, None)
