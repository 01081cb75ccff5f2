"""The HTTP library's errors as ours, with what to do about them."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp

from koord.kube.errors import NotTrusted, Unreachable

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
    """Raise Unreachable or NotTrusted in place of errors of the network, TLS and HTTP."""
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
    return NotTrusted(f"{where}: wanted a trusted server, found {cause}; {_hint(cause)}")


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
