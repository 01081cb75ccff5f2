"""A queue of names to look at: each by one at a time, later when asked, or after a failure."""

import asyncio
import heapq
from collections.abc import Awaitable, Callable

from koord_descheduler.plugin import Backoff, Clock, Stop

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0  # seconds

Handle = Callable[[str], Awaitable[float | None]]
"""Looks at a name; returns the seconds until the next look, None: when it is added again."""


class WorkQueue:
    """Belongs to the event loop. What is added while it is looked at is looked at once more."""

    def __init__(self, clock: Clock, failed: Callable[[str, Exception], float]) -> None:
        """failed is called with what a look has raised; the name is then due after a pause.

        It returns the longest pause in seconds, in which nothing else falls due for the name.
        """
        self._clock = clock
        self._failed = failed
        self._due: dict[str, float] = {}  # monotonic
        self._heap: list[tuple[float, str]] = []  # with entries that are not true any more
        self._working: dict[str, asyncio.Task[None]] = {}
        self._backoffs: dict[str, Backoff] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._due)

    def add(self, name: str, after: float = 0.0) -> None:
        """Have a name looked at after so many seconds, or earlier if it is due earlier already."""
        due = self._clock.monotonic() + after
        if due < self._due.get(name, float("inf")):
            self._due[name] = due
            heapq.heappush(self._heap, (due, name))
            self._wake.set()

    def forget(self, name: str) -> None:
        """Have a name not looked at any more."""
        self._due.pop(name, None)
        self._backoffs.pop(name, None)

    async def run(self, stop: Stop, handle: Handle, workers: Callable[[], int]) -> None:
        """Look at what is due, at so many at once, until stop; then those looks are cancelled."""
        try:
            while not stop.is_set():
                self._wake.clear()
                self._begin(handle, workers())
                await stop.sleep(self._rest(workers()), wake=self._wake)
        finally:
            tasks = list(self._working.values())
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            self._working.clear()

    def _begin(self, handle: Handle, workers: int) -> None:
        now, busy = self._clock.monotonic(), []
        while self._heap and self._heap[0][0] <= now and len(self._working) < workers:
            due, name = heapq.heappop(self._heap)
            if self._due.get(name) != due:
                continue
            if name in self._working:
                busy.append((due, name))
                continue
            del self._due[name]
            work = self._look(handle, name)
            self._working[name] = asyncio.create_task(work, name=f"migration {name}")
        for entry in busy:
            heapq.heappush(self._heap, entry)

    def _rest(self, workers: int) -> float:
        """Seconds until something is due; the end of a look wakes us as well."""
        if not self._heap or len(self._working) >= workers:
            return 3600.0
        due, name = self._heap[0]
        return 3600.0 if name in self._working else max(due - self._clock.monotonic(), 1e-6)

    async def _look(self, handle: Handle, name: str) -> None:
        try:
            after = await handle(name)
        except Exception as err:
            self._due.pop(name, None)  # what was written before it failed is no news
            backoff = self._backoffs.setdefault(name, Backoff(FIRST_PAUSE, LONGEST_PAUSE))
            after = max(backoff.next(), getattr(err, "retry_after", None) or 0.0)
            after = min(after, self._failed(name, err))
        else:
            self._backoffs.pop(name, None)
        finally:
            self._working.pop(name, None)
            self._wake.set()
        if after is not None:
            self.add(name, after)
