"""The two kinds of small responses. None of them may be cached."""

import json
from collections.abc import Mapping

from aiohttp import web

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
