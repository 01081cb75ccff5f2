"""Listeners in a thread of their own answer while the loop of all parts computes."""

import asyncio
import contextlib
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from koord.component.eventloops import STUCK_SECONDS, LoopHandle, LoopThread
from koord.component.http.exposition import Exposition
from koord.component.http.site import HttpServer
from koord.component.http.sockets import Address
from koord.component.metrics import FamilyRules
from koord.controlplane.serving import HttpSources, MainLoop, create_app
from koord.util.clock import SystemClock
from koord.util.health import OK, Health
from koord.util.simulatedclock import SimulatedClock


class Daemon:
    """The common endpoints, and one of its own, as a process has them."""

    def __init__(self) -> None:
        self.health = Health()
        self.health.register("ping", lambda: OK, live=True, ready=True)
        self.clock = SimulatedClock()  # of the loop that computes
        home = MainLoop(self.health)
        self.loop = LoopHandle(asyncio.get_running_loop(), self.clock)
        home.leave(self.loop)
        self.threads: list[str] = []
        sources = HttpSources(
            exposition=Exposition(FamilyRules(prefix="x")),
            health=self.health,
            clock=SystemClock(),
            guard=self._guard,
            configuration=dict,
            home=home,
        )
        app = create_app(sources)
        app.router.add_put("/own", self._own)
        self.server = HttpServer(app, Address("127.0.0.1", 0))
        self.thread = LoopThread("listeners", SystemClock())

    async def _guard(self, _: web.Request) -> None:
        self.threads.append(threading.current_thread().name)

    async def _own(self, request: web.Request) -> web.Response:
        self.threads.append(threading.current_thread().name)
        return web.Response(text=f"got {await request.text()}")

    def ask(self, path: str, body: bytes | None = None) -> tuple[int, str]:
        """In another thread, as a probe."""
        url = f"http://127.0.0.1:{self.server.port}{path}"
        method = "GET" if body is None else "PUT"
        request = urllib.request.Request(url, body, method=method)
        try:
            with contextlib.closing(urllib.request.urlopen(request, timeout=60)) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as err:
            with err:
                return err.code, err.read().decode()

    def while_computing(self, path: str) -> tuple[int, str]:
        """Ask, and hold the loop of all parts until the response is there."""
        found: list[tuple[int, str]] = []
        requesting = threading.Thread(target=lambda: found.append(self.ask(path)))
        requesting.start()
        requesting.join()
        return found[0]


@pytest.fixture
async def daemon() -> AsyncIterator[Daemon]:
    made = Daemon()
    made.thread.start()
    await made.thread.loop.call(made.server.start)
    yield made
    await made.thread.loop.call(made.server.stop)
    await made.thread.stop()


async def test_handlers_run_on_the_loop_of_all_parts(daemon: Daemon) -> None:
    """Whatever they touch there; with the body of the request, which came on another one."""
    assert await asyncio.to_thread(daemon.ask, "/own", b"a body") == (200, "got a body")
    assert (await asyncio.to_thread(daemon.ask, "/configz"))[0] == 200
    assert (await asyncio.to_thread(daemon.ask, "/metrics"))[0] == 200
    assert set(daemon.threads) == {"MainThread"}


@pytest.mark.parametrize("path", ["/livez", "/healthz", "/readyz"])
async def test_probes_are_answered_while_it_computes(daemon: Daemon, path: str) -> None:
    """As the parts were last."""
    assert daemon.while_computing(path)[0] == 200
    assert (await asyncio.to_thread(daemon.ask, path))[0] == 200


async def test_a_loop_that_is_stuck_is_not_alive(daemon: Daemon) -> None:
    """After a minute without a turn."""
    daemon.clock.tick(STUCK_SECONDS + 1)
    status, text = daemon.while_computing("/livez")
    assert status == 503
    assert "eventLoop" in text
    assert "has computed for 61 s without a turn" in text
