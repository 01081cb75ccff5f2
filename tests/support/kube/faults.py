"""Faults of a server, or of the network before it: handlers for ApiServer.script."""

import asyncio
from typing import Any

from aiohttp import web

from tests.support.kube.apiserver import Handler, status


def refuse(
    code: int, reason: str = "", message: str = "", *, headers: dict[str, str] | None = None,
    details: dict[str, Any] | None = None,
) -> Handler:  # fmt: skip
    """Refuse with a Status."""

    async def handler(_: web.Request) -> web.StreamResponse:
        return status(code, reason, message, headers=headers, details=details)

    return handler


def answer(body: bytes, code: int = 200, headers: dict[str, str] | None = None) -> Handler:
    """Answer with these bytes."""

    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, status=code, headers=headers)

    return handler


async def hang(_: web.Request) -> web.StreamResponse:
    """Say nothing."""
    await asyncio.Event().wait()
    raise AssertionError


def begin(*pieces: bytes, then_hang: bool = False, then_cut: bool = False) -> Handler:
    """Begin to answer with these pieces; then end, hang, or cut the connection."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        if then_hang:
            await asyncio.Event().wait()
        if then_cut:
            assert request.transport is not None
            request.transport.abort()
        return response

    return handler


def endless(piece: bytes) -> Handler:
    """Repeat a piece until the client hangs up."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while request.transport is not None and not request.transport.is_closing():
            await response.write(piece)
            await asyncio.sleep(0)  # over TLS nothing else lets the client have its turn
        return response

    return handler


async def drop(request: web.Request) -> web.StreamResponse:
    """Cut the connection before the response."""
    assert request.transport is not None
    request.transport.abort()
    await asyncio.Event().wait()
    raise AssertionError
