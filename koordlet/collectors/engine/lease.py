"""Keeps a thread that hangs in the kernel from touching anything once it was given up."""

import threading

from koord.util.clock import Clock


class GivenUp(BaseException):
    """Ends a thread that was given up, at the moment its kernel read returns.

    Not an Exception, so that no collector and no isolation of collectors holds it up.
    """


class Lease:
    """The right of one thread to work, which can be taken away while it waits for the kernel.

    The thread brackets every kernel read with begin and end. The watching side may revoke the lease
    only between the two, so from then on exactly one of both works with the shared objects.
    """

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._lock = threading.Lock()
        self._reading: tuple[str, float] | None = None
        self._revoked = False

    def begin(self, what: str) -> float:
        """Announce the read that begins now. Returns the monotonic time."""
        now = self._monotonic()
        self._reading = (what, now)
        return now

    def end(self) -> None:
        """Announce that the read returned.

        Raises:
            GivenUp: the lease was revoked meanwhile.
        """
        with self._lock:
            self._reading = None
            if self._revoked:
                raise GivenUp

    def revoke_if_hung(self, limit: float) -> str | None:
        """Revoke the lease if one read lasts longer than limit seconds; return what it reads."""
        with self._lock:
            reading = self._reading
            if reading is None or self._monotonic() - reading[1] < limit:
                return None
            self._revoked = True
            return reading[0]
