"""The client of the Kubernetes API: objects in, objects out; paths, watches, metrics."""

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from prometheus_client import CollectorRegistry, Counter, Summary

from koord.kube.errors import BadResponse, ResponseTooLarge, ServerError, TooManyRequests, api_error
from koord.kube.transport import (
    METADATA,
    WHOLE,
    Call,
    ListPage,
    Object,
    ObjectList,
    Traffic,
    Transport,
    check_object,
    read_object,
    read_page,
)
from koord.util.clock import Clock

BOOKMARK_SILENCE = 150.0  # seconds; servers that send bookmarks do so about once a minute
GRACE = 15.0  # seconds that the server may be late with ending the watch

MAX_LINE = 16 << 20
"""Bytes. etcd stores objects of 1.5 MiB, in which JSON writes one byte as six (\\u003c for <)."""


class WatchEventType(StrEnum):
    """The kind of a watch event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"  # nothing: the object carries only a newer resource version


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change, with the object after it (before it, if deleted)."""

    type: WatchEventType
    object: Object


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """After how many seconds the server is to end the watch, and how long a line may be."""

    seconds: int
    line_bytes: int = MAX_LINE


class WatchLines:
    """The lines of one watch, each a JSON object, handed out in lists of those that have come."""

    def __init__(
        self, pieces: AsyncIterator[bytes], lines: "Lines", silence_timeout: "_SilenceTimeout"
    ) -> None:
        self._pieces = pieces
        self._lines = lines
        self._silence_timeout = silence_timeout

    async def __aiter__(self) -> AsyncIterator[list[bytes]]:
        """Yield until the server ends the watch. Raises what watch_lines does."""
        async for piece in self._pieces:
            if found := self._lines.feed(piece):
                yield found

    def bookmarked(self) -> None:
        """Note that a line was a bookmark: from now on silence means that the connection died."""
        self._silence_timeout.bookmarked()


@asynccontextmanager
async def watch_lines(
    transport: Transport,
    path: str,
    query: Mapping[str, str],
    limits: WatchLimits,
    *,
    accept: str = WHOLE,
) -> AsyncIterator[WatchLines]:
    """Hand out the lines until the server ends the watch. Entered once the server has agreed.

    A connection that has died without a word is noticed: once a bookmark has come, silence of
    BOOKMARK_SILENCE is too long, and in any case silence beyond the end of the watch.

    Raises, on entry or from the lines:
        Gone: the resource version is too old, as the status of the response.
        ApiError: the server rejected the request.
        Unreachable: the connection broke or fell silent.
        BadResponse: a line is too long.
    """
    asked = {
        **query,
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(limits.seconds),
    }
    silence_timeout = _SilenceTimeout(limits.seconds + GRACE)
    call = Call("GET", path, asked, accept=accept)
    async with transport.stream(call, silence_timeout.left) as pieces:
        yield WatchLines(pieces, Lines(limits.line_bytes, f"watch of {path}"), silence_timeout)


@asynccontextmanager
async def watch(
    transport: Transport,
    path: str,
    query: Mapping[str, str],
    limits: WatchLimits,
    *,
    accept: str = WHOLE,
) -> AsyncIterator[AsyncIterator[WatchEvent]]:
    """Hand out the events until the server ends the watch. Entered once the server has agreed.

    Raises, on entry or from the events, what watch_lines does, and:
        Gone, ApiError: the server ended the watch with an error.
        BadResponse: a line is no event.
    """
    async with watch_lines(transport, path, query, limits, accept=accept) as lines:
        yield _events(lines, f"watch of {path}")


class _SilenceTimeout:
    """The longest silence of the server that is accepted."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def left(self) -> float:
        return self._seconds

    def bookmarked(self) -> None:
        self._seconds = min(self._seconds, BOOKMARK_SILENCE)


async def _events(lines: WatchLines, where: str) -> AsyncIterator[WatchEvent]:
    async for batch in lines:
        for line in batch:
            event = _event(await read_object(line, where), where)
            if event.type is WatchEventType.BOOKMARK:
                lines.bookmarked()
            yield event


class Lines:
    """Cuts a stream of bytes into lines. What follows the last line break is never handed out."""

    def __init__(self, max_bytes: int, where: str) -> None:
        self._max_bytes = max_bytes
        self._where = where
        self._rest = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the lines that are complete now, without empty ones.

        Raises:
            BadResponse: a line is longer than max_bytes.
        """
        lines = piece.split(b"\n")
        rest = lines.pop()
        if lines and self._rest:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        if len(self._rest) > self._max_bytes:
            found = "a longer line"
            raise BadResponse(self._where, wanted=f"at most {self._max_bytes} bytes", found=found)
        return [line for line in lines if line.strip()]


def _event(found: Object, where: str) -> WatchEvent:
    kind, obj = found.get("type"), found.get("object")
    if not isinstance(obj, dict):
        raise BadResponse(where, wanted="an event with an object", found=f"{found!r:.80}")
    if kind == "ERROR":
        code = obj.get("code")
        raise api_error(code if isinstance(code, int) else 500, obj, where=where)
    try:
        return WatchEvent(WatchEventType(str(kind)), obj)
    except ValueError as err:
        raise BadResponse(where, wanted="an event", found=f"the type {kind!r:.80}") from err


MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
PAGE_SIZE = 100  # objects; a page of pods is about a megabyte
_SMALLER = 4  # times; what a page is made smaller by where it is too large
# Not ASCII only: names in other scripts would be three times as long.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
ATTEMPTS = 4  # of a request that the server asks to repeat later
MAX_RETRY_AFTER = 30.0  # seconds; when the server asks to wait longer, the caller decides


def encode_json(body: object) -> bytes:
    """Return the body of a request. Raises TypeError or ValueError for what JSON cannot say."""
    return _ENCODER.encode(body).encode()


class Paged(Protocol):
    """A page of a list, however it was read. continue_ asks for the next one; "" in the last."""

    @property
    def continue_(self) -> str: ...


P = TypeVar("P", bound=Paged)


class ApiClient:
    """The verbs of the Kubernetes API. Paths are absolute; see koord.kube.client.

    A request that the server asks to repeat (429 or 5xx with Retry-After) is repeated a few times
    after that pause; attempts=1 leaves that to the caller. Every call raises ApiError when the
    server rejects it, Unreachable when there is no response, BadResponse when it is not understood.
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
            except ResponseTooLarge:
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
        """Hand out the changes of a collection as they happen; see koord.kube.client.watch."""
        return watch(self._transport, path, query, limits, accept=accept)

    def watch_lines(
        self, path: str, query: Mapping[str, str], limits: WatchLimits
    ) -> AbstractAsyncContextManager[WatchLines]:
        """Watch a path, with the events as bytes; see koord.kube.client.watch_lines."""
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
        """Post to a subresource such as eviction or token, once, and return the response.

        Never repeated: a 429 of an eviction is the response of a PodDisruptionBudget.
        """
        return await self._ask(self._call("POST", path, body), attempts=1)

    async def submit(self, path: str, body: Object, *, attempts: int = ATTEMPTS) -> None:
        """Post an object; the object in the response is not parsed.

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
            PatchRejected: a test did not hold or an operation does not apply.
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
            NotFound, PatchRejected: it is gone, or another object has its name now.
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
                if wanted is None or wanted > MAX_RETRY_AFTER or attempts <= 0:
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


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object, for example Resource("slo.koordinator.sh/v1alpha1", "nodemetrics")."""

    api_version: str
    plural: str

    def collection(self, namespace: str = "") -> str:
        """The path of all objects: of one namespace, of all, or of a kind that has none."""
        root = "/apis" if "/" in self.api_version else "/api"
        scope = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        return f"{root}/{self.api_version}{scope}/{self.plural}"

    def object(self, name: str, *, namespace: str = "", subresource: str = "") -> str:
        """The path of one object, or of a part of it such as status or eviction."""
        path = f"{self.collection(namespace)}/{quote(name, safe='')}"
        return f"{path}/{subresource}" if subresource else path


@dataclass(frozen=True, slots=True)
class OneObject(Resource):
    """A kind of which one object is followed, as if there were no other."""

    namespace: str = ""
    name: str = ""

    def collection(self, namespace: str = "") -> str:
        """The path of all objects of its namespace."""
        return Resource.collection(self, namespace or self.namespace)

    @property
    def query(self) -> Mapping[str, str]:
        """The query by which a list has no other object."""
        return {"fieldSelector": field_selector({"metadata.name": self.name})}


CONFIG_MAPS = Resource("v1", "configmaps")
EVENTS = Resource("v1", "events")
NODES = Resource("v1", "nodes")
PODS = Resource("v1", "pods")
PERSISTENT_CLAIMS = Resource("v1", "persistentvolumeclaims")
PERSISTENT_VOLUMES = Resource("v1", "persistentvolumes")
LEASES = Resource("coordination.k8s.io/v1", "leases")
TOKEN_REVIEWS = Resource("authentication.k8s.io/v1", "tokenreviews")
ACCESS_REVIEWS = Resource("authorization.k8s.io/v1", "subjectaccessreviews")
NODE_METRICS = Resource("slo.koordinator.sh/v1alpha1", "nodemetrics")
NODE_SLOS = Resource("slo.koordinator.sh/v1alpha1", "nodeslos")
NODE_TOPOLOGIES = Resource("topology.node.k8s.io/v1alpha1", "noderesourcetopologies")
DEVICES = Resource("scheduling.koordinator.sh/v1alpha1", "devices")


def field_selector(fields: Mapping[str, str]) -> str:
    """The text of a field selector, for example of {"spec.nodeName": "worker-1"}."""
    return ",".join(f"{name}={_escaped(value)}" for name, value in fields.items())


def _escaped(value: str) -> str:
    for letter in "\\,=":
        value = value.replace(letter, f"\\{letter}")
    return value


class KubeMetrics:
    """Number, duration and size of requests to the API server. Give observe to Transport."""

    def __init__(self, registry: CollectorRegistry, prefix: str) -> None:
        self.requests = Counter(
            f"{prefix}_kube_requests_total",
            "Requests to the API server by verb and status code; code 0 means no answer.",
            ["verb", "code"],
            registry=registry,
        )
        self.seconds = Summary(
            f"{prefix}_kube_request_seconds",
            "Time from a request until its answer began.",
            ["verb"],
            registry=registry,
        )
        self.sent = Counter(
            f"{prefix}_kube_sent_bytes_total",
            "Bytes of request bodies sent to the API server.",
            registry=registry,
        )
        self.received = Counter(
            f"{prefix}_kube_received_bytes_total",
            "Bytes of answers received from the API server. Those of a watch count when it ends.",
            registry=registry,
        )

        self._series: dict[tuple[str, int], tuple[Counter, Summary | None]] = {}

    def observe(self, traffic: Traffic) -> None:
        """Count one attempt that is over."""
        call = traffic.call
        verb = "WATCH" if call.query.get("watch") == "true" else call.method
        count, seconds = self._of(verb, traffic.status)
        count.inc()
        if seconds is not None:
            seconds.observe(traffic.seconds)
        self.sent.inc(len(call.body or b""))
        self.received.inc(traffic.received)

    def _of(self, verb: str, status: int) -> tuple[Counter, Summary | None]:
        """The series of a verb and code; no duration where no response arrived.

        To look them up by their labels would cost more than to count.
        """
        found = self._series.get((verb, status))
        if found is None:
            seconds = self.seconds.labels(verb) if status else None
            found = self.requests.labels(verb, str(status)), seconds
            self._series[verb, status] = found
        return found


class EventMetrics:
    """Outcomes of Kubernetes events. Give count to EventRecorder."""

    def __init__(self, registry: CollectorRegistry, prefix: str) -> None:
        self.events = Counter(
            f"{prefix}_kube_events_total",
            "Kubernetes events by outcome: created, updated, refused, overflow, expired or "
            "withheld (beside another agent).",
            ["outcome"],
            registry=registry,
        )
        for outcome in ("created", "updated", "refused", "overflow", "expired", "withheld"):
            self.events.labels(outcome)

    def count(self, outcome: str) -> None:
        """Count one write, or one event that was given up."""
        self.events.labels(outcome).inc()
