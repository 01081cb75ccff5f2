"""The schedule of collectors: fixed rates on the monotonic clock."""

from collections.abc import Mapping

from koordlet.metriccache.kinds import Cadence

_SLACK = 1e-6  # seconds by which a timer may wake early and still count as on time


class Schedule:
    """Turns of several periods that all start together at `start` (monotonic seconds).

    A turn that could not be taken in time is skipped, never made up for.
    """

    def __init__(self, periods: Mapping[Cadence, float], start: float) -> None:
        self._periods = dict(periods)
        self._start = start
        self._next = dict.fromkeys(periods, start)

    @property
    def next(self) -> float:
        """When the next turn is due."""
        return min(self._next.values())

    def take(self, now: float) -> tuple[frozenset[Cadence], int]:
        """Return the cadences that are due, and how many earlier turns were missed over all."""
        due = frozenset(cadence for cadence, at in self._next.items() if at <= now + _SLACK)
        return due, sum(self._advance(cadence, now) for cadence in due)

    def _advance(self, cadence: Cadence, now: float) -> int:
        period = self._periods[cadence]
        missed = int((now + _SLACK - self._next[cadence]) / period)
        turn = round((self._next[cadence] - self._start) / period) + missed + 1
        self._next[cadence] = self._start + turn * period
        return missed
