"""Pages of the audit log for clients that come back for the next one."""

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from koord.util.clock import Clock
from koord.util.errors import KoordError
from koord.util.stop import Stop
from koordlet.executor.audit.reader import AuditReader

IDLE = 600.0  # seconds without a request after which a reader is closed
LARGEST_PAGE = 100_000  # events that a flag may allow a client to ask for at once
LOOK_INTERVAL = 60.0  # seconds between two looks for such


class UnknownToken(KoordError):
    """The token is of no reader, or of one that was closed."""

    def __init__(self, token: str) -> None:
        super().__init__(f"invalid pageToken {token[:60]}")


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Events, newest first, and the token for the next page; "" when there is none."""

    events: list[dict[str, Any]]
    next_token: str


@dataclass(slots=True)
class _Open:
    reader: AuditReader
    used: float  # monotonic


class AuditPages:
    """Keeps a bounded number of readers, each under a token that is its name, not a secret.

    All methods belong to the event loop; the files are read in worker threads.
    """

    def __init__(self, make_reader: Callable[[], AuditReader], clock: Clock, *, most: int) -> None:
        """most is the number of readers at a time."""
        self._make_reader = make_reader
        self._clock = clock
        self._most = most
        self._open: dict[str, _Open] = {}  # by token; the one unused for longest first

    async def page(self, token: str, size: int) -> AuditPage:
        """Return the next events of the reader of a token, or with "" the newest ones.

        Raises:
            UnknownToken: there is no such reader, any more or at all.
        """
        token, reader = self._find(token) if token else self._begin()
        events = await asyncio.to_thread(reader.page, size)
        if reader.ended:
            self._close(token)
            token = ""
        return AuditPage(events, token)

    async def run(self, stop: Stop) -> None:
        """Close readers that are not used any more, until stop; then all."""
        async for _ in stop.every(LOOK_INTERVAL):
            self._close_idle()
        for token in list(self._open):
            self._close(token)

    def _find(self, token: str) -> tuple[str, AuditReader]:
        self._close_idle()
        found = self._open.pop(token, None)
        if found is None:
            raise UnknownToken(token)
        found.used = self._clock.monotonic()
        self._open[token] = found
        return token, found.reader

    def _begin(self) -> tuple[str, AuditReader]:
        token, reader = str(uuid.uuid4()), self._make_reader()
        self._close_idle()
        self._open[token] = _Open(reader, self._clock.monotonic())
        while len(self._open) > self._most:
            self._close(next(iter(self._open)))
        return token, reader

    def _close_idle(self) -> None:
        since = self._clock.monotonic() - IDLE
        for token in [token for token, each in self._open.items() if each.used < since]:
            self._close(token)

    def _close(self, token: str) -> None:
        closing = self._open.pop(token, None)
        if closing is not None:  # in a thread, as it may be reading
            asyncio.get_running_loop().run_in_executor(None, closing.reader.close)
