"""A scripted API server in front of the real CRD server, which has no Nodes and no pods."""

import contextlib
import ssl
from pathlib import Path

import aiohttp
from aiohttp import web

from koord.kube.credentials import ApiConfig
from tests.support.kube.apiserver import ApiServer, Recorded, status

_CUSTOM = (".koordinator.sh/", "/topology.node.k8s.io/")
_END_TO_END = ("Content-Type", "Accept", "Retry-After", "User-Agent")


class Front(ApiServer):
    """Answers for core types itself, hands custom resources on, and records every request."""

    def __init__(self, behind: ApiConfig) -> None:
        super().__init__()
        assert isinstance(behind.ca, Path)
        self._behind = behind.server
        self._ssl = ssl.create_default_context(cafile=behind.ca)
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        if self._session is not None:
            await self._session.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if not any(group in request.path for group in _CUSTOM):
            return await super()._handle(request)
        body = await request.read()
        recorded = Recorded(
            request.method, request.path, dict(request.query), dict(request.headers), body
        )
        try:
            return await self._hand_on(request, recorded)
        except aiohttp.ClientError as err:
            self.requests.append(recorded)
            return status(503, "ServiceUnavailable", str(err))

    async def _hand_on(self, request: web.Request, recorded: Recorded) -> web.StreamResponse:
        """Record the request once it is answered: then what it writes is there for all to see."""
        assert self._session is not None
        headers = {name: request.headers[name] for name in _END_TO_END if name in request.headers}
        async with self._session.request(
            request.method, f"{self._behind}{request.path_qs}", data=recorded.body or None,
            headers=headers, ssl=self._ssl,
        ) as answer:  # fmt: skip
            self.requests.append(recorded)
            kept = {name: answer.headers[name] for name in _END_TO_END if name in answer.headers}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                async for piece in answer.content.iter_any():
                    await response.write(piece)
            return response
