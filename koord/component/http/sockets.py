"""Listening sockets, with errors that name the cause."""

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from koord.util.errors import KoordError, OptionError
from koord.util.goformat import split_address
from koord.util.ownedfiles import OwnedPath

_UNSENT_SECONDS = 30  # after which a client that does not read loses its connection
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)  # it may be switched off
ACCEPTS_A_TURN = 2
_LONGEST_UNIX_PATH = 107  # bytes; struct sockaddr_un

Admit = Callable[[socket.socket, Any], bool]
"""Returns whether a connection from an address is served, and not closed at once."""


class ListenError(KoordError):
    """An address cannot be listened on. The daemon does not start without it."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a TCP server. An empty host is every address of the machine."""

    host: str
    port: int  # 0: any free one

    @classmethod
    def parse(cls, text: str, option: str = "addr") -> "Address":
        """Return the address that a flag says, as Go programs write it: ":9316", "[::1]:9316".

        Raises:
            OptionError: it is not one.
        """
        try:
            return cls(*split_address(text))
        except ValueError as err:
            raise OptionError(option, text, str(err)) from err

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class GuardedListener(socket.socket):
    """A listening socket that hangs up on clients that are not admitted.

    It does so before the client costs anything: a TLS handshake may take its time. In each turn of
    the event loop it accepts only a few clients, so that the first ones are served in between.
    """

    def __init__(self, listening: socket.socket, admit: Admit) -> None:
        """Take over a socket."""
        super().__init__(fileno=listening.detach())
        self.setblocking(False)
        self._admit = admit
        self._in_a_row = 0

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a client; raise BlockingIOError if it is not admitted or the turn is used up."""
        if self._in_a_row == ACCEPTS_A_TURN:
            self._in_a_row = 0
            raise BlockingIOError  # for the event loop: look again in the next turn
        try:
            connection, address = super().accept()
        except OSError:
            self._in_a_row = 0
            raise
        self._in_a_row += 1
        if not self._admit(connection, address):
            connection.close()
            raise BlockingIOError
        return connection, address


def listen_tcp(address: Address) -> socket.socket:
    """A listening socket; for host "" it takes IPv4 and IPv6 as far as the machine has them.

    May look up a host name and, when the port is taken, all processes: call it off the loop.

    Raises:
        ListenError: the port is in use, or the address is not one of this machine.
    """
    try:
        sock = _bind_tcp(address)
    except UnicodeError as err:
        raise ListenError(f"{address}: wanted a host name, found none; correct --addr") from err
    except OSError as err:
        raise ListenError(_tcp_problem(address, err)) from err
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNSENT_SECONDS * 1000)
    sock.setblocking(False)
    return sock


def listen_unix(path: OwnedPath) -> socket.socket:
    """A listening Unix socket with mode 0600, in place of a stale one without a listener.

    Raises:
        ListenError: a process listens there, something else is there, or it cannot be made.
    """
    length = len(os.fsencode(path.path))  # which clients connect to
    if length > _LONGEST_UNIX_PATH:
        raise ListenError(
            f"{path}: wanted a socket path of at most {_LONGEST_UNIX_PATH} bytes, "
            f"found {length}; choose a shorter --run-dir"
        )
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path.address)
        # Before listen: until then no client can connect.
        os.chmod(path.name, 0o600, dir_fd=path.directory.descriptor)
        sock.listen()
    except OSError as err:
        sock.close()
        raise ListenError(
            f"{path}: wanted to listen here, found {err.strerror}; "
            "choose a --run-dir that this user can write to"
        ) from err
    sock.setblocking(False)
    return sock


def _bind_tcp(address: Address) -> socket.socket:
    if address.host:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((address.host, address.port), family=family, backlog=128)
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(
                ("", address.port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128
            )
        except OSError as err:
            if err.errno not in _NO_IPV6:
                raise
    return socket.create_server(("", address.port), backlog=128)


def _tcp_problem(address: Address, err: OSError) -> str:
    wanted = f"{address}: wanted to listen here"
    if err.errno == errno.EADDRINUSE:
        holder = _listener(address.port)
        return (
            f"{wanted}, found port {address.port} in use{holder}; "
            "stop what uses it or choose another --addr"
        )
    if err.errno == errno.EACCES:
        return f"{wanted}, found no permission; use a port from 1024 on or add CAP_NET_BIND_SERVICE"
    return f"{wanted}, found {err.strerror or err}; choose an --addr of this machine"


def _listener(port: int) -> str:
    """Return the process that listens on the port as part of a message; "": it is not visible."""
    import psutil  # only after a failed start: it costs memory

    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            local = connection.laddr
            if connection.status == psutil.CONN_LISTEN and local and local.port == port:
                if connection.pid is None:
                    return " by another user's process"
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return ""


def _remove_stale(path: OwnedPath) -> None:
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # nothing there, or bind will say what is wrong
    if not stat.S_ISSOCK(mode):
        raise ListenError(
            f"{path}: wanted a socket or nothing, found another kind of file; remove it"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path.address)
        except ConnectionRefusedError:
            path.unlink()
            return
        except FileNotFoundError:
            return
        except OSError as err:  # a timeout: the backlog is full, so a process listens
            raise ListenError(f"{path}: wanted a free socket, found {err}; {_SECOND}") from err
    raise ListenError(f"{path}: wanted a free socket, found another daemon on it; {_SECOND}")


_SECOND = "stop it or choose another --run-dir"
