"""Deadlines on the injected clock, one for each phase of a request."""

import asyncio
from types import TracebackType
from typing import Self

from koord.kube.errors import TimedOut
from koord.util.clock import Clock


class Deadline:
    """Ends the block it surrounds when the phase that was entered last takes too long.

    Raises:
        TimedOut: from the block, with the name of that phase.
    """

    def __init__(self, clock: Clock, where: str) -> None:
        self._clock = clock
        self._where = where
        self._scope = asyncio.timeout(None)
        self._timer: asyncio.Future[None] | None = None  # no task: each watch event has one
        self._phase, self._seconds = "", 0.0

    def enter(self, phase: str, seconds: float) -> None:
        """Begin a phase, which has so many seconds from now on. phase is what is waited for."""
        self.pause()
        self._phase, self._seconds = phase, seconds
        self._timer = self._clock.timer(seconds)
        self._timer.add_done_callback(self._expired)

    def pause(self) -> None:
        """Let the block take its time until the next phase."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expired(self, timer: "asyncio.Future[None]") -> None:
        if timer is self._timer:
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> Self:
        await self._scope.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.pause()
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError as err:
            raise TimedOut(self._where, self._phase, self._seconds) from err
