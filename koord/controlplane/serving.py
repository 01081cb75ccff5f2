"""HTTP and HTTPS: metrics and health for all, the configuration for clients that may see it."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from aiohttp import web

from koord.component.eventloops import LoopHandle
from koord.component.http.certificate import ServingCertificate
from koord.component.http.endpoints import (
    Handler,
    Parts,
    check_handler,
    guarded,
    health_handler,
    metrics_handler,
)
from koord.component.http.exposition import Exposition
from koord.component.http.guard import Guard
from koord.component.http.responses import MAX_BODY, STREAMED, json_body, json_bytes, limits
from koord.component.http.site import HttpServer
from koord.component.http.sockets import Address
from koord.component.page.sections import PageData, PageSource
from koord.component.page.serving import Page, add_page
from koord.controlplane.settings import TLS_VERSIONS, ControlPlaneFlags
from koord.util.clock import Clock
from koord.util.goformat import is_loopback
from koord.util.health import Health
from koord.util.logs import get_logger

P = ParamSpec("P")
T = TypeVar("T")

HEALTH_TIMEOUT = 0.3  # seconds for the loop of all parts to say how they are
PART = "eventLoop"  # the part of health that says whether that loop turns
_SERVED_LOCALLY = STREAMED | {"/healthz", "/livez", "/readyz"}

log = get_logger("koord.server")


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpSources:
    """The sources of the endpoints that each daemon has."""

    exposition: Exposition
    health: Health
    clock: Clock
    guard: Guard  # decides which clients may read more than health and metrics
    configuration: Callable[[], object]  # the document of the configuration in force, as JSON
    page: Page | None = None  # None: it is switched off
    home: "MainLoop"


def create_app(sources: HttpSources) -> web.Application:
    """Return an application, to which a daemon adds its own endpoints."""
    home = sources.home
    middlewares = [limits(sources.clock), home.middleware]
    app = web.Application(middlewares=middlewares, client_max_size=MAX_BODY)
    get, health, clock = app.router.add_get, sources.health, sources.clock
    get("/metrics", metrics_handler(sources.exposition))
    get("/healthz", health_handler(health, clock, ask=home.health))
    get("/healthz/{check}", check_handler(health))
    get("/livez", health_handler(health, clock, live=True, ask=home.health))
    get("/readyz", health_handler(health, clock, ready=True, ask=home.health))
    get("/configz", guarded(sources.guard, _configz(sources.configuration)))
    if sources.page is not None:
        page = replace(sources.page, source=_OnMainLoop(sources.page.source, home))
        add_page(app, page, clock, guard=_guard_on_main_loop(sources.guard, home))
    return app


class MainLoop:
    """The event loop that all parts of a daemon are on, for listeners that may be on another one.

    Health is answered whatever that loop computes; all else is answered there.
    """

    def __init__(self, health: Health) -> None:
        self._health = health
        self._loop: LoopHandle | None = None  # None: listeners are on the same one
        self._known: dict[tuple[bool, bool], Parts] = {}

    @property
    def loop(self) -> LoopHandle | None:
        """The main loop; None: the listeners run on it themselves."""
        return self._loop

    def leave(self, loop: LoopHandle) -> None:
        """Listeners are on another loop from now on."""
        self._loop = loop
        self._health.register(PART, loop.health, live=True)

    async def call(self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Await what a function returns on that loop."""
        if self._loop is None:
            return await work(*args, **kwargs)
        return await self._loop.call(work, *args, **kwargs)

    async def health(self, *, live: bool, ready: bool) -> Parts:
        """The parts as they are, or, while that loop computes, as they were last."""
        key = live, ready
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT):
                self._known[key] = await self.call(self._parts, live=live, ready=ready)
        except TimeoutError:
            assert self._loop is not None  # noqa: S101 - the same loop would have answered
            known = self._known.get(key)
            parts = self._health.parts(live=live, ready=ready) if known is None else known
            return parts if ready else {**parts, PART: self._loop.health()}
        return self._known[key]

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Run handlers on the main loop, except those of streamed responses and of health."""
        if self._loop is None or request.path in _SERVED_LOCALLY:
            return await handler(request)
        await request.read()
        return await self._loop.call(handler, request)

    async def _parts(self, *, live: bool, ready: bool) -> Parts:
        return self._health.parts(live=live, ready=ready)


def _guard_on_main_loop(guard: Guard, home: MainLoop) -> Guard:
    async def check(request: web.Request) -> None:
        await home.call(guard, request)

    return check


class _OnMainLoop:
    """A page's source that is asked on its own loop."""

    def __init__(self, source: PageSource, home: MainLoop) -> None:
        self._source = source
        self._home = home
        self.title, self.view = source.title, source.view

    async def snapshot(self) -> PageData:
        return await self._home.call(self._source.snapshot)

    async def changes(self, since: float) -> PageData:
        return await self._home.call(self._source.changes, since)

    async def detail(self, kind: str, name: str) -> Mapping[str, Any] | None:
        return await self._home.call(self._source.detail, kind, name)


class Servers:
    """The listeners that flags and configuration ask for, each with an application of its own."""

    def __init__(
        self,
        plain: Iterable[str],
        options: ControlPlaneFlags,
        sources: HttpSources,
        create: Callable[[], web.Application],
    ) -> None:
        """Read the certificate. plain are the addresses of plain HTTP, HOST:PORT.

        Raises:
            CertificateError: it cannot be used.
        """
        self._sources = sources
        self._create = create
        self._servers: list[tuple[HttpServer, Address, bool]] = []
        prefix = sources.exposition.rules.prefix
        for number, text in enumerate(dict.fromkeys(plain)):
            self._add(Address.parse(text), None, f"{prefix}_plain{number or ''}")
        self.certificate = _certificate(options)
        secure = Address(options.bind_address.value, options.secure_port.value)
        if self.certificate is not None:
            self._add(secure, self.certificate.context, f"{prefix}_secure")
        elif secure.port and options.secure_port.is_set:
            note = "give --tls-cert-file and --tls-private-key-file to serve HTTPS"
            log.warning("https.disabled", port=secure.port, note=note)

    async def start(self) -> None:
        """Listen.

        Raises:
            ListenError: an address cannot be listened on.
        """
        for server, address, tls in self._servers:
            await server.start()
            listening = Address(address.host, server.port)
            log.info("server.listening", address=str(listening), tls=tls)
            if not tls and not is_loopback(address.host):
                log.warning("server.unencrypted", address=str(listening), note=_PLAIN)

    async def stop(self) -> None:
        """Close all."""
        for server, _, _ in self._servers:
            await server.stop()

    def _add(self, address: Address, tls: ssl.SSLContext | None, prefix: str) -> None:
        """Serve on an address, unless its port is 0."""
        if address.port:
            server = HttpServer(
                self._create(),
                address,
                tls,
                clock=self._sources.clock,
                registry=self._sources.exposition.internal,
                prefix=prefix,
            )
            self._servers.append((server, address, tls is not None))


_PLAIN = (
    "as it was asked for: all can read /metrics and /healthz here, without encryption; the other "
    "paths need a token"
)


def _certificate(options: ControlPlaneFlags) -> ServingCertificate | None:
    certificate, key = options.tls_cert_file.value, options.tls_private_key_file.value
    if not certificate or not options.secure_port.value:
        return None
    found = ServingCertificate(Path(certificate), Path(key))
    found.context.minimum_version = oldest_tls(options)
    return found


def oldest_tls(options: ControlPlaneFlags) -> ssl.TLSVersion:
    """The oldest version of TLS that any server of the daemon takes."""
    newest = options.tls_min_version.value == TLS_VERSIONS[1]
    return ssl.TLSVersion.TLSv1_3 if newest else ssl.TLSVersion.TLSv1_2


def _configz(configuration: Callable[[], object]) -> Handler:
    async def configz(_: web.Request) -> web.Response:
        return json_body(json_bytes({"componentconfig": configuration()}))

    return configz
