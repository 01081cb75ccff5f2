"""The process of a daemon: signals, systemd notification, garbage collector tuning."""

import asyncio
import ctypes
import gc
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from typing import Any

from koord.util.health import Health, HealthStatus, worst
from koord.util.logs import get_logger
from koord.util.stop import Stop

log = get_logger("koord.daemon")


def handle_signals(stop: Stop, reread: Callable[[], None] | None) -> None:
    """Handle the signals on the running loop; a second one to stop ends the process at once.

    reread None: there is no config file.
    """
    loop = asyncio.get_running_loop()

    def end() -> None:
        if stop.is_set():
            log.warning("daemon.killed_by_second_signal")
            os._exit(1)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGHUP, reread or _ignore)


def kill_process_after(seconds: float) -> None:
    """End the process if a thread that hangs in the kernel keeps it from ending by itself."""

    def end() -> None:
        log.error("daemon.stop_forced", after_s=seconds)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _ignore() -> None:
    log.warning("sighup.ignored", note="SIGHUP reads the file of --config again; there is none")


class SystemdNotifier:
    """Sends state lines to systemd; does nothing when no one listens."""

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        self._address = environ.pop("NOTIFY_SOCKET", "")
        timeout_us = environ.pop("WATCHDOG_USEC", "")
        pid = environ.pop("WATCHDOG_PID", "")
        ours = not pid or pid == str(os.getpid())
        self._watchdog_s = int(timeout_us) / 1e6 if timeout_us.isdigit() and ours else 0.0

    def send(self, *lines: str) -> None:
        """Send lines such as READY=1. A lost message is not worth failing for."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.connect(address)
                sock.sendall("\n".join(lines).encode())
        except OSError:
            pass

    async def feed_watchdog(self, stop: Stop, health: Health) -> None:
        """Feed the watchdog while what /livez looks at works; return on stop.

        Two feeds fit into the timeout systemd has set; without a watchdog this returns at once.
        """
        if not self._watchdog_s:
            return
        async for _ in stop.every(self._watchdog_s / 3):
            parts = health.parts(live=True)
            if worst(parts) is HealthStatus.UNHEALTHY:
                reasons = "; ".join(f"{n}: {p.reason}" for n, p in parts.items() if p.reason)
                self.send(f"STATUS=not alive: {reasons}")
            else:
                self.send("WATCHDOG=1")


_M_ARENA_MAX = -8  # of glibc's malloc.h


def use_one_malloc_arena() -> None:
    """Let all threads allocate from one arena of glibc; call it before there are threads.

    Else each thread gets one of its own, in which stays what it has freed: 2.5 of 77 MiB of an
    agent with 150 pods. The interpreter's lock keeps threads from waiting for the arena. Source:
    mallopt(3). Does nothing with another C library.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


class _DefaultContext(ssl.SSLContext):
    """Reads the CA certificates of the system with its first connection."""

    _is_complete = False

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        self._complete()
        return super().wrap_bio(*args, **options)

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        self._complete()
        return super().wrap_socket(*args, **options)

    def _complete(self) -> None:
        if not self._is_complete:
            self._is_complete = True
            self.set_default_verify_paths()


@contextmanager
def default_cas_on_use() -> Iterator[None]:
    """Let TLS contexts that are made inside read the CAs of the system when they are used.

    For the import of aiohttp, which makes two for connections that name none. Ours do name one, a
    plugin's may not. With the 144 CAs of Debian that was 1.9 of the 72 MiB of an agent, and 40 of
    the 450 ms of CPU until all is imported.
    """

    def postpone(context: ssl.SSLContext) -> None:
        context.__class__ = _DefaultContext

    # The C class has the method: without this one it is that again.
    ssl.SSLContext.set_default_verify_paths = postpone  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        del ssl.SSLContext.set_default_verify_paths


THRESHOLDS = (2_000, 10, 10)  # young objects, and generations, before a collection
GROWING = (1_000, 5, 4_000)  # at most 6,000 objects at a time; all after 20 million
WARM_UP = 10.0  # seconds in which the first pass, report and scrape import and make what stays


def freeze_heap() -> None:
    """Exclude from garbage collection all objects that exist now, and again at WARM_UP.

    For the main program, on the running loop. Reference counts still free the excluded objects;
    only cycles among them would stay for good.
    """
    gc.set_threshold(*THRESHOLDS)
    _freeze()
    asyncio.get_running_loop().call_later(WARM_UP, _freeze)


def freeze_growing_heap() -> None:
    """Freeze the heap while a whole cluster is still to come: no full collection in between.

    A collection of 150,000 pods takes a quarter of a second. Call restore_gc once they are there.
    Collections in between are small: of 20,000 objects that each had to be fetched from memory they
    took 6 ms, and up to 15 next to other programs. All together cost what fewer, larger ones do.
    """
    gc.set_threshold(*GROWING)
    _freeze()


def restore_gc() -> None:
    """Exclude from garbage collection all objects that exist now, without a collection."""
    gc.freeze()


def _freeze() -> None:
    gc.collect()
    gc.freeze()
