"""Responses: text, JSON, errors with a status, and the middleware that limits requests."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web
from aiohttp.typedefs import Middleware

from koord.util.clock import Clock
from koord.util.errors import KoordError, Unavailable
from koord.util.logs import LimitedLog, get_logger


class HttpError(KoordError):
    """Answers a request with a status and one sentence, in place of what was asked for."""

    def __init__(
        self, status: int, message: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def text_response(
    text: str, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    return web.Response(text=text, status=status, headers={**_HEADERS, **(headers or {})})


def json_body(body: bytes, *, status: int = 200) -> web.Response:
    return web.Response(
        body=body, content_type="application/json", charset="utf-8", status=status, headers=_HEADERS
    )


def json_bytes(value: object) -> bytes:
    return json.dumps(value, default=str).encode()


log = get_logger("koord.server")

MAX_BODY = 1024  # bytes of a request body; no endpoint wants one
HANDLER_SECONDS = 30.0  # no response takes longer; Prometheus itself gives up after 10 s by default

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
STREAMED = frozenset({"/record", "/page/stream"})  # they last as long as the client wants


def limits(clock: Clock) -> Middleware:
    """Return the middleware that answers in time, and without a traceback when a handler fails."""
    limited = LimitedLog(log, clock)

    @web.middleware
    async def limit(request: web.Request, handler: _Handler) -> web.StreamResponse:
        return await _answer(request, handler, limited)

    return limit


async def _answer(
    request: web.Request, handler: _Handler, limited: LimitedLog
) -> web.StreamResponse:
    try:
        async with asyncio.timeout(None if request.path in STREAMED else HANDLER_SECONDS):
            return await handler(request)
    except web.HTTPException as err:
        err.text = f"{err.status} {err.reason}: {request.path}\n"
        raise  # with its headers, for example Allow
    except TimeoutError:
        limited.warning("request.timeout", path=request.path, limit_s=HANDLER_SECONDS)
        return text_response(f"no answer within {HANDLER_SECONDS:g} s\n", status=503)
    except HttpError as err:
        return text_response(f"{err}\n", status=err.status, headers=err.headers)
    except Unavailable as err:
        return text_response(f"{err}\n", status=503)
    except KoordError as err:
        return text_response(f"{err}\n", status=400)
    except Exception:
        limited.error("request.failed", path=request.path, exc_info=True)
        return text_response("internal error; the log of the daemon says more\n", status=500)
