"""Responses of the API server: objects, lists and errors."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from koord.kube.errors import ApiError, BadResponse, api_error
from koord.util import documents
from koord.util.errors import InvalidObject

Object = dict[str, Any]
"""A Kubernetes object as plain JSON."""

LARGE = 64 << 10  # bytes of JSON whose decoding is felt on the event loop
MAX_TEXT_BYTES = 500  # bytes of an error in plain text that are read
MAX_RETRY_AFTER = 3600.0  # seconds that a server may ask us to wait


@dataclass(frozen=True, slots=True)
class ObjectList:
    """Objects of one kind, and the resource version from which to watch them."""

    items: list[Object]
    resource_version: str


@dataclass(frozen=True, slots=True)
class ListPage:
    """A part of a list. continue_ asks for the next one; "" in the last."""

    items: list[Object]
    resource_version: str
    continue_: str


async def read_object(data: bytes, where: str) -> Object:
    """Return the JSON object; in a thread if it is large.

    Raises:
        BadResponse: it is not one.
    """
    if len(data) > LARGE:
        return await asyncio.to_thread(decode_object, data, where)
    return decode_object(data, where)


def check_object(data: bytes, where: str) -> None:
    """Raise BadResponse unless it begins and ends as a JSON object; what is inside is not read."""
    text = data.strip()
    if text[:1] != b"{" or text[-1:] != b"}":
        raise BadResponse(where, wanted="a JSON object", found=_short(data))


def decode_object(data: bytes, where: str) -> Object:
    """Return the JSON object; see read_object."""
    if not data.lstrip()[:1] == b"{":
        raise BadResponse(where, wanted="a JSON object", found=_short(data))
    try:
        found = documents.decode(data, where)
    except InvalidObject as err:
        raise BadResponse(where, wanted="a JSON object", found=str(err)) from err
    assert isinstance(found, dict)  # noqa: S101 - it began with a brace
    return found


def read_page(found: Object, where: str) -> ListPage:
    """Return the part of a list that a response holds.

    Items lack apiVersion and kind on the wire; they get those of the list.

    Raises:
        BadResponse: it is not a list of objects.
    """
    meta, items = found.get("metadata"), found.get("items", ())
    if items is None:
        items = ()
    if not isinstance(meta, dict) or not isinstance(items, list | tuple):
        raise BadResponse(where, wanted="a list of objects", found=f"the fields {sorted(found)}")
    kind = str(found.get("kind", "")).removesuffix("List")
    head = {"apiVersion": found.get("apiVersion", ""), "kind": kind}
    return ListPage(
        [_item(item, head, where) for item in items],
        str(meta.get("resourceVersion") or ""),
        str(meta.get("continue") or ""),
    )


def _item(item: object, head: Object, where: str) -> Object:
    if not isinstance(item, dict):
        raise BadResponse(where, wanted="a list of objects", found=f"an item that is {item!r:.80}")
    return head | item


def api_error_of(status: int, headers: Mapping[str, str], body: bytes, *, where: str) -> ApiError:
    """Return the error for a response of status 400 and up."""
    try:
        found = decode_object(body, where)
    except BadResponse:
        found = _plain(headers, body)  # a kubelet, a proxy or a load balancer answered
    return api_error(status, found, where=where, retry_after=_retry_after(headers, found))


def _plain(headers: Mapping[str, str], body: bytes) -> Object:
    """Return the text of a plain error response, as the message of a Status."""
    if not headers.get("Content-Type", "").startswith("text/plain"):
        return {}
    return {"message": " ".join(body[:MAX_TEXT_BYTES].decode(errors="replace").split())}


def _retry_after(headers: Mapping[str, str], body: Object) -> float | None:
    """Seconds to wait: from the header, as number or date, else from the Status."""
    text = headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return min(float(text), MAX_RETRY_AFTER)
    if text:
        return _until(text, headers.get("Date", ""))
    details = body.get("details")
    seconds = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    return (
        min(float(seconds), MAX_RETRY_AFTER) if isinstance(seconds, int) and seconds > 0 else None
    )


def _until(moment: str, now: str) -> float | None:
    """Seconds between two HTTP dates, both by the server's clock: ours may be off."""
    try:
        seconds = (_date(moment) - _date(now)).total_seconds()
    except (ValueError, TypeError):
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)


def _date(text: str) -> datetime:
    return parsedate_to_datetime(text)


def _short(data: bytes) -> str:
    return repr(data[:80].decode(errors="replace")) if data else "nothing"
