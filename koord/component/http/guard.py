"""Guards of endpoints: loopback clients, bearer tokens reviewed by the API server, a token file."""

import asyncio
import hashlib
import hmac
import ipaddress
import os
import re
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter

from koord.component.http.responses import HttpError
from koord.util.clock import Clock
from koord.util.errors import KoordError, Unavailable
from koord.util.filewatch import FileReadError, FileWatch
from koord.util.goformat import is_loopback
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop
from koord.util.timebudget import SingleFlightCache, TokenBucket

_HOST = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<name>[0-9a-zA-Z.-]+))(?::[0-9]{1,5})?")

Guard = Callable[[web.Request], Awaitable[None]]
"""Returns if the client may see more than metrics and health.

Raises:
    HttpError: it may not.
"""


async def local_only(request: web.Request) -> None:
    """The guard of a daemon without an API server that could review tokens."""
    if is_loopback(peer(request)) and not is_local(request):
        raise HttpError(
            403,
            f"{request.path}: wanted a Host header that is localhost or an IP address, found "
            "another; a web page may have sent this, under a name that leads here",
        )
    if not is_local(request):
        raise HttpError(
            403,
            f"{request.path}: wanted a client on this machine, found {peer(request)}; ask on the "
            "machine itself, through a tunnel (ssh -L), or through a proxy there that "
            "authenticates",
        )


def is_local(request: web.Request) -> bool:
    """Whether the connection comes over the loopback interface, and not from a web page.

    Only the socket's other end makes a client local, never a header: all may send those. In the
    node's network every process on the node is local, in a pod's own only the pod and `kubectl
    port-forward`. A page in a browser on this machine may reach us by a name of its own that leads
    to 127.0.0.1 (DNS rebinding): its requests carry that name.
    """
    hosts = request.headers.getall("Host", ())
    return is_loopback(peer(request)) and len(hosts) == 1 and is_no_name(hosts[0])


def is_no_name(host: str) -> bool:
    """Whether a Host header is localhost or an IP address: no foreign DNS leads to those."""
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    if found["name"] and found["name"].lower() == "localhost":
        return True
    try:
        ipaddress.ip_address(found["v6"] or found["name"])
    except ValueError:
        return False
    return (":" in (found["v6"] or "")) == (found["v6"] is not None)


def peer(request: web.Request) -> str:
    """The address of the socket's other end; "" when it is gone or has none."""
    name = request.transport.get_extra_info("peername") if request.transport else None
    return str(name[0]) if isinstance(name, tuple) and name else ""


CACHED_REVIEWS = 1024  # answers of one kind; each is a few hundred bytes

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TooManyReviews(Unavailable):
    """More questions at once than are passed on."""


class ReviewBudget:
    """The most requests under way, and per second, so that no flood is passed on."""

    def __init__(self, clock: Clock, *, at_once: int, rate: float, burst: int) -> None:
        self._at_once = at_once
        self._turns = TokenBucket(clock, rate, burst)
        self._under_way = 0

    @contextmanager
    def question(self) -> Iterator[None]:
        """Surround a question.

        Raises:
            Busy: it is one too many.
        """
        if self._under_way >= self._at_once or not self._turns.take_now():
            raise TooManyReviews("wanted fewer questions about tokens; ask again in a second")
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1


class ReviewCache(Generic[K, V]):
    """Answers by what they are about. Errors are not remembered."""

    def __init__(self, clock: Clock, budget: ReviewBudget, *, lasts: Callable[[V], float]) -> None:
        """lasts returns for how many seconds a response holds."""
        self._budget = budget
        self._reviews: SingleFlightCache[K, V] = SingleFlightCache(
            clock, CACHED_REVIEWS, lasts=lasts
        )

    async def get(self, key: K, ask: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """Return the response; ask for it unless it is known, or being asked for.

        Raises:
            Busy: too many questions are asked.
            Exception: what ask raises.
        """
        return await self._reviews.get(key, lambda: self._ask(ask))

    async def _ask(self, ask: Callable[[], Coroutine[Any, Any, V]]) -> V:
        with self._budget.question():
            return await ask()


ALLOWED_TTL = 30.0  # that a token or a grant holds; its withdrawal is seen after that
DENIED_TTL = 10.0
MAX_CONCURRENT_REVIEWS = 8  # reviews under way
RATE = 1.0  # reviews a second
BURST = 10
REPORTED_SECONDS = 300.0  # for which /healthz reports a failed review, if none has succeeded

_BEARER = re.compile(r"Bearer +([A-Za-z0-9\-._~+/]+=*) *", re.IGNORECASE)

log = get_logger("koord.server")


class NamedUser(Protocol):
    """A user with a name."""

    @property
    def name(self) -> str: ...


T = TypeVar("T")
U = TypeVar("U", bound=NamedUser)


class Reviewer(Protocol[U]):
    """Reviews of the API server (koord.kube.authorization). KoordError: no response."""

    async def user(self, token: str) -> U | None: ...

    async def may_get(self, user: U, path: str) -> bool: ...


class TokenGuard(Generic[U]):
    """Lets local clients in, and those whose bearer token the API server vouches for.

    Answers are remembered for seconds by a keyed hash of the token; tokens themselves are neither
    kept nor logged. Without a response no client gets in.
    """

    def __init__(
        self,
        reviewer: Reviewer[U],
        clock: Clock,
        registry: CollectorRegistry,
        *,
        name: str,
        rate: float = RATE,
    ) -> None:
        """name is the daemon's, in metrics and as realm; rate bounds the reviews per second."""
        budget = ReviewBudget(clock, at_once=MAX_CONCURRENT_REVIEWS, rate=rate, burst=BURST)
        self._name = name
        self._reviewer = reviewer
        self._clock = clock
        self._users: ReviewCache[bytes, U | None] = ReviewCache(clock, budget, lasts=_lasts)
        self._grants: ReviewCache[tuple[bytes, str], bool] = ReviewCache(
            clock, budget, lasts=_lasts
        )
        self._key = os.urandom(16)
        self._trouble = LogState(log)
        self._problem, self._problem_at = "", 0.0
        self._warned = False
        self._requests = Counter(
            f"{name}_guarded_requests_total",
            "Requests for more than metrics and health, by outcome: local, allowed, "
            "unauthenticated, forbidden, busy or unavailable.",
            ["outcome"],
            registry=registry,
        )

    async def __call__(self, request: web.Request) -> None:
        """Return if the token may see more than metrics and health.

        Raises:
            HttpError: it may not.
        """
        if is_local(request):
            outcome, error = "local", None
        else:
            outcome, error = await self._authorize(request)
        self._requests.labels(outcome).inc()
        if error is not None:
            raise error

    def health(self) -> PartHealth:
        """Degraded for a while after the API server could not be asked."""
        if self._problem and self._clock.monotonic() - self._problem_at < REPORTED_SECONDS:
            return PartHealth(HealthStatus.DEGRADED, f"tokens cannot be checked: {self._problem}")
        return OK

    def _unauthenticated(self, why: str, *, error: str = "") -> HttpError:
        challenge = f'Bearer realm="{self._name}"' + (f', error="{error}"' if error else "")
        headers: Mapping[str, str] = {"WWW-Authenticate": challenge}
        return HttpError(401, f"{why}; `kubectl create token NAME` makes one", headers=headers)

    async def _authorize(self, request: web.Request) -> tuple[str, HttpError | None]:
        token = bearer_token(request.headers.getall("Authorization", ()))
        if token is None:
            return "unauthenticated", self._unauthenticated("wanted a bearer token, found none")
        if not request.secure:
            self._warn()
        try:
            return await self._review(token, request.path)
        except TooManyReviews as err:
            return "busy", HttpError(429, str(err), headers={"Retry-After": "1"})
        except KoordError:  # noted where it was asked; no stranger's business
            why = "wanted the API server's word on this token, found it cannot be asked now"
            return "unavailable", HttpError(503, why, headers={"Retry-After": "5"})

    async def _review(self, token: str, path: str) -> tuple[str, HttpError | None]:
        """Ask about the token, then about the path; raises what the reviewer does, and Busy."""
        digest = hashlib.blake2b(token.encode(), key=self._key).digest()
        user = await self._users.get(digest, lambda: self._ask(self._reviewer.user(token)))
        if user is None:
            why = "wanted a token that the cluster knows and that has not expired"
            return "unauthenticated", self._unauthenticated(why, error="invalid_token")
        may = await self._grants.get(
            (digest, path), lambda: self._ask(self._reviewer.may_get(user, path))
        )
        if not may:
            hint = "a ClusterRole with this nonResourceURL and verb get would allow it"
            return "forbidden", HttpError(403, f"{user.name} may not get {path}; {hint}")
        return "allowed", None

    async def _ask(self, review: Awaitable[T]) -> T:
        """Wait for a review, and note whether there was a response."""
        try:
            response = await review
        except KoordError as err:
            self._problem, self._problem_at = str(err), self._clock.monotonic()
            self._trouble.failed("review.failed", error=self._problem)
            raise
        self._problem = ""
        self._trouble.ended("review.recovered")
        return response

    def _warn(self) -> None:
        if not self._warned:
            note = "anyone on the way can read it; serve TLS with --tls-cert-file"
            log.warning("token.unencrypted", note=note)
        self._warned = True


def bearer_token(values: Sequence[str]) -> str | None:
    """Return the token of a request's Authorization headers; None unless there is just one."""
    found = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
    return found[1] if found else None


def _lasts(response: object) -> float:
    return ALLOWED_TTL if response else DENIED_TTL


INTERVAL = 10.0  # seconds between two looks at the file
SHORTEST, LONGEST = 16, 4096  # bytes of a token


class TokenFileError(KoordError):
    """The file has no token. The daemon does not start without it."""


class TokenFile:
    """Lets clients in that send the token as `Authorization: Bearer`; follows the file.

    While the file cannot be used the last token counts.
    """

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            TokenFileError: there is no token in it; the message says why.
        """
        self._file = FileWatch(path)
        self._file.changed()
        self._token = self._read()
        self._problem = ""

    async def __call__(self, request: web.Request) -> None:
        """Return if the request has the token of the file.

        Raises:
            HttpError: it does not.
        """
        token = bearer_token(request.headers.getall("Authorization", ()))
        if token is None or not hmac.compare_digest(token.encode(), self._token):
            raise HttpError(
                401,
                "wanted the bearer token of this server, found none or another",
                headers={"WWW-Authenticate": "Bearer", "Connection": "close"},
            )

    async def run(self, stop: Stop) -> None:
        """Follow the file until stop."""
        async for _ in stop.every(INTERVAL):
            if self._file.changed():
                await self._renew()

    def health(self) -> PartHealth:
        """Degraded while the file cannot be used."""
        return PartHealth(HealthStatus.DEGRADED, self._problem) if self._problem else OK

    async def _renew(self) -> None:
        try:
            self._token = await asyncio.to_thread(self._read)
        except TokenFileError as err:
            self._problem = str(err)
            log.warning("token.unusable", error=str(err), note="the last good one counts")
        else:
            self._problem = ""
            log.info("token.renewed", path=str(self._file.path))

    def _read(self) -> bytes:
        try:
            token = self._file.read(LONGEST).strip()
            found = f"{len(token)} bytes"
            if len(token) >= SHORTEST and bearer_token([f"Bearer {token.decode('ascii')}"]):
                return token
        except (FileReadError, UnicodeError) as err:
            found = err.found if isinstance(err, FileReadError) else "other characters"
        raise TokenFileError(
            f"{self._file.path}: wanted a token of {SHORTEST} to {LONGEST} letters, digits and "
            f"-._~+/, found {found}; `openssl rand -hex 32` makes one"
        )
