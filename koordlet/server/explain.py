"""/explain: what was decided, what is in force because of it, and why."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from koord.component.http.responses import json_body, json_bytes

Explain = Callable[[str], Awaitable[Callable[[], Mapping[str, object]]]]
"""Looks what is known about a pod (namespace/name, name or UID) or a cgroup, or
for "" about all; what it returns makes the answer in a worker thread."""


def explain_handler(explain: Explain) -> Callable[[web.Request], Awaitable[web.Response]]:
    """The handler of GET /explain."""

    async def explained(request: web.Request) -> web.Response:
        answer = await explain(request.query.get("pod", ""))
        return json_body(await asyncio.to_thread(lambda: json_bytes(answer())))

    return explained
