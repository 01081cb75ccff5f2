"""Bounds the time that plugins' code may hold the main thread before anything else watches it."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from koord.component.plugins.errors import PluginBlocked

LOADING = 10.0  # seconds; a liveness probe gives a daemon that does not answer about thirty
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
    """A time limit for many short pieces of code in a row, which cost a microsecond or two each.

    Inside of the context, begin and end take the place of time_limit; the signal's handler is set
    once for all of them. It may be entered again inside.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._limited = False  # whether code runs that has a limit
        self._seconds = 0.0
        self._began = 0.0  # monotonic seconds, at the first entry
        self._timer = (0.0, 0.0)  # what was left of a timer that ran before, and its interval
        self._handler: Callable[[int, FrameType | None], object] | int | None = None

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1 and _on_main_thread():
            self._began = time.monotonic()
            self._handler = signal.signal(signal.SIGALRM, self._interrupt)
            self._timer = signal.setitimer(signal.ITIMER_REAL, 0)

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0 and _on_main_thread():
            left, interval = self._timer
            signal.setitimer(signal.ITIMER_REAL, _left_since(self._began, left), interval)
            signal.signal(signal.SIGALRM, self._handler)

    @property
    def active(self) -> bool:
        """Whether begin and end can be used now."""
        return self._depth > 0 and _on_main_thread()

    def begin(self, seconds: float) -> None:
        """Code begins that may hold the main thread for so long."""
        self._seconds = seconds
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
        self._limited = True

    def end(self) -> None:
        """It has ended. The timer goes on, and means nothing until the next code begins."""
        self._limited = False

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._limited:
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
