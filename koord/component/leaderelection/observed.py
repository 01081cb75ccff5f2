"""The Lease as one candidate has seen it, on its own clock."""

from koord.kube.answers import Object
from koord.kube.leases import LeaseHolding, read_holding
from koord.util.clock import Clock


class ObservedLease:
    """The holder of the Lease that was seen last, and the time since it has changed.

    Times in the object are those of its holder's clock and are only compared for equality. The
    clock used is boot time, which counts suspend: a machine that slept has not renewed meanwhile.
    """

    def __init__(self, clock: Clock, longest: float) -> None:
        """longest, in seconds: a lease duration above it counts as malformed."""
        self._clock = clock
        self._longest = longest
        self._spec: object = None
        self._holding: LeaseHolding | None = None
        self._changed_at = 0.0  # boot time

    @property
    def holder(self) -> str:
        """The identity of the holder; empty: there is none, or no Lease was seen yet."""
        return self._holding.holder if self._holding is not None else ""

    def see(self, item: Object) -> None:
        """Take in the object, as it was read from the server or written to it."""
        if item.get("spec") != self._spec:
            self._spec = item.get("spec")
            self._holding = read_holding(item, longest=self._longest)
            self._changed_at = self._clock.boottime()

    def valid(self) -> bool:
        """Whether a holder has renewed within its lease duration."""
        if self._holding is None:
            return False
        return self._clock.boottime() < self._changed_at + self._holding.duration
