"""Core scheduling cookies of processes: only threads with the same one share a core's siblings.

The kernel makes up a cookie's number; of two numbers only whether they are equal matters, and only
until the next boot. 0 is no cookie.

Source: prctl(2), PR_SCHED_CORE; kernel docs, admin-guide/hw-vuln/core-scheduling.
"""

import ctypes
import errno
import os
from collections.abc import Callable

from koordlet.host.errors import KernelFileError, Unsupported, Vanished
from koordlet.host.kerneltext import Text
from koordlet.host.paths import HostPaths

NEEDS = "CONFIG_SCHED_CORE (Linux 5.14) and a CPU with hyper-threading that is on"
NEW = -1  # value that asks for a cookie that nobody has
NO_COOKIE = 0
OWN = "self"  # the calling thread
GET, CREATE, SHARE_TO, SHARE_FROM = range(4)
THREAD, THREAD_GROUP = range(2)
_PR_SCHED_CORE = 62
_NEW = "new"  # the text
_MOST = 2**64 - 1

Prctl = Callable[[int, int, int], int]

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(command: int, pid: int, scope: int = THREAD) -> int:
    """Make a call about a process, 0 for the calling thread; return the cookie for GET, else 0.

    Raises:
        OSError: EINVAL not built in, ENODEV no hyper-threading, ESRCH it has ended, EPERM.
    """
    cookie = ctypes.c_uint64()
    unsigned = ctypes.c_ulong
    place = ctypes.byref(cookie) if command == GET else None
    arguments = (unsigned(command), unsigned(pid), unsigned(scope), place)
    if _libc.prctl(_PR_SCHED_CORE, *arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return cookie.value


def parse_cookie(data: bytes) -> int:
    """Return the number of a cookie. Raises ValueError."""
    return _value(data.decode("ascii", "replace").removesuffix("\n"))


def _value(text: str) -> int:
    if text == _NEW:
        return NEW
    if text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= _MOST:
        return int(text)
    raise ValueError(f"wanted a cookie, found {text!r:.40}")


def _of(value: int) -> str:
    if isinstance(value, bool) or not isinstance(value, int) or not NEW <= value <= _MOST:
        raise ValueError(f"wanted a cookie, {NO_COOKIE} for none, {NEW} for a new one; {value!r}")
    return _NEW if value == NEW else str(value)


def is_cookie(text: str) -> bool:
    """Whether a process may have it: a number, and not the wish for a new one."""
    return text != _NEW


COOKIE: Text[int] = Text(_of, lambda data: _of(parse_cookie(data)), _value, made=_NEW)


class CookieReader:
    """Reads the cookie of a process's first thread; claims give all its threads the same."""

    def __init__(self, paths: HostPaths, call: Prctl = prctl) -> None:
        self._proc = paths.proc
        self._call = call

    def path(self, pid: str) -> str:
        """What messages call it."""
        return f"{self._proc}/{pid} (core scheduling cookie)"

    def read(self, pid: str) -> bytes:
        """As ObjectReader.read."""
        path = self.path(pid)
        try:
            return b"%d\n" % self._call(GET, 0 if pid == OWN else int(pid), THREAD)
        except OSError as err:
            raise explained(path, err) from err


def explained(path: str, err: OSError) -> KernelFileError:
    """Return the error for a call that failed."""
    found = err.strerror or repr(err)
    if err.errno in (errno.EINVAL, errno.ENODEV):
        return Unsupported.here(path, found, NEEDS)
    if err.errno == errno.ESRCH:
        return Vanished(path, wanted="its process", found=found, hint="it has ended")
    hint = "run as root with CAP_SYS_PTRACE, and with the node's pids (hostPID)"
    return KernelFileError(path, wanted="its cookie", found=found, hint=hint)


def reader(paths: HostPaths) -> CookieReader:
    """As koordlet.host.objects wants it."""
    return CookieReader(paths)
