"""Bounds the time that plugins' code may hold the main thread before anything else watches it."""

import signal
import threading
import time
from collections.abc import Iterator
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
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    inside, began = True, time.monotonic()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if inside:
            raise PluginBlocked(
                f"wanted an end within {seconds:g} s, found it at {_line(frame)}; "
                "do what takes long in run, with await or asyncio.to_thread"
            )

    handler = signal.signal(signal.SIGALRM, interrupt)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        try:
            yield
        finally:
            inside = False
    finally:
        if left:  # of a timer that ran before; 0 would switch it off
            left = max(left - (time.monotonic() - began), 0.001)
        signal.setitimer(signal.ITIMER_REAL, left, interval)
        signal.signal(signal.SIGALRM, handler)


def _line(frame: FrameType | None) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "C code"
