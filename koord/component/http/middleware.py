"""Middleware of every request: a time limit, and errors as one readable line."""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from koord.component.http.refusal import Refusal
from koord.component.http.responses import text_response
from koord.util.clock import Clock
from koord.util.errors import KoordError, Unavailable
from koord.util.logs import LimitedLog, get_logger

log = get_logger("koord.server")

MAX_BODY = 1024  # bytes of a request body; no endpoint wants one
HANDLER_SECONDS = 30.0  # no answer takes longer; Prometheus itself gives up after 10 s by default

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
    except Refusal as err:
        return text_response(f"{err}\n", status=err.status, headers=err.headers)
    except Unavailable as err:
        return text_response(f"{err}\n", status=503)
    except KoordError as err:
        return text_response(f"{err}\n", status=400)
    except Exception:
        limited.error("request.failed", path=request.path, exc_info=True)
        return text_response("internal error; the log of the daemon says more\n", status=500)
