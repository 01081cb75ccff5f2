"""Notifies systemd of the service's state. Source: sd_notify(3), the NOTIFY_SOCKET protocol."""

import os
import socket
from collections.abc import MutableMapping

from koord.util.health import Health, Status, worst
from koord.util.stop import Stop


class Notifier:
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
            if worst(parts) is Status.UNHEALTHY:
                reasons = "; ".join(f"{n}: {p.reason}" for n, p in parts.items() if p.reason)
                self.send(f"STATUS=not alive: {reasons}")
            else:
                self.send("WATCHDOG=1")
