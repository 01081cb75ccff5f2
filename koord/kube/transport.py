"""HTTP requests to the API server over one connection pool, and its responses."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace, TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from koord.kube.credentials import ApiConfig, Credential, Credentials, Material, credentials_of
from koord.kube.errors import (
    ApiError,
    BadResponse,
    ConfigError,
    KubeError,
    ResponseTooLarge,
    TimedOut,
    TlsVerificationError,
    Unauthorized,
    Unreachable,
    api_error,
)
from koord.util import documents
from koord.util.clock import Clock
from koord.util.errors import InvalidObject
from koord.util.filewatch import FileReadError, FileWatch, read_bounded
from koord.util.keypair import MAX_PEM_BYTES, load_pair
from koord.util.logs import LogState, get_logger
from koord.util.timebudget import TokenBucket

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


log = get_logger("koord.kube")


class TlsContexts:
    """The TLS context for new connections.

    It is made anew when the CA, client certificate or key changed. While the new files do not fit
    together, as between the two steps of a rotation, the last context that worked stays in use.
    """

    def __init__(self, config: ApiConfig) -> None:
        self._config = config
        self._context: ssl.SSLContext | None = None
        self._made_of: Credential | None = None
        self._watches: dict[Path, FileWatch] = {}
        self._trouble = LogState(log)

    def current(self, credential: Credential) -> ssl.SSLContext:
        """Return the context.

        Raises:
            ConfigError: the files cannot be used, and no context worked before.
        """
        changed = [watch.changed() for watch in self._watched(credential)]
        same_data = self._made_of is not None and (
            (self._made_of.certificate, self._made_of.key)
            == (credential.certificate, credential.key)
        )
        if self._context is None or any(changed) or not same_data:
            self._context = self._renewed(credential)
        return self._context

    def _watched(self, credential: Credential) -> list[FileWatch]:
        materials = (self._config.ca, credential.certificate, credential.key)
        paths = [material for material in materials if isinstance(material, Path)]
        return [self._watches.setdefault(path, FileWatch(path)) for path in paths]

    def _renewed(self, credential: Credential) -> ssl.SSLContext:
        try:
            context = _verifying(self._config, credential)
        except ConfigError as err:
            for watch in self._watches.values():
                watch.again()
            if self._context is None:
                raise
            self._trouble.failed("tls.unusable", error=str(err))
            return self._context
        self._made_of = credential
        self._trouble.ended("tls.usable", source=self._config.source)
        return context


def _verifying(config: ApiConfig, credential: Credential) -> ssl.SSLContext:
    # Not ssl.create_default_context(): from Python 3.13 on it asks CAs for extensions that those of
    # many clusters lack (VERIFY_X509_STRICT).
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not config.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif config.ca is None:
        context.load_default_certs()
    else:
        _load_ca(context, config.ca)
    if credential.certificate is not None and credential.key is not None:
        _load_pair(context, credential.certificate, credential.key)
    return context


def _load_ca(context: ssl.SSLContext, ca: Material) -> None:
    where = ca if isinstance(ca, Path) else "certificate-authority-data"
    try:
        context.load_verify_locations(cadata=_pem(ca).decode("ascii", errors="ignore"))
    except (ssl.SSLError, FileReadError, ValueError) as err:
        raise ConfigError(where, wanted="a CA certificate in PEM", found=str(err)) from err


def _load_pair(context: ssl.SSLContext, certificate: Material, key: Material) -> None:
    where = certificate if isinstance(certificate, Path) else "client-certificate-data"
    try:
        load_pair(context, _pem(certificate), _pem(key))
    except (ssl.SSLError, FileReadError, ValueError) as err:
        wanted = "a client certificate and its key in PEM"
        raise ConfigError(where, wanted=wanted, found=str(err)) from err


def _pem(material: Material) -> bytes:
    return read_bounded(material, MAX_PEM_BYTES) if isinstance(material, Path) else material


_NAME_THE_CA = (
    "name the CA that signed it: certificate-authority in the kubeconfig, or --kubelet-ca-file for "
    "a kubelet"
)
# What OpenSSL says about a certificate -> what a person can do about it.
_HINTS = (
    ("expired", "renew the server's certificate; if it is new, check this node's clock"),
    ("not yet valid", "check this node's clock"),
    (
        "mismatch",
        "connect by a name that is in it: tls-server-name in the kubeconfig, or "
        "--kubelet-preferred-address-type for a kubelet",
    ),
    ("self-signed", _NAME_THE_CA),
    ("issuer", _NAME_THE_CA),
)
_DEFAULT_HINT = "check the server's address and certificate"


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Raise Unreachable or TlsVerificationError in place of errors of the network, TLS and HTTP."""
    try:
        yield
    except (aiohttp.ClientError, OSError, ValueError) as err:
        if isinstance(err, TimeoutError):
            raise  # of a Deadline around this
        raise translation(err, where) from err


def translation(error: Exception, where: str) -> Unreachable:
    """The error to raise from one of the network, TLS or HTTP."""
    cause = _tls_cause(error)
    if cause is None:
        return Unreachable(f"{where}: wanted an answer, found {_said(error)}")
    return TlsVerificationError(f"{where}: wanted a trusted server, found {cause}; {_hint(cause)}")


def _tls_cause(err: BaseException) -> str | None:
    """The failure of TLS; None when it was not TLS."""
    found: BaseException | None = err
    while found is not None:
        if isinstance(found, aiohttp.ClientConnectorCertificateError):
            found = found.certificate_error  # it is an SSLError by name only
        if isinstance(found, ssl.SSLCertVerificationError):
            return found.verify_message or str(found)
        if isinstance(found, ssl.SSLError):
            return found.reason or str(found)
        found = found.__cause__
    return None


def _hint(cause: str) -> str:
    lower = cause.lower()
    return next((hint for word, hint in _HINTS if word in lower), _DEFAULT_HINT)


def _said(err: Exception) -> str:
    return f"{type(err).__name__}: {err}" if str(err) else type(err).__name__


class Deadline:
    """Ends the block it surrounds when the phase that was entered last takes too long.

    Raises:
        TimedOut: from the block, with the name of that phase.
    """

    def __init__(self, clock: Clock, where: str) -> None:
        self._clock = clock
        self._where = where
        self._scope = asyncio.timeout(None)
        self._timer: asyncio.Future[None] | None = None  # no task: each watch event has one
        self._phase, self._seconds = "", 0.0

    def enter(self, phase: str, seconds: float) -> None:
        """Begin a phase, which has so many seconds from now on. phase is what is waited for."""
        self.pause()
        self._phase, self._seconds = phase, seconds
        self._timer = self._clock.timer(seconds)
        self._timer.add_done_callback(self._expired)

    def pause(self) -> None:
        """Let the block take its time until the next phase."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expired(self, timer: "asyncio.Future[None]") -> None:
        if timer is self._timer:
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> Self:
        await self._scope.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.pause()
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError as err:
            raise TimedOut(self._where, self._phase, self._seconds) from err


USER_AGENT = "koord"  # unless the daemon says its own
MAX_ERROR_BYTES = 64 << 10
WHOLE = "application/json"
# Only metadata of objects, where the server can do that. Source: Kubernetes, API concepts,
# "Metadata-only fetches".
METADATA = f"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{WHOLE}"
METADATA_LIST = f"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{WHOLE}"
# Longer than the minute between two reports, shorter than the 90 s after which the server hangs up.
KEEPALIVE = 75.0
_NO_QUERY: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of a request. Times in seconds."""

    connect: float = 10.0  # name look-up, connection and TLS
    headers: float = 30.0  # from then on until the server begins to answer
    body: float = 60.0  # the whole response; for streams the caller says
    reason: float = 5.0  # the body of an error response
    response_bytes: int = 16 << 20
    qps: float = 20.0  # requests a second on average; 0 for no bound
    burst: int = 30
    connections: int = 16  # at a time; each watch keeps one
    keepalive: float = KEEPALIVE  # that a connection waits for its next request; 0: it closes


class Call(NamedTuple):
    """One request. path is quoted already."""

    method: str
    path: str
    query: Mapping[str, str] = _NO_QUERY
    body: bytes | None = None
    content_type: str = "application/json"
    accept: str = WHOLE
    server: str = ""  # another one than the transport's, for the same user
    check: Callable[[], None] | None = None  # raises if it may not be sent when its turn has come

    @property
    def where(self) -> str:
        """The request as errors name it."""
        return f"{self.method} {self.server}{self.path}"


@dataclass(slots=True)
class Traffic:
    """A finished request. status is 0 when no response arrived; seconds end with the headers."""

    call: Call
    status: int = 0
    seconds: float = 0.0
    received: int = 0  # bytes of body


_Response = tuple[aiohttp.ClientResponse, Deadline, Traffic]


class Transport:
    """Sends calls to one API server as one user.

    Connections are shared, certificates always checked, redirects not followed (they would carry
    the token elsewhere). observe is called for every attempt when it is over.
    """

    def __init__(
        self,
        config: ApiConfig,
        clock: Clock,
        *,
        limits: Limits | None = None,
        credentials: Credentials | None = None,
        observe: Callable[[Traffic], None] | None = None,
        user_agent: str = USER_AGENT,
    ) -> None:
        self._config = config
        self._clock = clock
        self._limits = limits or Limits()
        self._credentials = credentials or credentials_of(config, clock)
        self._tls = TlsContexts(config)
        self._turns = TokenBucket(clock, self._limits.qps, self._limits.burst)
        self._user_agent = user_agent
        self._observe = observe or (lambda _: None)
        self._warned = False
        self._session: aiohttp.ClientSession | None = None

    async def exchange(self, call: Call) -> bytes:
        """Send a call and return the whole body of the response.

        Raises:
            ApiError: the server rejected the request.
            Unreachable, BadResponse: no response, not in time, or too large a one.
            ConfigError: there are no credentials to send.
        """
        async with self._answer(call) as (response, deadline, traffic):
            deadline.enter("the whole answer", self._limits.body)
            return await _whole(response, self._limits.response_bytes, traffic)

    @asynccontextmanager
    async def stream(
        self, call: Call, silence: Callable[[], float]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a call and hand out the body in pieces, as they come.

        silence says how many seconds the next piece may take. Raises what exchange does.
        """
        async with self._answer(call) as (response, deadline, traffic):
            deadline.pause()
            yield _pieces(response, deadline, silence, traffic)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def _answer(self, call: Call) -> AsyncIterator[_Response]:
        """Yield an accepted response. Sends twice if the server does not know our credentials."""
        async with AsyncExitStack() as stack:
            try:
                response = await stack.enter_async_context(self._accepted(call))
            except Unauthorized:
                self._credentials.refused()
                response = await stack.enter_async_context(self._accepted(call))
            yield response

    @asynccontextmanager
    async def _accepted(self, call: Call) -> AsyncIterator[_Response]:
        await self._turns.take()
        credential = await self._credentials.current()
        if call.check is not None:
            call.check()
        traffic, start = Traffic(call), self._clock.monotonic()
        try:
            async with Deadline(self._clock, call.where) as deadline:
                with translated(call.where):
                    response = await self._send(call, credential, deadline)
                    traffic.status = response.status
                    traffic.seconds = self._clock.monotonic() - start
                    try:
                        await self._check(response, deadline, traffic)
                        yield response, deadline, traffic
                    finally:
                        response.close()  # no harm if it was read to its end
        finally:
            self._observe(traffic)

    async def _send(
        self, call: Call, credential: Credential, deadline: Deadline
    ) -> aiohttp.ClientResponse:
        """Send a call; return when the head of the response is there."""
        headers = {"Accept": call.accept, "Accept-Encoding": "identity"}
        if credential.token:
            headers["Authorization"] = f"Bearer {credential.token}"
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        url = self._url(call)
        deadline.enter("a connection", self._limits.connect)
        return await self._opened().request(
            call.method,
            url,
            headers=headers,
            data=call.body,
            ssl=self._tls.current(credential) if url.scheme == "https" else True,
            server_hostname=self._config.tls_server_name or None,
            proxy=self._config.proxy_url or None,
            allow_redirects=False,
            trace_request_ctx=partial(
                deadline.enter, "the head of the answer", self._limits.headers
            ),
        )

    def _url(self, call: Call) -> URL:
        query = f"?{urlencode(call.query)}" if call.query else ""
        return URL(f"{call.server or self._config.server}{call.path}{query}", encoded=True)

    async def _check(
        self, response: aiohttp.ClientResponse, deadline: Deadline, traffic: Traffic
    ) -> None:
        """Raise unless the server does what was asked, in plain bytes."""
        where = traffic.call.where
        if response.status >= 400:
            deadline.pause()
            body = await self._reason(response, traffic)
            raise api_error_of(response.status, response.headers, body, where=where)
        check_head(response.status, response.headers.get("Content-Encoding", ""), where)

    async def _reason(self, response: aiohttp.ClientResponse, traffic: Traffic) -> bytes:
        """Return the body of an error response; empty if it cannot be read.

        Then the status alone has to do.
        """
        where = traffic.call.where
        try:
            async with Deadline(self._clock, where) as deadline:
                deadline.enter("the reason of a refusal", self._limits.reason)
                with translated(where):
                    return await _whole(response, MAX_ERROR_BYTES, traffic)
        except KubeError:
            return b""

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._warn_once()
            connected = aiohttp.TraceConfig()
            connected.on_connection_create_end.append(_connected)
            connected.on_connection_reuseconn.append(_connected)
            self._session = aiohttp.ClientSession(
                connector=_connector(self._limits),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": self._user_agent},
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # see Deadline
                trace_configs=[connected],
                auto_decompress=False,  # a small answer must not unfold into a large one
            )
        return self._session

    def _warn_once(self) -> None:
        """Log, once in a process for each kind of server, that it is not verified."""
        warned, self._warned = self._warned, True
        source, setting = self._config.source, self._config.unverified()
        if setting and not warned:
            log.warning(
                "server.verification_disabled",
                server=self._config.server,
                source=source,
                setting=setting,
                hint="all on the way can read what is sent and forge answers; set a CA and https",
                once=(source, setting),
            )


def check_head(status: int, encoding: str, where: str) -> None:
    """Raise BadResponse unless the status is 2xx and the body is not encoded."""
    if not 200 <= status < 300:
        raise BadResponse(where, wanted="status 2xx", found=f"status {status}")
    if encoding not in ("", "identity"):
        raise BadResponse(where, wanted="plain bytes, as asked for", found=encoding)


def too_large(where: str, limit: int) -> ResponseTooLarge:
    """The error for a response of more bytes than the limit."""
    return ResponseTooLarge(where, wanted=f"at most {limit} bytes", found="more")


def _connector(limits: Limits) -> aiohttp.TCPConnector:
    if limits.keepalive <= 0:
        return aiohttp.TCPConnector(limit=limits.connections, force_close=True)
    return aiohttp.TCPConnector(limit=limits.connections, keepalive_timeout=limits.keepalive)


async def _connected(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
    context.trace_request_ctx()


async def _whole(response: aiohttp.ClientResponse, limit: int, traffic: Traffic) -> bytes:
    if (response.content_length or 0) > limit:
        raise too_large(traffic.call.where, limit)
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        traffic.received += len(piece)
        if len(body) > limit:
            raise too_large(traffic.call.where, limit)
    return bytes(body)


async def _pieces(
    response: aiohttp.ClientResponse,
    deadline: Deadline,
    silence: Callable[[], float],
    traffic: Traffic,
) -> AsyncIterator[bytes]:
    while True:
        deadline.enter("the next event", silence())
        piece = await response.content.readany()
        deadline.pause()
        if not piece:
            return
        traffic.received += len(piece)
        yield piece
