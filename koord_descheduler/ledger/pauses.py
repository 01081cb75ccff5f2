"""How long a workload is left alone whose evictions do not relieve. Pure."""

from koord_descheduler.ledger.entries import Pause, WorkloadRef

FIRST_PAUSE = 600.0  # seconds
LONGEST_PAUSE = 86_400.0  # seconds
FORGOTTEN_AFTER = 86_400.0  # seconds after the end of a pause, without another failure
_MOST_STRIKES = 8  # more would not make the pause longer


def after_failure(
    pause: Pause | None, workload: WorkloadRef, evicted_at: float, now: float
) -> Pause:
    """The pause after an eviction that failed: 10 minutes, twice as long each time, to 24 hours.

    Evictions from before the pause began, which were under way already, do not lengthen it.
    """
    if pause is not None and evicted_at <= pause.began:
        return pause
    strikes = min(1 if pause is None else pause.strikes + 1, _MOST_STRIKES)
    until = now + min(FIRST_PAUSE * 2 ** (strikes - 1), LONGEST_PAUSE)
    if pause is not None:  # successes since may have taken back what it counted
        until = max(until, pause.until)
    return Pause(workload=workload, strikes=strikes, began=now, until=until)


def after_success(pause: Pause, evicted_at: float) -> Pause | None:
    """The pause after an eviction that relieved: one failure less counts. None: it is over.

    Evictions from before the pause began do not shorten it.
    """
    if evicted_at <= pause.began:
        return pause
    if pause.strikes <= 1:
        return None
    return Pause(
        workload=pause.workload,
        strikes=pause.strikes - 1,
        began=pause.began,
        until=pause.until,
    )


def is_forgotten(pause: Pause, now: float) -> bool:
    """Whether its failures are too long ago to count any more."""
    return now >= pause.until + FORGOTTEN_AFTER
