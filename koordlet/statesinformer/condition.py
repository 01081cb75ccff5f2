"""Health of a source of states, for /healthz, and a log line whenever it changes."""

from koord.util.clock import Clock
from koord.util.health import OK, PartHealth, Status
from koord.util.logs import get_logger

SILENCE = 5.0  # seconds without a finished round after which a source is called stuck


class Condition:
    """The problems of a source, logged when they start, change and end.

    A source with problems keeps what it published, so it is degraded. A source that finishes no
    round any more, for example because a read hangs, is unhealthy.
    """

    def __init__(self, source: str, clock: Clock, *, silence: float = SILENCE) -> None:
        self._clock = clock
        self._silence = silence
        self._log = get_logger("koordlet.statesinformer", source=source)
        self._problems: tuple[str, ...] = ()
        self._finished_at: float | None = None  # monotonic; None: has not begun

    def begin(self) -> None:
        """Record that the source has started."""
        self._finished_at = self._clock.monotonic()

    def finish(self, problems: tuple[str, ...] = ()) -> None:
        """Record the end of a round; problems are sentences for people."""
        self._finished_at = self._clock.monotonic()
        if problems == self._problems:
            return
        self._problems = problems
        if problems:
            self._log.warning("source.degraded", problems=list(problems))
        else:
            self._log.info("source.recovered")

    def health(self) -> PartHealth:
        if self._finished_at is None:
            return PartHealth(Status.UNHEALTHY, "has not started")
        silent = self._clock.monotonic() - self._finished_at
        if silent > self._silence:
            return PartHealth(Status.UNHEALTHY, f"no round finished for {silent:.0f} s")
        if self._problems:
            return PartHealth(Status.DEGRADED, "; ".join(self._problems))
        return OK
