"""The HTTP client of commands that query a running daemon."""

import argparse
import http.client
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from koord.util.errors import KoordError, OptionError
from koord.util.filewatch import FileReadError, read_bounded

TIMEOUT = 30.0  # seconds
MAX_BYTES = 64 << 20  # of a response
_MAX_TOKEN = 64 << 10  # bytes


class NoResponse(KoordError):
    """There is no daemon at the address, or it does not answer the question."""


class QueryOptions(argparse.Namespace):
    """The address and the credentials of a query."""

    address: str
    token_file: Path | None = None
    certificate_authority: Path | None = None  # None: those that the system trusts


def add_options(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the options that QueryOptions has; default is the address without one."""
    add = parser.add_argument
    add("--address", metavar="URL", default=default, help=f"of the daemon; by default {default}")
    add("--token-file", type=Path, metavar="FILE", help="token to send; over HTTPS only")
    add(
        "--certificate-authority", type=Path, metavar="FILE", help="that has signed its certificate"
    )


def query(options: QueryOptions, path: str, kind: str) -> dict[str, Any]:
    """Return the JSON object of that kind that the daemon answers at a path.

    Raises:
        NoResponse: it does not answer that.
        OptionError: an option cannot be used.
    """
    connection, address = _connection(options), options.address
    try:
        connection.request("GET", path, headers=_headers(options))
        response = connection.getresponse()
        status, body = response.status, response.read(MAX_BYTES + 1)
    except (OSError, http.client.HTTPException) as err:
        hint = "is it running, and is this one of its addresses?"
        raise NoResponse(f"{address}: wanted an answer, found {err}; {hint}") from err
    finally:
        connection.close()
    if status in (401, 403):
        asked = path.partition("?")[0]
        hint = f"give --token-file with a token that may get the path {asked}"
        raise NoResponse(f"{address}: found {status}, it does not let this user ask; {hint}")
    return _decoded(address, kind, status, body)


def _decoded(address: str, kind: str, status: int, body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body) if status == 200 and len(body) <= MAX_BYTES else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("kind") != kind:
        text = body[:200].decode(errors="replace")
        raise NoResponse(f"{address}: wanted an object of kind {kind}, found {status}: {text}")
    return found


def _connection(options: QueryOptions) -> http.client.HTTPConnection:
    url = _url(options.address)
    host, port = url.hostname or "", url.port
    if url.scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT)
    try:
        context = ssl.create_default_context(cafile=options.certificate_authority)
    except (OSError, ValueError) as err:
        file = str(options.certificate_authority)
        raise OptionError("--certificate-authority", file, f"cannot be used: {err}") from err
    return http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=context)


def _url(address: str) -> SplitResult:
    try:
        found = urlsplit(address if "://" in address else f"http://{address}")
        usable = found.hostname and found.port != 0 and found.scheme in ("http", "https")
    except ValueError:
        usable = None
    if not usable:
        raise OptionError("--address", address, "wanted an address such as http://127.0.0.1:10251")
    return found


def _headers(options: QueryOptions) -> dict[str, str]:
    if options.token_file is None:
        return {}
    if _url(options.address).scheme != "https":
        raise OptionError("--token-file", options.address, "a token is sent over https:// only")
    try:
        token = read_bounded(options.token_file, _MAX_TOKEN).decode("ascii").strip()
    except (FileReadError, UnicodeError) as err:
        raise OptionError(
            "--token-file", str(options.token_file), f"cannot be used: {err}"
        ) from err
    return {"Authorization": f"Bearer {token}"}
