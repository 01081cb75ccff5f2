"""Kubernetes requests: objects in, objects out."""

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from koord.kube.answers import (
    ListPage,
    Object,
    ObjectList,
    check_object,
    read_object,
    read_page,
)
from koord.kube.errors import AnswerTooLarge, ServerError, TooManyRequests
from koord.kube.transport import METADATA, WHOLE, Call, Transport
from koord.kube.watch import WatchEvent, WatchLimits, WatchLines, watch, watch_lines
from koord.util.clock import Clock

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
PAGE_SIZE = 100  # objects; a page of pods is about a megabyte
_SMALLER = 4  # times; what a page is made smaller by where it is too large
# Not ASCII only: names in other scripts would be three times as long.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
ATTEMPTS = 4  # of a request that the server asks to repeat later
PATIENCE = 30.0  # seconds; when the server asks to wait longer, the caller decides


def encode_json(body: object) -> bytes:
    """Return the body of a request. Raises TypeError or ValueError for what JSON cannot say."""
    return _ENCODER.encode(body).encode()


class Paged(Protocol):
    """A page of a list, however it was read. continue_ asks for the next one; "" in the last."""

    @property
    def continue_(self) -> str: ...


P = TypeVar("P", bound=Paged)


class ApiClient:
    """The verbs of the Kubernetes API. Paths are absolute; see koord.kube.resource.

    A request that the server asks to repeat (429 or 5xx with Retry-After) is repeated a few times
    after that pause; attempts=1 leaves that to the caller. Every call raises ApiError when the
    server refuses, Unreachable when there is no answer, BadAnswer when it is not understood.
    """

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        *,
        draw: Callable[[], float] = random.random,
        encode: Callable[[object], bytes] = encode_json,
    ) -> None:
        """draw returns a number from 0 to 1. encode makes bodies of requests, as encode_json."""
        self._transport = transport
        self._clock = clock
        self._draw = draw
        self._encode = encode

    async def get(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        accept: str = WHOLE,
        attempts: int = ATTEMPTS,
    ) -> Object:
        """Return an object or a list, or its metadata if no more is accepted."""
        return await self._ask(Call("GET", path, query or {}, accept=accept), attempts=attempts)

    async def pages(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        size: int = PAGE_SIZE,
        accept: str = WHOLE,
    ) -> AsyncIterator[ListPage]:
        """Yield a list page by page.

        Raises:
            Gone: the list has taken so long that the server has forgotten it; begin again.
        """

        async def read(data: bytes) -> ListPage:
            return read_page(await read_object(data, f"GET {path}"), path)

        async for page in self.pages_read(path, read, query, size=size, accept=accept):
            yield page

    async def pages_read(
        self,
        path: str,
        read: Callable[[bytes], Awaitable[P]],
        query: Mapping[str, str] | None = None,
        *,
        size: int = PAGE_SIZE,
        accept: str = WHOLE,
    ) -> AsyncIterator[P]:
        """Yield a list page by page, each as read makes it of the bytes. Raises what pages does.

        Where a page is too large, because some of its objects are, smaller ones are asked for.
        """
        asked, whole = dict(query or {}), size
        while True:
            asked["limit"] = str(size)
            call = Call("GET", path, asked, accept=accept)
            try:
                data = await self._patiently(call, ATTEMPTS)
            except AnswerTooLarge:
                if size == 1:
                    raise
                size = max(size // _SMALLER, 1)
                continue
            page = await read(data)
            size = min(size * _SMALLER, whole)
            yield page
            if not page.continue_:
                return
            # The token says of which state the list is; to ask for one as well is an error.
            asked["continue"] = page.continue_
            asked.pop("resourceVersion", None)
            asked.pop("resourceVersionMatch", None)

    async def list(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        page_size: int = PAGE_SIZE,
        accept: str = WHOLE,
    ) -> ObjectList:
        """Return a whole list, fetched in pages. Raises what pages does."""
        items: list[Object] = []
        version = ""
        async for page in self.pages(path, query, size=page_size, accept=accept):
            items += page.items
            version = page.resource_version
        return ObjectList(items, version)

    def watch(
        self, path: str, query: Mapping[str, str], limits: WatchLimits, *, accept: str = WHOLE
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """Hand out the changes of a collection as they happen; see koord.kube.watch.watch."""
        return watch(self._transport, path, query, limits, accept=accept)

    def watch_lines(
        self, path: str, query: Mapping[str, str], limits: WatchLimits
    ) -> AbstractAsyncContextManager[WatchLines]:
        """As watch, with the events as bytes; see koord.kube.watch.watch_lines."""
        return watch_lines(self._transport, path, query, limits)

    async def create(
        self,
        path: str,
        body: Object,
        *,
        field_manager: str = "",
        attempts: int = ATTEMPTS,
        dry_run: bool = False,
    ) -> Object:
        """Create an object in a collection and return it as stored.

        field_manager is the name in its managedFields; "" means our user agent. With dry_run the
        server decides as always and stores nothing.
        """
        call = self._call("POST", path, body, field_manager=field_manager)
        if dry_run:
            call = call._replace(query={**call.query, "dryRun": "All"})
        return await self._ask(call, attempts=attempts)

    async def replace(self, path: str, body: Object, *, attempts: int = ATTEMPTS) -> Object:
        """Replace a whole object with this one and return it as stored.

        Raises:
            Conflict: the object has changed since the version that body was made from.
        """
        return await self._ask(self._call("PUT", path, body), attempts=attempts)

    async def post(self, path: str, body: Object) -> Object:
        """Post to a subresource such as eviction or token, once, and return the answer.

        Never repeated: a 429 of an eviction is the answer of a PodDisruptionBudget.
        """
        return await self._ask(self._call("POST", path, body), attempts=1)

    async def submit(self, path: str, body: Object, *, attempts: int = ATTEMPTS) -> None:
        """Post an object, and do not read what the server answers beside that it has taken it.

        To read it costs more than to send it. client-go does not read it of a binding, either.
        """
        call = self._call("POST", path, body)
        check_object(await self._patiently(call, attempts), call.where)

    async def patch(
        self,
        path: str,
        body: object,
        content_type: str,
        *,
        accept: str = WHOLE,
        field_manager: str = "",
        attempts: int = ATTEMPTS,
        dry_run: bool = False,
    ) -> Object:
        """Patch an object and return it as stored, or its metadata if no more is accepted.

        field_manager as for create. With dry_run the server decides as always and stores nothing.
        """
        call = self._call("PATCH", path, body, content_type, accept, field_manager)
        if dry_run:
            call = call._replace(query={**call.query, "dryRun": "All"})
        return await self._ask(call, attempts=attempts)

    async def merge_patch(self, path: str, body: Object) -> Object:
        """Overlay an object with these fields; null removes one."""
        return await self.patch(path, body, MERGE_PATCH)

    async def json_patch(
        self, path: str, operations: Sequence[Mapping[str, Any]], *, field_manager: str = ""
    ) -> Object:
        """Apply operations (RFC 6902) in order, all or none. field_manager as for create.

        Raises:
            PatchRefused: a test did not hold or an operation does not apply.
        """
        return await self.patch(path, operations, JSON_PATCH, field_manager=field_manager)

    async def replace_status(
        self,
        path: str,
        uid: str,
        status: Object,
        *,
        field_manager: str = "",
        attempts: int = ATTEMPTS,
    ) -> Object:
        """Replace the whole status of the object with that uid; return its metadata.

        path ends in /status. A merge patch would leave fields behind that are not in status any
        more. The status does not come back: of many pods it is large. field_manager as for patch.

        Raises:
            NotFound, PatchRefused: it is gone, or another object has its name now.
        """
        operations = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "add", "path": "/status", "value": status},  # also where there is none yet
        ]
        return await self.patch(
            path,
            operations,
            JSON_PATCH,
            accept=METADATA,
            field_manager=field_manager,
            attempts=attempts,
        )

    async def delete(
        self, path: str, *, uid: str = "", options: Mapping[str, object] | None = None
    ) -> None:
        """Delete an object; with a uid only if it is that one. options are DeleteOptions.

        Raises:
            Conflict: it has another uid.
        """
        body = {"kind": "DeleteOptions", "apiVersion": "v1", **(options or {})}
        if uid:
            body["preconditions"] = {"uid": uid}
        bare = not uid and not options
        await self._ask(Call("DELETE", path) if bare else self._call("DELETE", path, body))

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    async def _ask(self, call: Call, *, attempts: int = ATTEMPTS) -> Object:
        data = await self._patiently(call, attempts)
        return await read_object(data, call.where)

    async def _exchange(self, call: Call) -> bytes:
        return await self._transport.exchange(call)

    async def _patiently(self, call: Call, attempts: int) -> bytes:
        while True:
            attempts -= 1
            try:
                return await self._exchange(call)
            except (TooManyRequests, ServerError) as err:
                wanted = err.retry_after
                if wanted is None or wanted > PATIENCE or attempts <= 0:
                    raise
            # Not exactly: all that were sent away together would come back together.
            await self._clock.sleep(wanted + self._draw())

    def _call(
        self,
        method: str,
        path: str,
        body: object,
        content_type: str = "application/json",
        accept: str = WHOLE,
        field_manager: str = "",
    ) -> Call:
        query = {"fieldManager": field_manager} if field_manager else {}
        encoded = self._encode(body)
        return Call(method, path, query, body=encoded, content_type=content_type, accept=accept)
