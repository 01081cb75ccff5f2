"""Errors between this daemon and the API server."""

from collections.abc import Mapping

from koord.util.errors import KoordError


class KubeError(KoordError):
    """Base of all errors of this package."""


class ConfigError(KubeError):
    """A kubeconfig, token, certificate or exec plugin cannot be used."""

    def __init__(self, where: object, *, wanted: str, found: object, hint: str = "") -> None:
        super().__init__(f"{where}: wanted {wanted}, found {found}" + (f"; {hint}" if hint else ""))


class NoAddress(KubeError):
    """It is not known where the server is. Nothing was sent."""


class Unreachable(KubeError):
    """No whole response arrived: whether the server has acted on the request is unknown."""


class TimedOut(Unreachable):
    """The server was silent for too long in one phase of a request."""

    def __init__(self, where: str, phase: str, seconds: float) -> None:
        super().__init__(f"{where}: wanted {phase} within {seconds:g} s, found silence")
        self.phase = phase


class TlsVerificationError(Unreachable):
    """The server's certificate, or ours in its eyes, did not hold. Nothing was sent."""


class BadResponse(KubeError):
    """The server answered with something that is not Kubernetes' API, or is too large."""

    def __init__(self, where: str, *, wanted: str, found: str) -> None:
        super().__init__(f"{where}: wanted {wanted}, found {found}")


class ResponseTooLarge(BadResponse):
    """The answer has more bytes than are read of one."""


class ApiError(KubeError):
    """The server rejected a request. The fields are those of its Status object.

    retry_after is what the server asked to wait before the next attempt, in seconds; None when it
    asked for nothing. body is its Status as JSON, empty when it sent none.
    """

    def __init__(
        self,
        status: int,
        reason: str = "",
        message: str = "",
        *,
        where: str = "the API server",
        retry_after: float | None = None,
        body: Mapping[str, object] | None = None,
    ) -> None:
        what = f"{status} {reason}".rstrip()
        super().__init__(f"{where}: refused with {what}: {message}".rstrip(": "))
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.body = body or {}

    @property
    def details(self) -> Mapping[str, object]:
        """The details of the Status: name, kind, causes. Empty when absent."""
        found = self.body.get("details")
        return found if isinstance(found, Mapping) else {}


class BadRequest(ApiError):
    """400: the request itself is malformed."""


class Unauthorized(ApiError):
    """401: the server does not accept our identity, also with credentials read anew."""


class Forbidden(ApiError):
    """403: RBAC or an admission policy does not allow this."""


class NotFound(ApiError):
    """404: no such object, or no such resource: its CRD is not installed."""


class Conflict(ApiError):
    """409: the object has changed, is another one (UID), or a patch's test did not hold."""


class AlreadyExists(Conflict):
    """409: an object of this name is there already."""


class Gone(ApiError):
    """410: the resource version or continue token is too old; list again."""


class RequestTooLarge(ApiError):
    """413: the body is larger than the server takes."""


class Invalid(ApiError):
    """422: the object breaks its schema; the details name the fields."""


class PatchRejected(Invalid):
    """422 without causes: a test of a JSON patch did not hold, or it does not apply at all."""


class TooManyRequests(ApiError):
    """429: the server is busy, or an eviction would break a PodDisruptionBudget."""


class ServerError(ApiError):
    """5xx: the server has a trouble of its own."""


TRANSIENT_ERRORS = (Unreachable, ServerError, TooManyRequests, Unauthorized, ConfigError)
"""Errors that pass; whatever else the server says about an object, it would say again."""

_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: RequestTooLarge,
    422: Invalid,
    429: TooManyRequests,
}


def api_error(
    status: int, body: Mapping[str, object], *, where: str, retry_after: float | None = None
) -> ApiError:
    """Return the error for a Status object, or for what a proxy sent in its place (empty body)."""
    reason, message = _text(body, "reason"), _text(body, "message")
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else ApiError)
    if reason == "AlreadyExists":
        kind = AlreadyExists
    error = kind(status, reason, message, where=where, retry_after=retry_after, body=body)
    if kind is Invalid and not error.details.get("causes"):
        return PatchRejected(status, reason, message, where=where, body=body)
    return error


def _text(body: Mapping[str, object], key: str) -> str:
    found = body.get(key)
    return found[:1000] if isinstance(found, str) else ""
