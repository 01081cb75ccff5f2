"""Notifications to systemd."""

import asyncio
import socket

from koord.component.process import SystemdNotifier
from koord.util.health import OK, Health, HealthStatus, PartHealth
from koord.util.stop import Stop
from koordlet.plugin.testing.scripted import SimulatedClock


def listen(path):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(str(path))
    sock.setblocking(False)
    return sock


def received(sock):
    lines = []
    while True:
        try:
            lines.append(sock.recv(4096).decode())
        except BlockingIOError:
            return lines


def test_state_lines_reach_the_socket(tmp_path):
    """READY=1 is what Type=notify waits for; children do not inherit the address."""
    environ = {"NOTIFY_SOCKET": str(tmp_path / "s")}
    with listen(tmp_path / "s") as sock:
        SystemdNotifier(environ).send("READY=1", "STATUS=up")

        assert received(sock) == ["READY=1\nSTATUS=up"]
    assert environ == {}


def test_without_systemd_nothing_happens():
    """The same daemon runs in a container."""
    SystemdNotifier({}).send("READY=1")


async def test_the_watchdog_is_fed_only_while_alive(tmp_path):
    """A dead sampling pass starves the watchdog, so systemd restarts the daemon."""
    clock, health, state = SimulatedClock(), Health(), [OK]
    health.register("sampling", lambda: state[0], live=True)
    health.register("api", lambda: PartHealth(HealthStatus.UNHEALTHY, "server gone"))
    with listen(tmp_path / "s") as sock:
        environ = {"NOTIFY_SOCKET": str(tmp_path / "s"), "WATCHDOG_USEC": "30000000"}
        stop = Stop(clock)
        feeding = asyncio.create_task(SystemdNotifier(environ).feed_watchdog(stop, health))
        await clock.advance(25)
        alive = received(sock)
        state[0] = PartHealth(HealthStatus.UNHEALTHY, "no pass for 40 s")
        await clock.advance(10)
        starved = received(sock)
        stop.set()
        await feeding

    assert alive == ["WATCHDOG=1"] * 3
    assert starved == ["STATUS=not alive: sampling: no pass for 40 s"]
