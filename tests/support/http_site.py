"""An HTTP server that answers what a test says."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request], Any]


class ScriptedSite:
    """An HTTP server; answer takes a request and returns a body, a status, or JSON."""

    def __init__(self) -> None:
        self.answer: Handler = lambda request: 404
        self.requests: list[web.Request] = []
        self.open = 0  # requests at a time
        self.most_open = 0
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        await request.read()  # kept with the request
        self.requests.append(request)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await asyncio.sleep(0)
            found = self.answer(request)
            if asyncio.iscoroutine(found):
                found = await found
        finally:
            self.open -= 1
        if isinstance(found, int):
            return web.Response(status=found)
        if isinstance(found, bytes):
            return web.Response(body=found)
        return web.Response(body=json.dumps(found).encode(), content_type="application/json")


async def serving() -> AsyncIterator[ScriptedSite]:
    """A server on loopback, on each of its addresses."""
    made = ScriptedSite()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()
