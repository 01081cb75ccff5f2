"""The command `koord-descheduler explain`: what the last cycles decided about a node or a pod."""

import argparse
import http.client
import json
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import SplitResult, urlencode, urlsplit

from koord.component.tables import show
from koord.util.errors import KoordError, OptionError
from koord.util.filewatch import FileReadError, read_bounded
from koord_descheduler.cli.command import EXIT, run_command, say
from koord_descheduler.config.v1alpha2 import DEFAULT_PORT
from koord_descheduler.planning.show import explanation_view

NAME = "koord-descheduler explain"
ADDRESS = f"http://127.0.0.1:{DEFAULT_PORT}"
TIMEOUT = 30.0  # seconds
MOST_BYTES = 64 << 20  # of an answer
_MOST_TOKEN = 64 << 10  # bytes

_ABOUT = """\
Ask a running koord-descheduler what its last cycles decided about a node or a pod, and why, the
newest cycle first. Only the leader decides; another replica says that it is none. Inside its
container no further option is needed:
    kubectl -n koordinator-system exec deploy/koord-descheduler -- koord-descheduler explain NODE"""


class NoAnswer(KoordError):
    """There is no koord-descheduler at the address, or it does not answer the question."""


class ExplainOptions(argparse.Namespace):
    """The options of a command line."""

    name: str
    address: str = ADDRESS
    token_file: Path | None = None
    certificate_authority: Path | None = None  # None: those that the system trusts
    output: Literal["table", "json"] = "table"


def main(argv: Sequence[str]) -> int:
    """Print what was decided. Returns the exit status; see --help."""
    options = _parser().parse_args(argv, namespace=ExplainOptions())
    return run_command(NAME, lambda: _explain(options))


def _explain(options: ExplainOptions) -> None:
    found = _ask(options)
    if not found["leader"]:
        wanted = "ask the holder of the Lease, or all replicas"
        say(
            NAME,
            f"the replica at {options.address} is not the leader: it decides nothing; {wanted}",
        )
    show(found, lambda: explanation_view(found), options.output)


def _ask(options: ExplainOptions) -> dict[str, Any]:
    kind = "pod" if "/" in options.name else "node"
    connection = _connection(options)
    try:
        connection.request(
            "GET", f"/explain?{urlencode({kind: options.name})}", headers=_headers(options)
        )
        answer = connection.getresponse()
        status, body = answer.status, answer.read(MOST_BYTES + 1)
    except (OSError, http.client.HTTPException) as err:
        hint = "is it running, and is this one of its addresses?"
        raise NoAnswer(f"{options.address}: wanted an answer, found {err}; {hint}") from err
    finally:
        connection.close()
    if status in (401, 403):
        hint = "give --token-file with a token that may get the path /explain"
        raise NoAnswer(f"{options.address}: found {status}, it does not let this user ask; {hint}")
    return _decoded(options.address, status, body)


def _decoded(address: str, status: int, body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body) if status == 200 and len(body) <= MOST_BYTES else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("kind") != "Explanation":
        text = body[:200].decode(errors="replace")
        raise NoAnswer(f"{address}: wanted an explanation, found {status}: {text}")
    return found


def _connection(options: ExplainOptions) -> http.client.HTTPConnection:
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
        raise OptionError("--address", address, f"wanted an address such as {ADDRESS}")
    return found


def _headers(options: ExplainOptions) -> dict[str, str]:
    if options.token_file is None:
        return {}
    if _url(options.address).scheme != "https":
        raise OptionError("--token-file", options.address, "a token is sent over https:// only")
    try:
        token = read_bounded(options.token_file, _MOST_TOKEN).decode("ascii").strip()
    except (FileReadError, UnicodeError) as err:
        raise OptionError(
            "--token-file", str(options.token_file), f"cannot be used: {err}"
        ) from err
    return {"Authorization": f"Bearer {token}"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=NAME,
        description=_ABOUT,
        epilog=EXIT,
        argument_default=argparse.SUPPRESS,  # fields of ExplainOptions are the defaults
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("name", metavar="NODE|NAMESPACE/POD", help="a node, or a pod with its namespace")
    add("--address", metavar="URL", help=f"of the descheduler; by default {ADDRESS}")
    add("--token-file", type=Path, metavar="FILE", help="token to send; over HTTPS only")
    add(
        "--certificate-authority", type=Path, metavar="FILE", help="that has signed its certificate"
    )
    add("--output", "-o", choices=("table", "json"), help="table (default) or json")
    return parser
