"""Arguments of plugins that depend on how often the descheduler runs."""

from typing import Protocol, Self, runtime_checkable


@runtime_checkable
class IntervalDependent(Protocol):
    """Arguments that depend on how often the descheduler runs."""

    def for_interval(self, interval: float) -> Self:
        """Return the arguments for an interval in seconds; 0: there is a single cycle."""
        ...


@runtime_checkable
class HistoryDependent(Protocol):
    """Arguments that wait for what is seen in several cycles."""

    def as_if_lasting(self) -> Self:
        """Return the arguments for a plan, whose only cycle counts as if it had lasted."""
        ...
