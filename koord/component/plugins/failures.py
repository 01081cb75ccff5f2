"""Logs what plugins' code raises."""

from types import TracebackType
from typing import TYPE_CHECKING

from koord.util.clock import Clock
from koord.util.errors import KoordError, error_text
from koord.util.logs import LimitedLog

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

MOST_TRACED = 1024  # errors whose tracebacks were logged, that are remembered


class FailureLog:
    """Logs failures of plugins: each event of a plugin once a minute at most, tracebacks once.

    Errors of one type from one line have one traceback. Ours have none: their texts say it all.
    """

    def __init__(self, log: "FilteringBoundLogger", clock: Clock) -> None:
        self.limited = LimitedLog(log, clock)
        """The log itself, for what is no error."""
        self._traced: set[tuple[str, type, str]] = set()

    def failed(self, event: str, plugin: str, error: BaseException, **facts: object) -> str:
        """Log an error that a plugin's code has raised, or returned; return its text."""
        text = error_text(error)
        if self.limited.wants(event, plugin):
            trace = {"exc_info": error} if self._is_new(plugin, error) else {}
            self.limited.error(event, of=plugin, plugin=plugin, **facts, error=text, **trace)
        return text

    def _is_new(self, plugin: str, error: BaseException) -> bool:
        if isinstance(error, KoordError) or error.__traceback__ is None:
            return False
        kind = (plugin, type(error), _last_line(error.__traceback__))
        if kind in self._traced:
            return False
        if len(self._traced) >= MOST_TRACED:
            self._traced.clear()
        self._traced.add(kind)
        return True


def _last_line(traceback: TracebackType) -> str:
    """File and line at which an error was raised."""
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
