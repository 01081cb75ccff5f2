"""A queue of names that a controller reconciles, in client-go's words, and its workers."""

import asyncio
import heapq
from collections.abc import Awaitable, Callable

from koord.util.clock import Clock
from koord.util.stop import Stop
from koord.util.timebudget import Backoff

_IDLE = 3600.0  # seconds between looks at a queue with nothing due
_PAUSED = 1.0  # seconds between looks at whether there are workers again
_MAX_STALE = 64  # entries of the heap that are not true any more, beyond as many as there are items

Reconcile = Callable[[str], Awaitable[float | None]]
"""Bring one item in line; returns the seconds until it is due again, None: when it is added."""

Failed = Callable[[str, Exception, float], float]
"""Takes an item, what its reconcile raised and the rate-limited pause; returns the pause."""


class WorkQueue:
    """Items, each with the time from which it is due. Belongs to the event loop.

    An item is in it once, with the earliest time that was asked for, and is processed by one
    worker at a time: what is added meanwhile is due when that is done. Its memory grows with the
    number of different items, not with the number of calls.

    Source: client-go, util/workqueue (delaying and rate limiting queue).
    """

    def __init__(
        self,
        clock: Clock,
        *,
        first_pause: float = 0.1,
        max_pause: float = 30.0,
        jitter: float = 0.1,
        holds_failed: bool = False,
    ) -> None:
        """Pauses after failures of an item: the first and the longest in seconds; they double.

        holds_failed: an item that has failed is not due before its pause is over, whatever is
        added; else an add brings it forward.
        """
        self._clock = clock
        self._first_pause, self._max_pause, self._jitter = first_pause, max_pause, jitter
        self._holds_failed = holds_failed
        self._due: dict[str, float] = {}  # monotonic; of items that wait, also behind themselves
        self._heap: list[tuple[float, str]] = []  # with entries that are not true any more
        self._processing: set[str] = set()
        self._backoffs: dict[str, Backoff] = {}
        self._held: dict[str, float] = {}  # monotonic; of items that have failed
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """How many items wait, due or not."""
        return len(self._due)

    def add(self, item: str) -> None:
        """Make an item due now."""
        self.add_after(item, 0.0)

    def add_after(self, item: str, seconds: float) -> None:
        """Make an item due after so many seconds; an earlier time is kept."""
        due = max(self._clock.monotonic() + seconds, self._held.get(item, 0.0))
        if due < self._due.get(item, float("inf")):
            self._due[item] = due
            if item not in self._processing:
                self._push(due, item)

    def add_rate_limited(self, item: str) -> None:
        """Make an item due after a pause that doubles from call to call, until it is forgotten."""
        self.add_after(item, self._pause(item))

    def forget(self, item: str) -> None:
        """End the pauses of an item: it has succeeded, or is given up."""
        self._backoffs.pop(item, None)
        self._held.pop(item, None)

    def remove(self, item: str) -> None:
        """Remove an item that waits, and forget it."""
        self._due.pop(item, None)
        self.forget(item)

    def get(self) -> str | None:
        """Return the item that is due longest, for a worker that calls done; None: none is due."""
        found = self._first()
        if found is None or found[0] > self._clock.monotonic():
            return None
        _, item = heapq.heappop(self._heap)
        del self._due[item]
        self._processing.add(item)
        return item

    def done(self, item: str) -> None:
        """End the processing of an item; what was added meanwhile falls due."""
        self._processing.discard(item)
        due = self._due.get(item)
        if due is not None:
            self._push(due, item)
        self._wake.set()

    async def run(
        self, stop: Stop, reconcile: Reconcile, workers: Callable[[], int], failed: Failed
    ) -> None:
        """Reconcile what is due until stop; then what is being reconciled is cancelled.

        workers returns how many items may be processed at once; 0 pauses the queue. After a
        failure the item is due again after the pause that failed returns.
        """
        running: set[asyncio.Task[None]] = set()
        try:
            while not stop.is_set():
                self._wake.clear()
                most = workers()
                while len(self._processing) < most and (item := self.get()) is not None:
                    work = self._process(item, reconcile, failed)
                    task = asyncio.create_task(work, name=f"reconcile {item}")
                    running.add(task)
                    task.add_done_callback(running.discard)
                await stop.sleep(self._rest(most), wake=self._wake)
        finally:
            ended = list(running)
            for task in ended:
                task.cancel()
            if ended:
                await asyncio.wait(ended)
            for item in list(self._processing):  # of tasks that had not begun
                self.done(item)

    async def _process(self, item: str, reconcile: Reconcile, failed: Failed) -> None:
        try:
            after = await reconcile(item)
        except Exception as err:
            self._due.pop(item, None)  # what it has written itself before it failed is no news
            after = failed(item, err, self._pause(item))
            if self._holds_failed:
                self._held[item] = self._clock.monotonic() + after
        else:
            self.forget(item)
        finally:
            self.done(item)
        if after is not None:
            self.add_after(item, after)

    def _pause(self, item: str) -> float:
        backoff = self._backoffs.get(item)
        if backoff is None:
            backoff = Backoff(self._first_pause, self._max_pause, jitter=self._jitter)
            self._backoffs[item] = backoff
        return backoff.next()

    def _rest(self, workers: int) -> float:
        """Seconds until something may be done; adds and ends of work wake earlier."""
        if len(self._processing) >= workers:
            return _IDLE if workers > 0 else _PAUSED
        found = self._first()
        return _IDLE if found is None else max(found[0] - self._clock.monotonic(), 1e-6)

    def _first(self) -> tuple[float, str] | None:
        heap = self._heap
        while heap and (self._due.get(heap[0][1]) != heap[0][0] or heap[0][1] in self._processing):
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _push(self, due: float, item: str) -> None:
        heapq.heappush(self._heap, (due, item))
        if len(self._heap) > 2 * len(self._due) + _MAX_STALE:
            waiting = (each for each in self._due.items() if each[0] not in self._processing)
            self._heap = [(when, name) for name, when in waiting]
            heapq.heapify(self._heap)
        self._wake.set()
