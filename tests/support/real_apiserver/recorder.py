"""A proxy before a real API server: it records what a daemon asks, and what it is refused."""

import contextlib
from typing import Any

import aiohttp
from aiohttp import web

from koord.kube.credentials import ApiConfig, Credential
from koord.kube.transport import TlsContexts
from tests.support.kube.apiserver import Recorded, status

_ASKED = ("Authorization", "Content-Type", "Accept", "User-Agent")
_ANSWERED = ("Content-Type", "Retry-After", "Warning")


class Recorder:
    """Hands each request on as it is, with the token of whoever sent it."""

    def __init__(self, behind: ApiConfig) -> None:
        self._behind = behind
        self._ssl = TlsContexts(behind).current(Credential())
        self.requests: list[Recorded] = []
        self.refused: list[Recorded] = []  # for lack of a right or by admission
        self.url = ""

    async def __aenter__(self) -> "Recorder":
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0)
        )
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self._runner.cleanup()
        await self._session.close()

    def asked(self, verb: str, path: str = "") -> list[Recorded]:
        """The requests so far with that verb, below that path."""
        return [entry for entry in self.requests
                if entry.verb == verb and entry.path.startswith(path)]  # fmt: skip

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        recorded = Recorded(
            request.method, request.path, dict(request.query), dict(request.headers),
            await request.read(),
        )  # fmt: skip
        try:
            return await self._hand_on(request, recorded)
        except aiohttp.ClientError as err:
            self.requests.append(recorded)
            return status(503, "ServiceUnavailable", str(err))

    async def _hand_on(self, request: web.Request, recorded: Recorded) -> web.StreamResponse:
        """Record the request once it is answered: then what it writes is there for all to see."""
        headers = {name: request.headers[name] for name in _ASKED if name in request.headers}
        async with self._session.request(
            request.method, f"{self._behind.server}{request.path_qs}", data=recorded.body or None,
            headers=headers, ssl=self._ssl,
        ) as answer:  # fmt: skip
            self.requests.append(recorded)
            if answer.status in (401, 403):
                self.refused.append(recorded)
            kept = {name: answer.headers[name] for name in _ANSWERED if name in answer.headers}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                async for piece in answer.content.iter_any():
                    await response.write(piece)
            return response
