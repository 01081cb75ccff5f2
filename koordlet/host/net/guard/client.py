"""The agent's side of the helper: a TrafficControl that blocks, but never for long."""

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from koord.util.clock import Clock, SystemClock
from koord.util.documents import decode_line
from koord.util.errors import InvalidObject, KoordError
from koord.util.timebudget import Backoff
from koordlet.host.cgroups.tree import CgroupFs
from koordlet.host.errors import KernelFileError, Unsupported
from koordlet.host.net.tc.tree import ForeignQdisc, TrafficRefused
from koordlet.host.paths import HostPaths

VERSION = 1
MAX_MESSAGE_BYTES = 4 << 20  # of a line: a tree has at most 1 MiB
_CHUNK = 1 << 16

_KINDS: dict[str, type[KernelFileError]] = {
    "foreign": ForeignQdisc,
    "refused": TrafficRefused,
    "unsupported": Unsupported,
    "kernel": KernelFileError,
}


class ChannelError(KoordError):
    """The other side has ended, hangs, or says what is no line of this version."""


class MalformedMessage(ChannelError):
    """A whole line that says nothing; the next one may."""


class Channel:
    """One end. limit: seconds that the other side may keep us waiting amid a line."""

    def __init__(self, end: socket.socket, limit: float) -> None:
        self._end = end
        self._limit = limit
        self._rest = b""

    def fileno(self) -> int:
        """For select."""
        return self._end.fileno()

    def close(self) -> None:
        """The other side sees the end."""
        self._end.close()

    def send(self, message: dict[str, Any]) -> None:
        """Send a line. Raises ChannelError."""
        self._end.settimeout(self._limit)
        try:
            self._end.sendall(json.dumps({"v": VERSION, **message}).encode() + b"\n")
        except OSError as err:
            raise ChannelError(f"it cannot be written to: {err.strerror or err}") from err

    def receive(self) -> dict[str, Any]:
        """Return the next line. Raises ChannelError, of a line as such MalformedMessage."""
        self._end.settimeout(self._limit)
        found = [self._rest]
        size = len(self._rest)
        while b"\n" not in found[-1]:
            if size > MAX_MESSAGE_BYTES:
                raise ChannelError(f"more than {MAX_MESSAGE_BYTES} bytes in a line")
            try:
                chunk = self._end.recv(_CHUNK)
            except TimeoutError as err:
                raise ChannelError(f"no answer within {self._limit:g} s") from err
            except OSError as err:
                raise ChannelError(f"it cannot be read from: {err.strerror or err}") from err
            if not chunk:
                raise ChannelError("it has ended")
            found.append(chunk)
            size += len(chunk)
        line, _, self._rest = b"".join(found).partition(b"\n")
        return parse_message(line)


def parse_message(line: bytes) -> dict[str, Any]:
    """Return the message of a line. Raises MalformedMessage: it is none of this version."""
    try:
        message = decode_line(line, "line")
    except InvalidObject as err:
        raise MalformedMessage(str(err)) from err
    if not isinstance(message, dict) or message.get("v") != VERSION:
        raise MalformedMessage(f"wanted a line of version {VERSION}")
    return message


def error_message(err: Exception) -> dict[str, Any]:
    """Return what says an error of TrafficControl, for raise_error on the other side."""
    if isinstance(err, KernelFileError):
        kind = next(name for name, each in _KINDS.items() if isinstance(err, each))
        parts = {"path": err.path, "wanted": err.wanted, "found": err.found, "hint": err.hint}
        return {"error": kind, **parts}
    if isinstance(err, OSError):
        return {"error": "os", "errno": err.errno or 0, "found": err.strerror or str(err)}
    return {"error": "value", "found": str(err)}


def raise_error(message: dict[str, Any]) -> None:
    """Raise the error of a response, if it is one."""
    kind = message.get("error")
    if kind is None:
        return
    if kind == "os":
        raise OSError(message.get("errno"), message.get("found"))
    if kind == "value":
        raise ValueError(message.get("found"))
    path, wanted, found, hint = (str(message.get(k)) for k in ("path", "wanted", "found", "hint"))
    raise _KINDS.get(str(kind), KernelFileError)(path, wanted=wanted, found=found, hint=hint)


RESPONSE_TIMEOUT = 10.0  # seconds; a write looks for the API server first, for 2 s
INITIAL_BACKOFF, MAX_BACKOFF = 1.0, 60.0
STATE_DIRECTORY = "koordlet-network"  # below /var/run
_PROGRAM = "koordlet.host.net.guard.program"
_PASSED_ENVIRONMENT = ("PATH", "LANG")
_WHAT = "helper for traffic control"
_HINT = "it is started anew; see the log"


class HelperTraffic:
    """A TrafficControl through the helper. Any thread may use it; one at a time is served.

    The first call starts the helper. A helper that fails or hangs is killed; the next helper takes
    over its pending changes, from the record.
    """

    def __init__(
        self,
        start: Callable[[], tuple[Channel, "subprocess.Popen[bytes]"]],
        clock: Clock,
    ) -> None:
        """start makes a helper. Raises ChannelError, OSError."""
        self._start = start
        self._clock = clock
        self._lock = threading.Lock()
        self._helper: tuple[Channel, subprocess.Popen[bytes]] | None = None
        self._backoff = Backoff(INITIAL_BACKOFF, MAX_BACKOFF)
        self._not_before = clock.monotonic()
        self._problem = ""

    def read(self, interface: str) -> bytes | None:
        """Return the state of an interface, read by the helper; None: no such interface."""
        found = self._request(op="read", interface=interface)
        return None if found is None else str(found).encode("ascii", "replace")

    def identity(self, interface: str) -> int:
        """Return the ifindex of an interface, read by the helper."""
        found = self._request(op="identity", interface=interface)
        if isinstance(found, bool) or not isinstance(found, int):
            raise _failed(f"no number of an interface: {found!r:.60}")
        return found

    def veth_peer(self, pid: int) -> str:
        """Return the node's end of a process's veth, found by the helper; "": it has none."""
        return str(self._request(op="end", pid=pid))

    def supports_cgroup_map(self) -> bool:
        """Return whether the helper can classify packets by cgroups of v2."""
        return self._request(op="sockets") is True

    def write(self, interface: str, identity: int, content: bytes) -> None:
        """Set the traffic tree of an interface through the helper."""
        text = content.decode("ascii")
        self._request(op="write", interface=interface, identity=identity, content=text)

    def close(self) -> None:
        """Let the helper end: by itself, once no change is pending."""
        with self._lock:
            if self._helper is not None:
                self._helper[0].close()
                self._helper = None

    def _request(self, **request: object) -> Any:
        with self._lock:
            try:
                channel = self._running()
                channel.send(request)
                found = channel.receive()
            except (ChannelError, OSError) as err:
                self._end(str(err))
                raise _failed(self._problem) from err
            self._backoff.reset()
        raise_error(found)
        return found.get("ok")

    def _running(self) -> Channel:
        if self._helper is None:
            if (wait := self._not_before - self._clock.monotonic()) > 0:
                raise _failed(f"{self._problem}; the next start is in {wait:.0f} s")
            self._helper = self._start()
            started = self._helper[0].receive()
            if "error" in started:
                raise ChannelError(f"it cannot work here: {started.get('found')}")
        return self._helper[0]

    def _end(self, problem: str) -> None:
        self._problem = problem
        self._not_before = self._clock.monotonic() + self._backoff.next()
        if self._helper is not None:
            channel, process = self._helper
            channel.close()
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            self._helper = None


def _failed(found: str) -> KernelFileError:
    return KernelFileError(_WHAT, wanted="an answer", found=found, hint=_HINT)


def api_server(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Return where the API server is, as a pod knows it; None outside of a cluster."""
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "")
    try:
        address = str(ip_address(host))
    except ValueError:
        return None
    ok = port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 1 << 16
    return (address, int(port)) if ok else None


def helper_traffic(
    paths: HostPaths, *, network: str, cgroup: str, environ: Mapping[str, str] = os.environ
) -> HelperTraffic:
    """Return the traffic control of the node.

    network, cgroup: the files of its namespaces; "": this process is in it.
    """
    config = {
        "network": network,
        "cgroup": cgroup,
        "state": str(paths.var_run / STATE_DIRECTORY),
        "api": api_server(environ),
        "cgroups": [str(root) for root in CgroupFs(paths.cgroup).hierarchies()],
    }
    traffic = HelperTraffic(lambda: start(config), SystemClock())
    atexit.register(traffic.close)
    return traffic


def start(config: Mapping[str, object]) -> tuple[Channel, "subprocess.Popen[bytes]"]:
    """Start a helper; see program for what config says. Raises OSError."""
    ours, its = socket.socketpair()
    with its:
        try:
            process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-I", "-m", _PROGRAM, json.dumps(config)],
                stdin=its.fileno(),
                stdout=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _PASSED_ENVIRONMENT if name in os.environ},
                start_new_session=True,
                cwd=Path("/"),
            )
        except OSError:
            ours.close()
            raise
    return Channel(ours, RESPONSE_TIMEOUT), process
