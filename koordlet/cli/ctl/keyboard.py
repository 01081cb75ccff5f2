"""Single keys and signals from a terminal, as events to wait for."""

import os
import select
import signal
import termios
import tty
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

QUIT, SUSPEND, REDRAW = "q", "\x1a", ""  # SUSPEND is ^Z
UP, DOWN, ENTER, BACK = "up", "down", "enter", "back"  # BACK is the escape key

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_NAMED = {
    **dict.fromkeys(("\x03", "\x04", "\x1c"), QUIT),  # ^C, ^D, ^\: nothing is cut short by them
    **dict.fromkeys(("\r", "\n"), ENTER),
}
_ESCAPE = b"\x1b"  # begins what arrows and function keys send
_SEQUENCES = {b"\x1b[A": UP, b"\x1bOA": UP, b"\x1b[B": DOWN, b"\x1bOB": DOWN, _ESCAPE: BACK}


class Keyboard:
    """The user's keys, one by one. Made by `keyboard`."""

    def __init__(self, terminal: int, signals: int) -> None:
        self._terminal = terminal
        self._signals = signals
        self._typed: deque[str] = deque()

    def wait(self, seconds: float) -> str | None:
        """Return the next key in lower case or one of the names above; None when time is up."""
        if not self._typed:
            ready, _, _ = select.select([self._signals, self._terminal], [], [], max(seconds, 0))
            if not ready:
                return None
            self._typed.extend(self._arrived() if self._signals in ready else self._keys())
        return self._typed.popleft()

    def _arrived(self) -> list[str]:
        numbers = os.read(self._signals, 64)
        return [QUIT if any(number in numbers for number in _ENDING) else REDRAW]

    def _keys(self) -> list[str]:
        try:
            typed = os.read(self._terminal, 64)
        except OSError:
            typed = b""
        if not typed:
            return [QUIT]  # the terminal is gone
        if typed.startswith(_ESCAPE):
            return [_SEQUENCES.get(typed, REDRAW)]
        return [_NAMED.get(key, key) for key in typed.decode("ascii", "replace").lower()]


@contextmanager
def keyboard(terminal: int) -> Iterator[Keyboard]:
    """Take the keys of a terminal one by one and unseen; it is as before afterwards."""
    before = termios.tcgetattr(terminal)
    with _signals() as signals:
        tty.setcbreak(terminal, termios.TCSADRAIN)
        mode = termios.tcgetattr(terminal)
        mode[3] &= ~(termios.ISIG | termios.IEXTEN)
        termios.tcsetattr(terminal, termios.TCSADRAIN, mode)
        try:
            yield Keyboard(terminal, signals)
        finally:
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)


@contextmanager
def _signals() -> Iterator[int]:
    """Let ending signals and resizes wake a select instead; yields the descriptor they come by."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = {number: signal.signal(number, _ignore) for number in (*_ENDING, signal.SIGWINCH)}
    try:
        yield reader
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(reader)
        os.close(writer)


def _ignore(_number: int, _frame: object) -> None:
    """A handler must exist for the wakeup descriptor to be written to."""
