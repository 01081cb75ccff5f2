"""The guard of a daemon in a cluster: tokens and their rights are checked by the API server."""

import hashlib
import os
import re
from collections.abc import Awaitable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter

from koord.component.http.answers import Answers, Budget, Busy
from koord.component.http.guard import is_local
from koord.component.http.refusal import Refusal
from koord.util.clock import Clock
from koord.util.errors import KoordError
from koord.util.health import OK, PartHealth, Status
from koord.util.logs import LogState, get_logger

YES_SECONDS = 30.0  # that a token or a grant holds; its withdrawal is seen after that
NO_SECONDS = 10.0
AT_ONCE = 8  # reviews under way
RATE = 1.0  # reviews a second
BURST = 10
REPORTED_SECONDS = 300.0  # for which /healthz reports a failed review, if none has succeeded

_BEARER = re.compile(r"Bearer +([A-Za-z0-9\-._~+/]+=*) *", re.IGNORECASE)

log = get_logger("koord.server")


class Named(Protocol):
    """A user with a name."""

    @property
    def name(self) -> str: ...


T = TypeVar("T")
U = TypeVar("U", bound=Named)


class Reviewer(Protocol[U]):
    """Reviews of the API server; see koord.kube.reviews. Raises KoordError without an answer."""

    async def user(self, token: str) -> U | None: ...

    async def may_get(self, user: U, path: str) -> bool: ...


class TokenGuard(Generic[U]):
    """Lets local clients in, and those whose bearer token the API server vouches for.

    Answers are remembered for seconds by a keyed hash of the token; tokens themselves are neither
    kept nor logged. Without an answer no client gets in.
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
        budget = Budget(clock, at_once=AT_ONCE, rate=rate, burst=BURST)
        self._name = name
        self._reviewer = reviewer
        self._clock = clock
        self._users: Answers[bytes, U | None] = Answers(clock, budget, lasts=_lasts)
        self._grants: Answers[tuple[bytes, str], bool] = Answers(clock, budget, lasts=_lasts)
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
        """As Guard."""
        if is_local(request):
            outcome, refusal = "local", None
        else:
            outcome, refusal = await self._judge(request)
        self._requests.labels(outcome).inc()
        if refusal is not None:
            raise refusal

    def health(self) -> PartHealth:
        """Degraded for a while after the API server could not be asked."""
        if self._problem and self._clock.monotonic() - self._problem_at < REPORTED_SECONDS:
            return PartHealth(Status.DEGRADED, f"tokens cannot be checked: {self._problem}")
        return OK

    def _unauthenticated(self, why: str, *, error: str = "") -> Refusal:
        challenge = f'Bearer realm="{self._name}"' + (f', error="{error}"' if error else "")
        headers: Mapping[str, str] = {"WWW-Authenticate": challenge}
        return Refusal(401, f"{why}; `kubectl create token NAME` makes one", headers=headers)

    async def _judge(self, request: web.Request) -> tuple[str, Refusal | None]:
        token = bearer_token(request.headers.getall("Authorization", ()))
        if token is None:
            return "unauthenticated", self._unauthenticated("wanted a bearer token, found none")
        if not request.secure:
            self._warn()
        try:
            return await self._review(token, request.path)
        except Busy as err:
            return "busy", Refusal(429, str(err), headers={"Retry-After": "1"})
        except KoordError:  # noted where it was asked; no stranger's business
            why = "wanted the API server's word on this token, found it cannot be asked now"
            return "unavailable", Refusal(503, why, headers={"Retry-After": "5"})

    async def _review(self, token: str, path: str) -> tuple[str, Refusal | None]:
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
            return "forbidden", Refusal(403, f"{user.name} may not get {path}; {hint}")
        return "allowed", None

    async def _ask(self, review: Awaitable[T]) -> T:
        """Wait for a review, and note whether there was an answer."""
        try:
            answer = await review
        except KoordError as err:
            self._problem, self._problem_at = str(err), self._clock.monotonic()
            self._trouble.failed("review.failed", error=self._problem)
            raise
        self._problem = ""
        self._trouble.ended("review.works")
        return answer

    def _warn(self) -> None:
        if not self._warned:
            note = "anyone on the way can read it; serve TLS with --tls-cert-file"
            log.warning("token.unencrypted", note=note)
        self._warned = True


def bearer_token(values: Sequence[str]) -> str | None:
    """Return the token of a request's Authorization headers; None unless there is just one."""
    found = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
    return found[1] if found else None


def _lasts(answer: object) -> float:
    return YES_SECONDS if answer else NO_SECONDS
