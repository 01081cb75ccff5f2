"""HTTP and HTTPS: metrics and health for all, the configuration for clients that may see it."""

import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from koord.component.http.certificate import ServingCertificate
from koord.component.http.endpoints import (
    Handler,
    check_handler,
    guarded,
    health_handler,
    metrics_handler,
)
from koord.component.http.exposition import Exposition
from koord.component.http.guard import Guard
from koord.component.http.middleware import MAX_BODY, limits
from koord.component.http.responses import json_body, json_bytes
from koord.component.http.site import HttpServer
from koord.component.http.sockets import Address
from koord.component.page.serving import Page, add_page
from koord.controlplane.flags import TLS_VERSIONS, ControlPlaneFlags
from koord.util.address import is_loopback
from koord.util.clock import Clock
from koord.util.health import Health
from koord.util.logs import get_logger

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


def create_app(sources: HttpSources) -> web.Application:
    """Return an application, to which a daemon adds its own endpoints."""
    app = web.Application(middlewares=[limits(sources.clock)], client_max_size=MAX_BODY)
    get, health, clock = app.router.add_get, sources.health, sources.clock
    get("/metrics", metrics_handler(sources.exposition))
    get("/healthz", health_handler(health, clock))
    get("/healthz/{check}", check_handler(health))
    get("/livez", health_handler(health, clock, live=True))
    get("/readyz", health_handler(health, clock, ready=True))
    get("/configz", guarded(sources.guard, _configz(sources.configuration)))
    if sources.page is not None:
        add_page(app, sources.page, clock, guard=sources.guard)
    return app


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
            log.warning("https.off", port=secure.port, note=note)

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
                log.warning("server.plain", address=str(listening), note=_PLAIN)

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
