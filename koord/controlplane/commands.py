"""Commands of a daemon's program: options, errors, exit status, the queries of a running one."""

import argparse
import http.client
import json
import os
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from koord.cluster.dump import Dump
from koord.component.config.field_errors import InvalidConfig
from koord.component.plugins.discovery import discover
from koord.component.plugins.registry import FactoryRegistry
from koord.util.clock import SystemClock
from koord.util.errors import InvalidObject, KoordError, OptionError
from koord.util.filewatch import FileReadError, read_bounded
from koord.util.logs import LevelSpec, configure
from koord.util.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

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


R = TypeVar("R", bound=FactoryRegistry[Any])

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
EXIT = "Exit status: 0 done, 1 failed, 2 the command line or a file is wrong."
MAX_MESSAGE = 4000  # characters of a message
NOW_HELP = "time of the plan, as 2026-07-24T06:52:45Z; by default now, or that of the dump"


def run_command(name: str, act: Callable[[], None]) -> int:
    """Do what a command does, which prints to stdout; return the exit status."""
    configure("console", LevelSpec("error"), name)
    try:
        act()
        sys.stdout.flush()
    except (OptionError, InvalidConfig, InvalidObject) as err:
        print_message(name, str(err))
        return USAGE
    except KoordError as err:
        print_message(name, str(err))
        return FAILED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the rest has no reader
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return OK


def print_message(name: str, text: str) -> None:
    """Print a message to stderr."""
    print(f"{name}: {printable(text)[:MAX_MESSAGE]}", file=sys.stderr)


def register_installed(name: str, registry: R) -> R:
    """Register the plugins that are installed; what is wrong with one is a warning of the command.

    Returns the registry.
    """
    for problem in discover(registry):
        print_message(name, f"warning: {problem}")
    return registry


def command_parser(name: str, about: str) -> argparse.ArgumentParser:
    """A parser whose help has paragraphs; what is not given leaves the namespace's own defaults."""
    return argparse.ArgumentParser(
        prog=name,
        description=about,
        epilog=EXIT,
        argument_default=argparse.SUPPRESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def time_option(text: str) -> float:
    """Read the value of an option: a time, as Unix seconds."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except (ValueError, OverflowError):
        wanted = "wanted a time as 2026-07-24T06:52:45Z"
        raise argparse.ArgumentTypeError(f"{wanted}, found {text!r}") from None


Json = dict[str, Any]


def dump_report(dump: Dump) -> Json:
    """Return which objects were read, and which were not."""
    return {
        "objects": dict(sorted(dump.objects.items())),
        "skipped": dict(sorted(dump.skipped.items())),
        "rejections": dump.rejections,
        "rejected": [str(one) for one in dump.rejected],
        "cuts": dump.cuts,
        "cut": dump.cut,
    }


def time_of(dump: Dump, path: Path | None) -> float:
    """The time of a dump's newest NodeMetric in Unix seconds; without one, now.

    Raises:
        OptionError: there is no node in what was read from the path.
    """
    if not dump.objects["node"]:
        wrong = f"; {dump.rejected[0]}" if dump.rejected else ""
        hint = f"make one with `kubectl get nodes,pods,… -A -o json`{wrong}"
        raise OptionError(str(path), "no node", hint)
    return SystemClock().wall() if dump.newest_report is None else dump.newest_report


def dump_view(report: Mapping[str, Any]) -> "Iterator[RenderableType]":
    """The lines of such a report."""
    # Here, not above: it brings rich, 4 MiB, and daemons import this module for other things.
    from koord.component.terminal import prose

    yield prose(f"read: {_amounts(report['objects']) or 'nothing'}")
    if report["skipped"]:
        yield prose(f"not read, as of no use here: {_amounts(report['skipped'])}")
    for text in report["rejected"]:
        yield prose(f"malformed, left out: {text}", "yellow")
    more = report["rejections"] - len(report["rejected"])
    if more:
        yield prose(f"malformed, left out: {more} more", "yellow")
    for text in report["cut"]:
        yield prose(f"read in part, left out of {text}", "yellow")
    if report["cuts"] > len(report["cut"]):
        yield prose(f"read in part: {report['cuts'] - len(report['cut'])} more", "yellow")


def time_text(seconds: float) -> str:
    """Unix seconds as Kubernetes writes them."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _amounts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
