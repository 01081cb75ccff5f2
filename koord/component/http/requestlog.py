"""Writes aiohttp's messages about requests as events of our log: few, and without tracebacks."""

import logging

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from koord.util.clock import Clock
from koord.util.logs import LimitedLog, get_logger

LONGEST = 200  # characters of an error that quotes what a client has sent

log = get_logger("koord.server")


def request_logger(clock: Clock) -> logging.Logger:
    """Return a logger for a server of aiohttp."""
    logger = logging.Logger("koord.server.requests", logging.WARNING)
    logger.addHandler(_Events(clock))
    return logger


class _Events(logging.Handler):
    """Separates a malformed request, which any client can send, from an error of ours."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._log = LimitedLog(log, clock)

    def emit(self, record: logging.LogRecord) -> None:
        """Log an event in place of the record."""
        error = record.exc_info[1] if record.exc_info else None
        text = record.getMessage() if error is None else f"{type(error).__name__}: {error}"
        if isinstance(error, HttpProcessingError | web.RequestPayloadError):
            client = str(record.args[0]) if isinstance(record.args, tuple) and record.args else ""
            said = " ".join(text.split())[:LONGEST]
            self._log.warning("request.malformed", client=client, error=said)
        else:
            self._log.error("request.failed", message=record.getMessage(), exc_info=error)
