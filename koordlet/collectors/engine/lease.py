"""Keeps a thread that hangs in the kernel from touching anything once it was given up."""

from collections.abc import Callable
from typing import TypeVar

from koord.util.clock import Clock

T = TypeVar("T")


class GivenUp(BaseException):
    """Ends a thread that was given up, at the moment its kernel read returns.

    Not an Exception, so that no collector and no isolation of collectors holds it up.
    """


class Lease:
    """The right of one thread to work, which can be taken away while it waits for the kernel.

    The thread does every kernel read with `during`. The watching side may revoke the lease only in
    one, so from then on exactly one of both works with the shared objects: the one that took the
    announcement off the list, which is atomic and much cheaper than a lock.
    """

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._reading: list[tuple[str, float]] = []  # the read that goes on, if any

    def during(self, what: str, read: Callable[[], T]) -> tuple[T, float]:
        """Read, announced as what. Return what was read, and the monotonic time before.

        Raises:
            GivenUp: the lease was revoked meanwhile.
        """
        now = self._monotonic()
        self._reading.append((what, now))
        try:
            return read(), now
        finally:
            try:
                self._reading.pop()
            except IndexError:
                raise GivenUp from None

    def revoke_if_hung(self, limit: float) -> str | None:
        """Revoke the lease if one read lasts longer than limit seconds; return what it reads."""
        try:
            _, began = self._reading[0]
            if self._monotonic() - began < limit:
                return None
            return self._reading.pop()[0]
        except IndexError:  # there is none, or it has just returned
            return None
