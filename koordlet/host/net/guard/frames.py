"""Messages between the agent and its helper: lines of JSON over a pair of sockets."""

import json
import socket
from typing import Any

from koord.util.documents import decode_line
from koord.util.errors import InvalidObject, KoordError
from koordlet.host.errors import KernelFileError, Unsupported
from koordlet.host.net.tc.tree import ForeignQdisc, TrafficRefused

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
