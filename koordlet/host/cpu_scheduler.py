"""The kernel's CPU scheduler: its features, and core scheduling cookies, read and set.

Only threads with the same cookie share a core's siblings. The kernel makes up a cookie's number;
of two numbers only equality matters, until the next boot. 0 is no cookie.

The kernel hands on cookies from thread to thread only: a shared one is taken over from a process
that has it, by a thread of koordlet that is made for this and ends with it. koordlet's other
threads never have one.

Source: prctl(2), PR_SCHED_CORE; kernel docs, admin-guide/hw-vuln/core-scheduling.
"""

import ctypes
import errno
import os
import threading
from collections.abc import Callable, Iterator

from koordlet.host.errors import KernelFileError, Unsupported, Vanished
from koordlet.host.paths import HostPaths
from koordlet.host.processes import check_process, open_process
from koordlet.host.resource import ObjectKey, Text

_MAINLINE = """
ALT_PERIOD ATTACH_AGE_LOAD BASE_SLICE CACHE_HOT_BUDDY DOUBLE_TICK GENTLE_FAIR_SLEEPERS HRTICK
HRTICK_DL LAST_BUDDY LATENCY_WARN LB_MIN NEXT_BUDDY NONTASK_CAPACITY RT_PUSH_IPI RT_RUNTIME_SHARE
SIS_AVG_CPU SIS_PROP START_DEBIT TTWU_QUEUE UTIL_EST UTIL_EST_FASTUP WAKEUP_PREEMPTION
WARN_DOUBLE_CLOCK WA_BIAS WA_IDLE WA_WEIGHT
"""
_ANOLIS = """
CORE_SCHED ID_ABSOLUTE_EXPEL ID_BOOK_CPU ID_EXPELLEE_NEVER_HOT ID_EXPELLER_SHARE_CORE ID_IDLE_AVG
ID_LAST_HIGHCLASS_STAY ID_LOAD_BALANCE ID_LOOSE_EXPEL ID_PUSH_EXPELLEE ID_RESCUE_EXPELLEE
"""
SCHED_FEATURE_NAMES = tuple((_MAINLINE + _ANOLIS).split())


def feature_parser(name: str) -> Callable[[bytes], int]:
    """Return what reads one feature from the list: 1 is on, 0 off."""

    def parse(data: bytes) -> int:
        words = data.decode().split()
        is_on, is_off = name in words, f"NO_{name}" in words
        if is_on == is_off:
            found = "both" if is_on else "neither of them"
            raise ValueError(f"wanted either {name} or NO_{name}, found {found}")
        return int(is_on)

    return parse


def feature_text(name: str) -> Text[int]:
    """The text that switches one feature: its name, or NO_ and its name."""
    parse = feature_parser(name)

    def of(value: int) -> str:
        if value not in (0, 1):
            raise ValueError(f"wanted 0 or 1, found {value!r:.60}")
        return name if value else f"NO_{name}"

    def value(text: str) -> int:
        if text not in (name, f"NO_{name}"):
            raise ValueError(f"wanted {name} or NO_{name}, found {text!r:.60}")
        return int(text == name)

    return Text(of, lambda data: of(parse(data)), value)


CORE_SCHED_NEEDS = "CONFIG_SCHED_CORE (Linux 5.14) and a CPU with hyper-threading that is on"
NEW_COOKIE = -1  # value that asks for a cookie that nobody has
NO_COOKIE = 0
CALLING_THREAD = "self"  # the calling thread
GET, CREATE, SHARE_TO, SHARE_FROM = range(4)
SCOPE_THREAD, SCOPE_THREAD_GROUP = range(2)
_PR_SCHED_CORE = 62
_NEW_TEXT = "new"  # the text
_MAX_COOKIE = 2**64 - 1

Prctl = Callable[[int, int, int], int]

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(command: int, pid: int, scope: int = SCOPE_THREAD) -> int:
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
    return _cookie_value(data.decode("ascii", "replace").removesuffix("\n"))


def _cookie_value(text: str) -> int:
    if text == _NEW_TEXT:
        return NEW_COOKIE
    if text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= _MAX_COOKIE:
        return int(text)
    raise ValueError(f"wanted a cookie, found {text!r:.40}")


def _cookie_text(value: int) -> str:
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not NEW_COOKIE <= value <= _MAX_COOKIE
    ):
        raise ValueError(
            f"wanted a cookie, {NO_COOKIE} for none, {NEW_COOKIE} for a new one; {value!r}"
        )
    return _NEW_TEXT if value == NEW_COOKIE else str(value)


def is_cookie(text: str) -> bool:
    """Whether the text is a cookie that a process can have: a number, not NEW_COOKIE."""
    return text != _NEW_TEXT


COOKIE_TEXT: Text[int] = Text(
    _cookie_text,
    lambda data: _cookie_text(parse_cookie(data)),
    _cookie_value,
    kernel_generated=_NEW_TEXT,
)


class CookieReader:
    """Reads the cookie of a process's first thread; claims give all its threads the same."""

    def __init__(self, paths: HostPaths, call: Prctl = prctl) -> None:
        self._proc = paths.proc
        self._call = call

    def path(self, pid: str) -> str:
        """Return the name of the object in messages."""
        return f"{self._proc}/{pid} (core scheduling cookie)"

    def read(self, pid: str) -> bytes:
        """Return the cookie of a process as a line. Raises KernelFileError."""
        path = self.path(pid)
        try:
            return b"%d\n" % self._call(GET, 0 if pid == CALLING_THREAD else int(pid), SCOPE_THREAD)
        except OSError as err:
            raise cookie_error(path, err) from err


def cookie_error(path: str, err: OSError) -> KernelFileError:
    """Return the error for a call that failed."""
    found = err.strerror or repr(err)
    if err.errno in (errno.EINVAL, errno.ENODEV):
        return Unsupported.here(path, found, CORE_SCHED_NEEDS)
    if err.errno == errno.ESRCH:
        return Vanished(path, wanted="its process", found=found, hint="it has ended")
    hint = "run as root with CAP_SYS_PTRACE, and with the node's pids (hostPID)"
    return KernelFileError(path, wanted="its cookie", found=found, hint=hint)


MAX_PROCESSES_SCANNED = 65536  # processes, for one with a cookie


class CookieWriter:
    """The ObjectWriter of core scheduling cookies; see koordlet.host.object_writers."""

    def __init__(self, paths: HostPaths, call: Prctl = prctl) -> None:
        self._proc = paths.proc
        self._call = call
        self._holders: dict[int, int] = {}  # pid by cookie, of the process it was found with last

    def identity(self, key: ObjectKey) -> int:
        """Return 0: the start time, which is checked, identifies a process. Raises OSError."""
        os.close(open_process(self._proc, key.target))
        return 0

    def write(self, key: ObjectKey, identity: int, content: str) -> None:
        """Set the cookie of all threads of a process; threads that it makes later inherit it.

        Raises as ObjectWriter.write does.
        """
        process = open_process(self._proc, key.target)
        try:
            self._set(int(key.target.place), parse_cookie(content.encode()))
            check_process(process, key.target)
        except OSError as err:
            path = f"{self._proc}/{key.target.place} (core scheduling cookie)"
            raise cookie_error(path, err) from err
        finally:
            os.close(process)

    def _set(self, pid: int, cookie: int) -> None:
        if cookie == NEW_COOKIE:
            self._call(CREATE, pid, SCOPE_THREAD_GROUP)
            return
        holder = 0 if cookie == NO_COOKIE else self._holder(cookie)
        _on_new_thread(lambda: self._share(cookie, holder, pid))

    def _share(self, cookie: int, holder: int, pid: int) -> None:
        """Give this thread's cookie to a process. Raises OSError, KernelFileError."""
        if holder:
            try:
                self._call(SHARE_FROM, holder, SCOPE_THREAD)
            except OSError as err:
                raise _no_such_cookie(cookie, err.strerror or repr(err)) from err
        found = self._call(GET, 0, SCOPE_THREAD)
        if found != cookie:
            raise _no_such_cookie(cookie, f"{found}, as it has just changed")
        self._call(SHARE_TO, pid, SCOPE_THREAD_GROUP)

    def _holder(self, cookie: int) -> int:
        """Return a process that has the cookie. Raises KernelFileError: there is none."""
        for pid in self._candidates(cookie):
            try:
                if self._call(GET, pid, SCOPE_THREAD) == cookie:
                    self._holders[cookie] = pid
                    return pid
            except OSError:  # it has ended since; another one may have the cookie
                continue
        self._holders.pop(cookie, None)
        raise _no_such_cookie(cookie, "none that has it")

    def _candidates(self, cookie: int) -> Iterator[int]:
        if cookie in self._holders:
            yield self._holders[cookie]
        pids = (int(name) for name in os.listdir(self._proc) if name.isdigit())
        for _, pid in zip(range(MAX_PROCESSES_SCANNED), pids, strict=False):
            yield pid


def _no_such_cookie(cookie: int, found: str) -> KernelFileError:
    return KernelFileError(
        f"core scheduling cookie {cookie}",
        wanted="a process to take it over from",
        found=found,
        hint="it ends with the last process that has it",
    )


def _on_new_thread(work: Callable[[], None]) -> None:
    """Run work on a thread that ends with it; raise what it raises."""
    raised: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as err:  # raised below, in the thread that waits for it
            raised.append(err)

    thread = threading.Thread(target=run, name="cookie")
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
