"""Signals of a daemon: SIGINT and SIGTERM stop it, SIGHUP has it read its config file again."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable

from koord.util.logs import get_logger
from koord.util.stop import Stop

log = get_logger("koord.daemon")


def take_signals(stop: Stop, reread: Callable[[], None] | None) -> None:
    """Handle the signals on the running loop; a second one to stop ends the process at once.

    reread None: there is no config file.
    """
    loop = asyncio.get_running_loop()

    def end() -> None:
        if stop.is_set():
            log.warning("daemon.ended_by_second_signal")
            os._exit(1)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGHUP, reread or _ignore)


def end_process_after(seconds: float) -> None:
    """End the process if a thread that hangs in the kernel keeps it from ending by itself."""

    def end() -> None:
        log.error("daemon.stop_forced", after_s=seconds)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _ignore() -> None:
    log.warning("sighup.ignored", note="SIGHUP reads the file of --config again; there is none")
