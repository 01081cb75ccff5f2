"""The guard of a server whose clients bring one token, which stands in a file."""

import asyncio
import hmac
from pathlib import Path

from aiohttp import web

from koord.component.http.refusal import Refusal
from koord.component.http.tokenguard import bearer_token
from koord.util.errors import KoordError
from koord.util.filewatch import FileReadError, FileWatch
from koord.util.health import OK, PartHealth, Status
from koord.util.logs import get_logger
from koord.util.stop import Stop

INTERVAL = 10.0  # seconds between two looks at the file
SHORTEST, LONGEST = 16, 4096  # bytes of a token

log = get_logger("koord.server")


class TokenFileError(KoordError):
    """The file has no token. The daemon does not start without it."""


class TokenFile:
    """Lets clients in that send the token as `Authorization: Bearer`; follows the file.

    While the file cannot be used the last token counts.
    """

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            TokenFileError: there is no token in it; the message says why.
        """
        self._file = FileWatch(path)
        self._file.changed()
        self._token = self._read()
        self._problem = ""

    async def __call__(self, request: web.Request) -> None:
        """As Guard."""
        token = bearer_token(request.headers.getall("Authorization", ()))
        if token is None or not hmac.compare_digest(token.encode(), self._token):
            raise Refusal(
                401,
                "wanted the bearer token of this server, found none or another",
                headers={"WWW-Authenticate": "Bearer", "Connection": "close"},
            )

    async def run(self, stop: Stop) -> None:
        """Follow the file until stop."""
        async for _ in stop.every(INTERVAL):
            if self._file.changed():
                await self._renew()

    def health(self) -> PartHealth:
        """Degraded while the file cannot be used."""
        return PartHealth(Status.DEGRADED, self._problem) if self._problem else OK

    async def _renew(self) -> None:
        try:
            self._token = await asyncio.to_thread(self._read)
        except TokenFileError as err:
            self._problem = str(err)
            log.warning("token.unusable", error=str(err), note="the last good one counts")
        else:
            self._problem = ""
            log.info("token.renewed", path=str(self._file.path))

    def _read(self) -> bytes:
        try:
            token = self._file.read(LONGEST).strip()
            found = f"{len(token)} bytes"
            if len(token) >= SHORTEST and bearer_token([f"Bearer {token.decode('ascii')}"]):
                return token
        except (FileReadError, UnicodeError) as err:
            found = err.found if isinstance(err, FileReadError) else "other characters"
        raise TokenFileError(
            f"{self._file.path}: wanted a token of {SHORTEST} to {LONGEST} letters, digits and "
            f"-._~+/, found {found}; `openssl rand -hex 32` makes one"
        )
