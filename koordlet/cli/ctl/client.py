"""Asks the daemon of a run directory over its control socket."""

import http.client
import json
import os
import pwd
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from koord.util.errors import KoordError
from koordlet.daemon.environment import CONTAINER_RUN_DIR, HOST_RUN_DIR, default_run_dir

SOCKET = "ctl.sock"
MAX_BYTES = 64 << 20  # of a response, or of a line of a long one
TIMEOUT = 10.0  # seconds for one response; the slowest takes some tens of milliseconds

_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid


class NoDaemon(KoordError):
    """No daemon listens on the control socket."""


class NotPermitted(KoordError):
    """The daemon belongs to another user."""


class UntrustedSocket(KoordError):
    """The control socket is served by another user's process."""


class BadResponse(KoordError):
    """The daemon answered late, not at all, or that it cannot answer now."""


class BadRequest(KoordError):
    """The daemon says what is wrong with the question."""


def default_run_dirs(uid: int, environ: Mapping[str, str]) -> list[Path]:
    """The run directories to try: this user's own, the host's, that of Koordinator's DaemonSet."""
    own = default_run_dir(host_mode=True, uid=uid, environ=environ)
    return list(dict.fromkeys([own, HOST_RUN_DIR, CONTAINER_RUN_DIR]))


@dataclass(frozen=True, slots=True)
class CtlClient:
    """Asks the first daemon that answers in some run directories, each time anew."""

    run_dirs: Sequence[Path]
    timeout: float = TIMEOUT

    def get(self, *path: str, query: Mapping[str, str | None] | None = None) -> Any:
        """Return a response, decoded; parts of the path are quoted, and None is not sent.

        Raises:
            NoDaemon, NotPermitted, UntrustedSocket, BadResponse, BadRequest: the message says what
                to do.
        """
        given = {name: value for name, value in (query or {}).items() if value is not None}
        return self._request("GET", _target(path) + (f"?{urlencode(given)}" if given else ""))

    def stream(self, *path: str, query: Mapping[str, str], silence: float) -> Iterator[bytes]:
        """Yield the lines of a long response; silence is how many seconds may be without one.

        Raises:
            NoDaemon, NotPermitted, UntrustedSocket, BadResponse, BadRequest: the message says what
                to do.
        """
        target = f"{_target(path)}?{urlencode(query)}"
        connection = http.client.HTTPConnection("koordlet", timeout=self.timeout)
        connection.sock = self.connect()
        connection.sock.settimeout(silence)
        try:
            connection.request("GET", target, headers={"Connection": "close"})
            response = connection.getresponse()
            if response.status != 200:
                _decoded(response.status, _body(response), target)
            while line := response.readline(MAX_BYTES + 1):
                if len(line) > MAX_BYTES:
                    raise _too_long()
                yield line
        except (OSError, http.client.HTTPException) as err:
            raise BadResponse(
                f"wanted lines from the daemon, found none for {silence:g} s or the connection "
                "closed: it ended meanwhile, or its log says why"
            ) from err
        finally:
            connection.close()

    def post(self, *path: str) -> Any:
        """Give a command and return its result. Raises what get does."""
        return self._request("POST", _target(path))

    def _request(self, method: str, target: str) -> Any:
        connection = http.client.HTTPConnection("koordlet", timeout=self.timeout)
        connection.sock = self.connect()
        try:
            connection.request(method, target, headers={"Connection": "close"})
            response = connection.getresponse()
            status, body = response.status, _body(response)
        except TimeoutError as err:
            raise BadResponse(
                f"wanted an answer from the daemon, found none within {self.timeout:g} s; "
                "its log and /livez say why"
            ) from err
        except (OSError, http.client.HTTPException) as err:
            raise BadResponse(
                "wanted an answer from the daemon, found the connection closed: "
                "it ended meanwhile or has too many; try again"
            ) from err
        finally:
            connection.close()
        return _decoded(status, body, target)

    def connect(self) -> socket.socket:
        """Return a connection to the first daemon that answers, whose owner was checked.

        Raises:
            NoDaemon, NotPermitted, UntrustedSocket: the message says what to do.
        """
        failures: dict[Path, OSError] = {}
        for path in (run_dir / SOCKET for run_dir in self.run_dirs):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(self.timeout)
            try:
                sock.connect(os.fspath(path))
            except OSError as err:
                sock.close()
                failures[path] = err
            else:
                _check_server(path, sock)
                return sock
        raise _unreachable(failures)


def _check_server(path: Path, sock: socket.socket) -> None:
    """See that the other end is root's or the caller's own. Raises UntrustedSocket."""
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(found)
    if uid not in (0, os.geteuid()):
        sock.close()
        raise UntrustedSocket(
            f"{path}: wanted a daemon of root or of this user, found process {pid} of user {uid}; "
            "ask as that user, or find the process that made the socket"
        )


def _body(response: http.client.HTTPResponse) -> bytes:
    """Return the whole response; raises BadResponse when it is longer than any of the daemon's."""
    body = response.read(MAX_BYTES + 1)
    if len(body) > MAX_BYTES:
        raise _too_long()
    return body


def _too_long() -> BadResponse:
    return BadResponse(
        f"wanted an answer of at most {MAX_BYTES >> 20} MiB from the daemon, found more; "
        "ask for less, for example for one pod"
    )


def _target(path: Sequence[str]) -> str:
    return "/" + "/".join(quote(part, safe="") for part in path)


def _decoded(status: int, body: bytes, target: str) -> Any:
    text = body.decode("utf-8", "replace").strip()
    if status == 400:
        raise BadRequest(text)
    if status in (404, 405):
        raise BadRequest(f"{target}: unknown to the daemon; it may be of another version")
    if status != 200:
        raise BadResponse(text)
    try:
        return json.loads(text)
    except ValueError as err:
        raise BadResponse(f"wanted JSON from the daemon, found {text[:60]!r}") from err


def _unreachable(failures: Mapping[Path, OSError]) -> KoordError:
    """The most informative of the reasons why no socket could be connected to."""
    for path, err in failures.items():
        if isinstance(err, PermissionError):
            return NotPermitted(
                f"{path}: wanted to ask the daemon, found no permission; {_advice(path.parent)}"
            )
    for path, err in failures.items():
        if isinstance(err, ConnectionRefusedError):
            return NoDaemon(
                f"{path}: wanted a running daemon, found only the socket of one that was killed; "
                "start koordlet"
            )
        if not isinstance(err, FileNotFoundError):
            return NoDaemon(f"{path}: wanted a running daemon, found {err.strerror or err}")
    places = " or ".join(str(path.parent) for path in failures)
    return NoDaemon(
        f"wanted a running daemon, found no {SOCKET} in {places}; "
        "start koordlet, or give its --run-dir"
    )


def _advice(run_dir: Path) -> str:
    try:
        owner = pwd.getpwuid(run_dir.stat().st_uid).pw_name
    except (OSError, KeyError):
        owner = "root"
    return f"it is for {owner} only: use sudo{'' if owner == 'root' else f' -u {owner}'}"
