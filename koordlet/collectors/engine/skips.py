"""Kernel files that are left alone because reading them did not return."""

from koord.util.backoff import Backoff
from koord.util.clock import Clock
from koordlet.host.errors import Hung

FIRST_PAUSE = 30.0  # seconds between the return of a read that hung and the next attempt
LONGEST_PAUSE = 3600.0


class Skips:
    """Reads to leave out, by the name under which the reading was announced.

    Asked by the sampling thread, changed by the event loop.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}
        self._pauses: dict[str, Backoff] = {}

    def add(self, what: str) -> None:
        """Leave it alone while a thread still waits for it."""
        self._until[what] = float("inf")

    def release(self, what: str) -> None:
        """The thread came back: try again after a pause, longer each time."""
        now = self._clock.monotonic()
        for old in [name for name, until in self._until.items() if until < now - LONGEST_PAUSE]:
            del self._until[old]
            self._pauses.pop(old, None)
        pause = self._pauses.setdefault(what, Backoff(FIRST_PAUSE, LONGEST_PAUSE))
        self._until[what] = now + pause.next()

    def check(self, what: str) -> None:
        """Raise Hung when it is to be left alone."""
        until = self._until.get(what)
        if until is not None and self._clock.monotonic() < until:
            raise Hung(
                what,
                wanted="to read it",
                found="that an earlier read did not return",
                hint="look at the kernel log; it is tried again when that read returns",
            )

    def __bool__(self) -> bool:
        return bool(self._until)
