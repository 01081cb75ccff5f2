"""A scripted API server and a client for it, on simulated time."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from koord.kube.client import ApiClient
from koord.kube.credentials import ApiConfig
from koord.kube.transport import Limits, Transport
from koord.util.simulatedclock import SimulatedClock
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.certificates import Authority
from tests.support.kube.loopback_network import network_is_quiet

SLICES = 400  # turns that time is let pass in, before a test is given up


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """A server without TLS that answers all clients."""
    server = ApiServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def make_client(
    request: pytest.FixtureRequest, server: ApiServer, clock: SimulatedClock
) -> AsyncIterator[Callable[..., ApiClient]]:
    """Clients for the server, or for the one that the configuration names.

    The fixture's parameter is the class of their transport.
    """
    transport_class: type[Transport] = getattr(request, "param", Transport)
    async with AsyncExitStack() as stack:

        def make(limits: Limits | None = None, **config: Any) -> ApiClient:
            config = {"server": server.url, "source": "the test", **config}
            transport = transport_class(
                ApiConfig(**config), clock, limits=limits or Limits(qps=0), user_agent="koordlet"
            )
            client = ApiClient(transport, clock, draw=lambda: 0.0)
            stack.push_async_callback(client.close)
            return client

        yield make


@pytest.fixture
def client(make_client: Callable[..., ApiClient]) -> ApiClient:
    return make_client()


@pytest.fixture
def pass_time(clock: SimulatedClock) -> Callable[..., Any]:
    """Let simulated time pass, with real time for the network in between, until a condition."""

    async def pass_time(until: Callable[[], bool], *, step: float = 1.0) -> None:
        for _ in range(SLICES):
            if until():
                return
            await network_is_quiet()
            await clock.advance(step)
        raise AssertionError(f"not so after {SLICES * step:g} simulated seconds")

    return pass_time


@pytest.fixture
def let_pass(pass_time: Callable[..., Any], clock: SimulatedClock) -> Callable[..., Any]:
    """Let so many simulated seconds pass; what a daemon renews meanwhile gets its responses."""

    async def let_pass(seconds: float, *, step: float = 1.0) -> None:
        end = clock.monotonic() + seconds
        await pass_time(lambda: clock.monotonic() >= end, step=step)

    return let_pass


@pytest.fixture
def service_account(tmp_path: Path) -> Path:
    """The directory of a service account with the token "first"."""
    (tmp_path / "token").write_text("first\n")
    return tmp_path
