"""A scripted API server: real HTTP (and TLS) on loopback, objects in memory, faults on demand.

It lists (in pages), watches, creates, patches and deletes objects of any kind, keeps a record of
every request, and does something else whenever a test has scripted it.
"""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support.kube.object_store import (
    Object,
    ObjectStore,
    Refused,
    json_patch,
    merge_patch,
    selector,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A request as it came in."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def verb(self) -> str:
        """The verb as RBAC names it."""
        if self.method == "GET":
            if self.query.get("watch") == "true":
                return "watch"
            return "get" if Place.of(self.path).name else "list"
        return {"POST": "create", "PUT": "update"}.get(self.method, self.method.lower())


@dataclass(frozen=True, slots=True)
class Place:
    """What a path points at."""

    collection: str  # without namespace
    namespace: str
    name: str
    subresource: str

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @classmethod
    def of(cls, path: str) -> "Place":
        parts = path.strip("/").split("/")
        head = 2 if parts[0] == "api" else 3
        rest = parts[head:]
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        plural, name, subresource, *_ = [*rest, "", "", ""]
        return cls("/" + "/".join([*parts[:head], plural]), namespace, name, subresource)


@dataclass
class _Script:
    method: str
    path: str
    handlers: list[Handler]
    watch: bool | None = None

    def fits(self, request: web.Request) -> bool:
        is_watch = request.query.get("watch") == "true"
        return (bool(self.handlers) and self.method in ("*", request.method)
                and request.path.startswith(self.path)
                and self.watch in (None, is_watch))  # fmt: skip


@dataclass
class _Watch:
    wake: asyncio.Event
    bookmarks: int = 0
    ended: bool = False


@dataclass
class ApiServer:
    """One server. token, when set, is the only bearer token that is accepted.

    With a listener, a socket that was bound elsewhere, it listens there.
    """

    tls: ssl.SSLContext | None = None
    token: str = ""
    listener: socket.socket | None = None
    objects: ObjectStore = field(default_factory=ObjectStore)
    requests: list[Recorded] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._scripts: list[_Script] = []
        self._watches: list[_Watch] = []
        self._runner: web.AppRunner | None = None
        self._port = 0
        self.closing = asyncio.Event()
        self.silent = False  # watches stop delivering, without a word

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        """The port that it listens on; 0 before the first start."""
        return self._port

    @property
    def watching(self) -> int:
        """How many watches are open."""
        return len(self._watches)

    async def start(self) -> None:
        """Listen; after a stop on the same port as before."""
        self.closing = asyncio.Event()
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.2)
        await self._runner.setup()
        await self._site(self._runner).start()
        self._port = self._runner.addresses[0][1]

    def _site(self, runner: web.AppRunner) -> web.BaseSite:
        if self.listener is not None:
            return web.SockSite(runner, self.listener, ssl_context=self.tls)
        return web.TCPSite(
            runner, "127.0.0.1", self._port, ssl_context=self.tls, reuse_address=True
        )

    async def stop(self) -> None:
        """Close all connections and do not listen any more. The objects stay."""
        self.closing.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        self._watches.clear()

    def script(
        self, *handlers: Handler, method: str = "*", path: str = "/", watch: bool | None = None
    ) -> None:
        """Let the next fitting requests be answered by these, one each, in order."""
        self._scripts.append(_Script(method, path, list(handlers), watch))

    def unscript(self) -> None:
        """Answer everything as without a script."""
        self._scripts.clear()

    def bookmark(self) -> None:
        """Send a bookmark to all watches."""
        for watch in self._watches:
            watch.bookmarks += 1
            watch.wake.set()

    @property
    def watched(self) -> bool:
        """Whether there is a watch now."""
        return bool(self._watches)

    def end_watches(self) -> None:
        """End all watches, as a server does when their time is over."""
        for watch in self._watches:
            watch.ended = True
            watch.wake.set()

    def asked(self, verb: str, path: str = "") -> list[Recorded]:
        """The requests so far with that verb, below that path."""
        return [entry for entry in self.requests
                if entry.verb == verb and entry.path.startswith(path)]  # fmt: skip

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append(
            Recorded(request.method, request.path, dict(request.query), dict(request.headers), body)
        )
        for script in self._scripts:
            if script.fits(request):
                return await script.handlers.pop(0)(request)
        return await self.answer(request)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer as a server without a script. Is a handler as well."""
        body = await request.read()
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return status(401, "Unauthorized")
        try:
            return await self._answer(request, Place.of(request.path), body)
        except Refused as err:
            return status(err.status, err.reason, err.message)

    async def _answer(self, request: web.Request, place: Place, body: bytes) -> web.StreamResponse:
        match request.method:
            case "GET" if place.name:
                found = self.objects.get(place.collection, place.key)
                return web.json_response(_seen(request, found))
            case "GET" if request.query.get("watch") == "true":
                return await self._watch(request, place)
            case "GET":
                return web.json_response(self._list(request, place))
            case "POST" if place.subresource == "eviction":
                return web.json_response(self._evict(place, json.loads(body)), status=201)
            case "POST" if place.subresource == "binding":
                return web.json_response(self._bind(place, json.loads(body)), status=201)
            case "POST":
                return web.json_response(self._create(place, json.loads(body)), status=201)
            case "PUT":
                return web.json_response(self.objects.replace(place.collection, json.loads(body)))
            case "PATCH":
                patched = self._patch(request, place, json.loads(body))
                return web.json_response(_seen(request, patched))
            case "DELETE":
                options = json.loads(body) if body else {}
                uid = options.get("preconditions", {}).get("uid", "")
                return web.json_response(self.objects.delete(place.collection, place.key, uid))
        return status(405, "MethodNotAllowed")

    def _list(self, request: web.Request, place: Place) -> Object:
        matches = selector(request.query.get("fieldSelector", ""))
        found = [item for item in self.objects.all(place.collection, place.namespace)
                 if matches(item)]  # fmt: skip
        start, version = 0, self.objects.version
        if "continue" in request.query:
            start, version = map(int, request.query["continue"].split("@"))
            if version < self.objects.compacted:
                raise Refused(410, "Expired", "The provided continue parameter is too old")
        elif int(request.query.get("resourceVersion") or 0) > version:
            raise Refused(504, "Timeout", "Too large resource version")
        end = start + int(request.query.get("limit") or len(found) or 1)
        metadata: Object = {"resourceVersion": str(version)}
        if end < len(found):
            metadata |= {"continue": f"{end}@{version}"}
        version_of = place.collection.split("/")[2:-1]
        return {
            "kind": "List",
            "apiVersion": "/".join(version_of),
            "metadata": metadata,
            "items": [_seen(request, item, "List") for item in found[start:end]],
        }

    def _create(self, place: Place, item: Object) -> Object:
        if place.namespace:
            item["metadata"].setdefault("namespace", place.namespace)
        return self.objects.create(place.collection, item)

    def _evict(self, place: Place, eviction: Object) -> Object:
        options = eviction.get("deleteOptions") or {}
        uid = (options.get("preconditions") or {}).get("uid", "")
        self.objects.delete(place.collection, place.key, uid)
        return {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}

    def _bind(self, place: Place, binding: Object) -> Object:
        found = self.objects.get(place.collection, place.key)
        if binding["metadata"].get("uid") not in (None, "", found["metadata"].get("uid")):
            raise Refused(409, "Conflict", "the pod has another uid")
        if found["spec"].get("nodeName"):
            raise Refused(409, "Conflict", f"pod {place.name} is already assigned to a node")
        spec = found["spec"] | {"nodeName": binding["target"]["name"]}
        self.objects.replace(place.collection, found | {"spec": spec})
        return {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}

    def _patch(self, request: web.Request, place: Place, patch: Any) -> Object:
        old = self.objects.get(place.collection, place.key)
        if request.content_type == "application/json-patch+json":
            new = json_patch(old, patch)
        elif request.content_type == "application/merge-patch+json":
            new = merge_patch(old, patch)
        else:
            raise Refused(415, "UnsupportedMediaType", request.content_type)
        if place.subresource == "status" and place.collection == "/api/v1/nodes":
            new = new | {"spec": old.get("spec", {})}  # as Kubernetes, with the metadata
        elif place.subresource == "status":
            new = old | {"status": new.get("status")}
        if request.query.get("dryRun") == "All":
            return new
        return self.objects.replace(place.collection, new)

    async def _watch(self, request: web.Request, place: Place) -> web.StreamResponse:
        since = int(request.query.get("resourceVersion") or self.objects.version)
        if since < self.objects.compacted and since < self.objects.version:
            raise Refused(410, "Expired", f"too old resource version: {since}")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        watch = _Watch(self.objects.subscribe())
        self._watches.append(watch)
        try:
            with contextlib.suppress(ConnectionError):
                await self._deliver(request, response, place, watch, since)
        finally:
            if watch in self._watches:
                self._watches.remove(watch)
        return response

    async def _deliver(
        self, request: web.Request, response: web.StreamResponse, place: Place,
        watch: _Watch, since: int,
    ) -> None:  # fmt: skip
        matches = selector(request.query.get("fieldSelector", ""))
        while not watch.ended and not self.closing.is_set():
            watch.wake.clear()
            if not self.silent:
                for event in [entry for entry in self.objects.history if entry.version > since]:
                    since = event.version
                    namespace = event.object["metadata"].get("namespace", "")
                    if (event.collection == place.collection and matches(event.object)
                            and place.namespace in ("", namespace)):  # fmt: skip
                        await response.write(line(event.type, _seen(request, event.object)))
                while watch.bookmarks:
                    watch.bookmarks -= 1
                    metadata = {"resourceVersion": str(self.objects.version)}
                    await response.write(line("BOOKMARK", {"metadata": metadata}))
            await watch.wake.wait()


def _seen(request: web.Request, item: Object, suffix: str = "") -> Object:
    """What the client wants to see of an object."""
    if f"as=PartialObjectMetadata{suffix};" not in request.headers.get("Accept", ""):
        return item
    kind = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    return {**kind, "metadata": item["metadata"]}


def line(kind: str, item: Object) -> bytes:
    """A watch event as it goes over the wire."""
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def status(
    code: int, reason: str, message: str = "", headers: dict[str, str] | None = None,
    details: Object | None = None,
) -> web.Response:  # fmt: skip
    """A refusal as Kubernetes words it."""
    return web.json_response(status_object(code, reason, message, details), status=code,
                             headers=headers)  # fmt: skip


def status_object(
    code: int, reason: str, message: str = "", details: Object | None = None
) -> Object:
    found: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                     "message": message or reason, "reason": reason, "code": code}  # fmt: skip
    return found | ({"details": details} if details else {})
