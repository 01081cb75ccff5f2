"""The extender server under clients that mean no good: its memory, and what others wait.

The server is a process of its own, with plugins that compute nothing. Some clients send questions
as large as a scheduler's with 5,000 whole nodes, all at once, and leave each without its last byte;
others begin questions that never end. Beside them one asks as kube-scheduler does.
"""

import asyncio
import contextlib
import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread

from prometheus_client import CollectorRegistry

from benchmarks.framework import Ready
from benchmarks.table import Row
from koord.component.http.sockets import Address
from koord.controlplane.testing import FakeCluster
from koord.util.clock import SystemClock
from koord_scheduler.cache import SchedulerCache
from koord_scheduler.config.profiles import EnabledPlugin, Point, Profile
from koord_scheduler.extenderserver import Access, AccessFiles, extender_server
from koord_scheduler.framework.profile import PluginRegistry, build_profile
from koord_scheduler.plugin.testing.harness import fake_services

CLIENTS = 16
BODY = 120 << 20  # bytes
PIECE = 1 << 20
TIMEOUT = 40.0  # seconds
MOST_MIB = 512.0  # half of what the manifest gives the scheduler
POD = {"metadata": {"namespace": "default", "name": "web", "uid": "u"}, "spec": {"containers": []}}


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield the largest memory of the process, and how long a plain question waited."""
    body = BODY // 4 if smoke else BODY
    with _server() as (pid, port):
        idle = _peak_mib(pid)
        waited = _longest_wait(_clients(_large, port, body), port)
        title = f"extender: memory with {CLIENTS} bodies of {body >> 20} MiB"
        yield Row(title, _peak_mib(pid), "MiB", MOST_MIB, idle, "idle")
        yield Row("extender: a plain question beside them", waited, "s", 1.0)
    with _server() as (pid, port):
        waited = _longest_wait(_clients(_slow, port, 1 << 20), port)
        yield Row(f"extender: a plain question beside {CLIENTS} slow ones", waited, "s", 1.0)


@contextlib.contextmanager
def _server() -> Iterator[tuple[int, int]]:
    """Process id and port."""
    command = (sys.executable, "-m", "benchmarks.extender")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
    try:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


def _clients(client: Callable[[int, str, int], None], port: int, size: int) -> list[Thread]:
    verbs = ("filter", "prioritize")
    return [Thread(target=client, args=(port, verbs[at % 2], size)) for at in range(CLIENTS)]


def _peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def _longest_wait(clients: list[Thread], port: int) -> float:
    """Seconds until a plain question was answered, the longest of those asked meanwhile."""
    for client in clients:
        client.start()
    time.sleep(0.5)  # all are at it
    longest = 0.0
    while any(client.is_alive() for client in clients):
        began = time.monotonic()
        while not _asked(port) and time.monotonic() - began < TIMEOUT:
            time.sleep(0.05)
        longest = max(longest, time.monotonic() - began)
    return longest


def _asked(port: int) -> bool:
    question = json.dumps({"Pod": POD, "NodeNames": ["n1"]}).encode()
    with contextlib.suppress(OSError), _begun(port, "filter", len(question)) as client:
        client.sendall(question)
        return client.recv(100).startswith(b"HTTP/1.1 200 ")
    return False


def _large(port: int, verb: str, size: int) -> None:
    """Send all but the last byte, then wait for what comes."""
    node = json.dumps({"metadata": {"name": "n1"}, "status": {"x": "y" * 25_000}}).encode()
    sent = 0
    with contextlib.suppress(OSError), _begun(port, verb, size) as client:
        start = b'{"Pod":' + json.dumps(POD).encode() + b',"Nodes":{"items":['
        client.sendall(start)
        sent = len(start)
        piece = (node + b",") * (PIECE // len(node))
        while sent < size - 1:
            client.sendall(piece[: size - 1 - sent])
            sent += len(piece)
        client.recv(100)


def _slow(port: int, verb: str, size: int) -> None:
    """Send a byte now and then."""
    with contextlib.suppress(OSError), _begun(port, verb, size) as client:
        client.settimeout(0.5)
        client.sendall(b'{"Pod":')
        for _ in range(int(TIMEOUT / 0.5)):
            client.sendall(b" ")
            with contextlib.suppress(TimeoutError):
                client.recv(100)
                return


def _begun(port: int, verb: str, size: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
    head = f"POST /{verb} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    client.sendall(f"{head}Content-Length: {size}\r\n\r\n".encode())
    return client


async def _serve() -> None:
    clock, registry, cluster = SystemClock(), PluginRegistry(), FakeCluster()
    registry.register("Ready", Ready)
    enabled = (EnabledPlugin("Ready"),)
    points = (Point.QUEUE_SORT, Point.FILTER, Point.SCORE, Point.BIND)
    settings = Profile(scheduler_name="bench", plugins=dict.fromkeys(points, enabled))
    state = SchedulerCache(clock)
    services = replace(fake_services(cluster), cluster=state, clock=clock)
    profile = await build_profile(settings, registry, services)
    server = extender_server(
        [profile],
        state,
        Address("127.0.0.1", 0),
        Access(AccessFiles(), ssl.TLSVersion.TLSv1_2),
        timeout=5.0,
        fail_open=True,
        registry=CollectorRegistry(),
        clock=clock,
    )
    await server.start()
    print(server.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve())
