"""Gives processes core scheduling cookies.

The kernel hands on cookies from thread to thread only: one that is to be shared is taken over from
a process that has it, by a thread of koordlet that is made for this, and ends with it; no cookie is
what such a thread has by itself. koordlet's other threads never have one.
"""

import os
import threading
from collections.abc import Callable, Iterator

from koordlet.executor.claims.claim import Key
from koordlet.executor.kernel.processes import check_process, open_process
from koordlet.host.errors import KernelFileError
from koordlet.host.host import Host
from koordlet.host.proc.cookies import (
    CREATE,
    GET,
    NEW,
    NO_COOKIE,
    SHARE_FROM,
    SHARE_TO,
    THREAD,
    THREAD_GROUP,
    Prctl,
    explained,
    parse_cookie,
    prctl,
)

MOST_LOOKED_AT = 65536  # processes, for one with a cookie


class Cookies:
    """A Medium; see koordlet.executor.kernel.media."""

    def __init__(self, host: Host, call: Prctl = prctl) -> None:
        self._proc = host.paths.proc
        self._call = call
        self._holders: dict[int, int] = {}  # pid by cookie, of the process it was found with last

    def identity(self, key: Key) -> int:
        """None: its start time tells a process apart, and is looked at. Raises OSError."""
        os.close(open_process(self._proc, key.target))
        return 0

    def write(self, key: Key, identity: int, content: str) -> None:
        """As Medium.write, for all threads of a process; those that it makes later inherit it."""
        process = open_process(self._proc, key.target)
        try:
            self._set(int(key.target.place), parse_cookie(content.encode()))
            check_process(process, key.target)
        except OSError as err:
            path = f"{self._proc}/{key.target.place} (core scheduling cookie)"
            raise explained(path, err) from err
        finally:
            os.close(process)

    def _set(self, pid: int, cookie: int) -> None:
        if cookie == NEW:
            self._call(CREATE, pid, THREAD_GROUP)
            return
        holder = 0 if cookie == NO_COOKIE else self._holder(cookie)
        _on_fresh_thread(lambda: self._share(cookie, holder, pid))

    def _share(self, cookie: int, holder: int, pid: int) -> None:
        """Have a process take this thread's cookie. Raises OSError, KernelFileError."""
        if holder:
            try:
                self._call(SHARE_FROM, holder, THREAD)
            except OSError as err:
                raise _not_there(cookie, err.strerror or repr(err)) from err
        found = self._call(GET, 0, THREAD)
        if found != cookie:
            raise _not_there(cookie, f"{found}, as it has just changed")
        self._call(SHARE_TO, pid, THREAD_GROUP)

    def _holder(self, cookie: int) -> int:
        """Return a process that has the cookie. Raises KernelFileError: there is none."""
        for pid in self._candidates(cookie):
            try:
                if self._call(GET, pid, THREAD) == cookie:
                    self._holders[cookie] = pid
                    return pid
            except OSError:
                continue
        self._holders.pop(cookie, None)
        raise _not_there(cookie, "none that has it")

    def _candidates(self, cookie: int) -> Iterator[int]:
        if cookie in self._holders:
            yield self._holders[cookie]
        pids = (int(name) for name in os.listdir(self._proc) if name.isdigit())
        for _, pid in zip(range(MOST_LOOKED_AT), pids, strict=False):
            yield pid


def _not_there(cookie: int, found: str) -> KernelFileError:
    return KernelFileError(
        f"core scheduling cookie {cookie}",
        wanted="a process to take it over from",
        found=found,
        hint="it ends with the last process that has it",
    )


def _on_fresh_thread(work: Callable[[], None]) -> None:
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


def medium(host: Host) -> Cookies:
    """As koordlet.executor.kernel.media wants it."""
    return Cookies(host)
