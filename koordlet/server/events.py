"""/events: the audit log, page by page, as Koordinator serves it."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from koord.component.http.negotiation import accepts_json
from koord.component.http.refusal import Refusal
from koord.component.http.responses import json_body, json_bytes, text_response
from koordlet.executor.audit.pages import AuditPage, AuditPages, UnknownToken

PAGE_SIZE = 256  # events, when the client does not say


@dataclass(frozen=True, kw_only=True, slots=True)
class EventSources:
    """The sources of /events: served says whether it is there at all, recorded whether events are.

    flush has readers see what was noted before. most is the largest page a client may ask for.
    """

    pages: AuditPages
    flush: Callable[[], Awaitable[None]]
    served: Callable[[], bool]
    recorded: Callable[[], bool]
    most: int


def events_handler(sources: EventSources) -> Callable[[web.Request], Awaitable[web.Response]]:
    """The handler of GET /events."""

    async def events(request: web.Request) -> web.Response:
        if not sources.served():
            raise Refusal(404, "/events is there with --feature-gates=AuditEventsHTTPHandler=true")
        size = _size(request.query.get("size", ""), sources.most)
        if not sources.recorded():
            return text_response("")
        await sources.flush()
        try:
            page = await sources.pages.page(request.query.get("pageToken", ""), size)
        except UnknownToken as err:
            raise Refusal(409, str(err)) from err
        if accepts_json(",".join(request.headers.getall("Accept", ()))):
            return json_body(await asyncio.to_thread(_as_json, page))
        text = await asyncio.to_thread(_as_text, page)
        return text_response(
            text, headers={"Next-Page-Token": page.next_token} if page.next_token else None
        )

    return events


def _size(text: str, most: int) -> int:
    try:
        size = int(text)
    except ValueError:
        return min(PAGE_SIZE, most)
    if size > most:
        raise Refusal(400, f"size({size}) exceeds the limit({most})")
    if size < 1:
        raise Refusal(400, f"size({size}) must be at least 1")
    return size


def _as_json(page: AuditPage) -> bytes:
    return json_bytes({"NextPageToken": page.next_token, "Events": page.events})


def _as_text(page: AuditPage) -> str:
    return "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in page.events)
