"""Bounds the time that plugins' code may hold the main thread before anything else watches it."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from koord.component.plugins.errors import PluginBlocked

LOADING = 10.0  # seconds; a liveness probe gives a daemon that does not answer about thirty
_TICK = 0.5  # seconds
AGAIN = 1.0  # seconds after which code that caught the interruption is interrupted again


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise PluginBlocked in the code inside once it has held the main thread for so long.

    What waits in Python, or in a system call that signals interrupt, ends; C code that never
    returns, and a loop that catches every exception, do not. On another thread there is no limit.
    SIGALRM's handler and timer are those of before afterwards.
    """
    if not _on_main_thread():
        yield
        return
    inside, began = True, time.monotonic()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if inside:
            raise _blocked(seconds, frame)

    handler = signal.signal(signal.SIGALRM, interrupt)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        try:
            yield
        finally:
            inside = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, _left_since(began, left), interval)
        signal.signal(signal.SIGALRM, handler)


class ManyLimits:
    """A time limit for many short pieces of code in a row, at a microsecond each.

    Inside of the context, which may be entered again there, begin and end take the place of
    time_limit: an alarm that rings all the time looks whether the code has held the thread for too
    long. So code is interrupted up to a quarter later than its time.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._thread = 0  # that entered it, if it is the main thread
        self._tick = _TICK
        self._deadline = math.inf  # monotonic seconds; of the code that runs
        self._seconds = 0.0
        self._began = 0.0  # monotonic seconds, at the first entry
        self._timer = (0.0, 0.0)  # what was left of a timer that ran before, and its interval
        self._handler: Callable[[int, FrameType | None], object] | int | None = None

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1 and _on_main_thread():
            self._thread = threading.get_ident()
            self._began = time.monotonic()
            self._handler = signal.signal(signal.SIGALRM, self._ring)
            self._timer = signal.setitimer(signal.ITIMER_REAL, self._tick, self._tick)

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._thread:
            self._thread = 0
            left, interval = self._timer
            signal.setitimer(signal.ITIMER_REAL, _left_since(self._began, left), interval)
            signal.signal(signal.SIGALRM, self._handler)

    @property
    def active(self) -> bool:
        """Whether begin and end can be used now."""
        return self._thread == threading.get_ident()

    def begin(self, seconds: float) -> None:
        """Code begins that may hold the main thread for so long."""
        if seconds < 4 * self._tick:
            self._tick = seconds / 4
            signal.setitimer(signal.ITIMER_REAL, self._tick, self._tick)
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    def end(self) -> None:
        """It has ended."""
        self._deadline = math.inf

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if time.monotonic() >= self._deadline:
            raise _blocked(self._seconds, frame)


def _left_since(began: float, left: float) -> float:
    """Seconds that are left now of a timer that had so many; 0: none ran."""
    return max(left - (time.monotonic() - began), 0.001) if left else 0.0


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _blocked(seconds: float, frame: FrameType | None) -> PluginBlocked:
    return PluginBlocked(
        f"wanted an end within {seconds:g} s, found it at {_line(frame)}; "
        "do what takes long in run, with await or asyncio.to_thread"
    )


def _line(frame: FrameType | None) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "C code"
