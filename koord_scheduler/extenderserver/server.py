"""The HTTP server of the extender protocol: access, verbs, bounds and metrics."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from msgspec import Raw
from prometheus_client import CollectorRegistry, Histogram

from koord.cluster.keptfields import NO_FIELDS, KeptFields
from koord.component.http.certificate import ServingCertificate
from koord.component.http.guard import Guard, TokenFile, local_only
from koord.component.http.limits import BodyLimiter
from koord.component.http.responses import HttpError, limits
from koord.component.http.site import HttpServer
from koord.component.http.sockets import Address
from koord.util.clock import Clock
from koord.util.errors import InvalidObject, Unavailable
from koord_scheduler import PREFIX
from koord_scheduler.cache import SchedulerCache
from koord_scheduler.extenders import messages
from koord_scheduler.extenders.messages import ExtenderArgs, ExtenderFilterResult
from koord_scheduler.extenderserver.host import (
    BIND,
    FILTER,
    PRIORITIZE,
    VERBS,
    PluginHost,
    verbs_of,
)
from koord_scheduler.framework.profile import ProfilePlugins


@dataclass(frozen=True, kw_only=True, slots=True)
class AccessFiles:
    """Paths of what TLS and tokens need, all PEM but the token; None: not given."""

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    token: Path | None = None

    @property
    def known(self) -> bool:
        """Whether clients have to prove that they may ask."""
        return self.client_ca is not None or self.token is not None


class Access:
    """Certificate, token and guard from the given files; it reloads those that are not None."""

    def __init__(self, files: AccessFiles, oldest_tls: ssl.TLSVersion) -> None:
        """Read the files. Without any, only local clients are let in.

        Raises:
            CertificateError, TokenFileError: one cannot be used.
        """
        self.certificate: ServingCertificate | None = None
        if files.certificate is not None and files.key is not None:
            flags = "--extender-tls-cert-file and --extender-tls-private-key-file"
            self.certificate = ServingCertificate(
                files.certificate, files.key, client_ca=files.client_ca, flags=flags
            )
            self.certificate.context.minimum_version = oldest_tls
        self.tls = self.certificate.context if self.certificate is not None else None
        self.token = TokenFile(files.token) if files.token is not None else None
        self.guard: Guard | None = self.token
        if not files.known:
            self.guard = local_only


class ExtenderMetrics:
    """Requests by verb and HTTP status; outcome late: answered without asking the plugins."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Histogram(
            f"{PREFIX}_extender_request_duration_seconds",
            "Time from a whole request of kube-scheduler to the answer, by verb and HTTP status.",
            ["verb", "code", "outcome"],
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
            registry=registry,
        )


MAX_BODY_BYTES = 128 << 20  # bytes: 5,000 whole nodes; names take 150 KB
MAX_BINDING_BYTES = 64 << 10
MAX_BODIES_BYTES = 2 * MAX_BODY_BYTES  # bytes of all: room for another peer's beside the largest
LARGE_BODY_BYTES = (
    256 << 10
)  # bytes of JSON that are read off the loop, and of a response written at a time
MAX_BINDINGS = 256  # at a time
SHARE = 0.8  # of the scheduler's timeout, in which a response must be on its way
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class _Response:
    body: Sequence[bytes | Raw]  # in pieces
    outcome: str = "ok"  # "late": the plugins were not asked; "error": they failed


_Responder = Callable[[bytearray, float], Awaitable[_Response]]


class ExtenderApp:
    """Serves one host's answers."""

    def __init__(
        self,
        host: PluginHost,
        verbs: tuple[str, ...],
        timeout: float,
        metrics: ExtenderMetrics,
        clock: Clock,
        *,
        guard: Guard | None = None,
    ) -> None:
        """timeout: the httpTimeout that kube-scheduler has for us, in seconds.

        guard: lets clients in before their bodies are read; None: all that can connect.
        """
        self._host = host
        self._verbs = verbs
        self._guard = guard
        self._timeout = timeout
        self._metrics = metrics
        self._clock = clock
        self._bindings: set[asyncio.Task[str]] = set()
        self._bodies = BodyLimiter(largest=MAX_BODY_BYTES, most=MAX_BODIES_BYTES)

    def application(self) -> web.Application:
        """Return the application, with a path for each verb that is served."""
        app = web.Application(middlewares=[limits(self._clock)])
        answering: dict[str, _Responder] = {
            FILTER: self._filter, PRIORITIZE: self._prioritize, BIND: self._bind
        }  # fmt: skip
        for verb in self._verbs:
            app.router.add_post(f"/{verb}", self._handler(verb, answering[verb]))
        return app

    def _handler(
        self, verb: str, response: _Responder
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            began, code, outcome = self._clock.monotonic(), 500, "error"
            try:
                if self._guard is not None:
                    await self._guard(request)
                if request.content_type != JSON:  # no page in a browser can send that unasked
                    raise web.HTTPUnsupportedMediaType
                largest = MAX_BINDING_BYTES if verb == BIND else MAX_BODY_BYTES
                async with self._bodies.read(request, largest) as body:
                    found = await response(body, began + self._timeout * SHARE)
                    code, outcome = 200, found.outcome
                    return await self._written(request, found.body)
            except (HttpError, web.HTTPException) as err:
                code = err.status
                raise
            except Unavailable:
                code = 503
                raise
            except InvalidObject:
                code = 400
                raise
            finally:
                seconds = self._clock.monotonic() - began
                self._metrics.requests.labels(verb, str(code), outcome).observe(seconds)

        return handle

    async def _written(
        self, request: web.Request, pieces: Sequence[bytes | Raw]
    ) -> web.StreamResponse:
        """Send a response; a client that does not take it in time loses its connection."""
        response = web.StreamResponse()
        response.content_type = JSON
        response.content_length = sum(map(len, pieces))
        try:
            async with asyncio.timeout(self._timeout):
                await response.prepare(request)
                part = bytearray()
                for piece in pieces:
                    part += piece
                    if len(part) >= LARGE_BODY_BYTES:
                        await response.write(part)
                        part = bytearray()
                await response.write_eof(bytes(part))
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _filter(self, body: bytearray, deadline: float) -> _Response:
        asked = await _read(body)
        late = self._clock.monotonic() > deadline
        response = ExtenderFilterResult(asked.names) if late else self._host.filter(asked)
        outcome = "late" if late else "error" if response.error else "ok"
        if asked.nodes is None:
            return _Response(messages.write_filter_result(response), outcome)
        passed = frozenset(response.names or ())
        pairs = zip(asked.names, asked.nodes, strict=True)
        nodes = [node for name, node in pairs if name in passed]
        return _Response(messages.write_filter_result(response, nodes), outcome)

    async def _prioritize(self, body: bytearray, deadline: float) -> _Response:
        asked = await _read(body)
        if self._clock.monotonic() > deadline:
            scores = dict.fromkeys(asked.names, 0)
            return _Response([messages.write_priorities(scores)], "late")
        return _Response([messages.write_priorities(self._host.prioritize(asked))])

    async def _bind(self, body: bytearray, deadline: float) -> _Response:
        """A binding that has begun goes on, also where the scheduler has given up waiting."""
        asked = messages.read_bind(body)
        if self._clock.monotonic() > deadline:
            why = "there was no time left to bind the pod"
            return _Response([messages.write_error(why)], "late")
        if len(self._bindings) >= MAX_BINDINGS:
            raise Unavailable(f"{len(self._bindings)} pods are being bound already")
        binding = asyncio.create_task(self._host.bind(asked), name=f"bind {asked.name}")
        self._bindings.add(binding)
        binding.add_done_callback(self._bindings.discard)
        error = await asyncio.shield(binding)
        return _Response([messages.write_error(error)], "error" if error else "ok")


async def _read(body: bytearray) -> ExtenderArgs:
    if len(body) > LARGE_BODY_BYTES:
        return await asyncio.to_thread(messages.read_extender_args, body)
    return messages.read_extender_args(body)


def served_verbs(profiles: Sequence[ProfilePlugins]) -> tuple[str, ...]:
    """The verbs that any of the profiles needs."""
    wanted = {verb for one in profiles for verb in verbs_of(one.settings)}
    return tuple(verb for verb in VERBS if verb in wanted)


def extender_server(
    profiles: Sequence[ProfilePlugins],
    state: SchedulerCache,
    address: Address,
    access: Access,
    *,
    timeout: float,
    fail_open: bool,
    registry: CollectorRegistry,
    clock: Clock,
    kept: KeptFields = NO_FIELDS,
) -> HttpServer:
    """Return a server that answers a kube-scheduler, whose httpTimeout for it is timeout seconds.

    fail_open, kept: see PluginHost.
    """
    host = PluginHost(profiles, state, clock, fail_open=fail_open, kept=kept)
    metrics = ExtenderMetrics(registry)
    verbs = served_verbs(profiles)
    app = ExtenderApp(host, verbs, timeout, metrics, clock, guard=access.guard)
    return HttpServer(
        app.application(),
        address,
        access.tls,
        clock=clock,
        registry=registry,
        prefix=f"{PREFIX}_extender",
    )
