"""An alarm that ends a pause early."""

import asyncio

from koord.util.stop import Stop


class Alarm:
    """Wakes the one coroutine that waits for it, now or when it waits next."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake the waiting coroutine. Returns at once; call it on the event loop."""
        self._event.set()

    async def wait(self, stop: Stop, seconds: float) -> bool:
        """Return after so many seconds, at stop, or as soon as the alarm is set.

        True: it was set; it is not any more.
        """
        if seconds > 0 and not self._event.is_set():
            await stop.sleep(seconds, wake=self._event)
        was_set = self._event.is_set()
        self._event.clear()
        return was_set
