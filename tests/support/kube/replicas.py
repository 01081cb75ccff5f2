"""Whole daemons of the control plane in the test's own loop: a port, a stop, HTTP requests."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from koord.component.http.exposition import Exposition
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop
from tests.support.kube.apiserver import ApiServer

ReplicaT = TypeVar("ReplicaT", bound="DaemonReplica")

LEASES = "/apis/coordination.k8s.io/v1/leases"


class DaemonReplica:
    """One daemon; its directory has its configuration and its kubeconfig."""

    def __init__(self, directory: Path, clock: SimulatedClock, exposition: Exposition) -> None:
        directory.mkdir(exist_ok=True)
        self.port = free_port()
        self.config = directory / "config.yaml"
        self.access = directory / "kubeconfig"
        self.exposition = exposition
        self.stop = Stop(clock)
        self.task: asyncio.Future[None]

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Start the daemon."""
        self.task = asyncio.ensure_future(work)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.exposition.internal.get_sample_value(name, labels)

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Status and body of a response."""
        return await self._ask("GET", path, headers)

    async def put(
        self, path: str, text: str, headers: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Status and body of the response to a PUT."""
        return await self._ask("PUT", path, headers, text)

    async def healthz(self) -> dict[str, Any]:
        """The parts of its health."""
        _, text = await self.get("/healthz?format=json")
        return dict(json.loads(text)["parts"])

    async def _ask(
        self, method: str, path: str, headers: Mapping[str, str] | None, text: str | None = None
    ) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.port}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, data=text, headers=headers) as answer,
        ):
            return answer.status, await answer.text()


@asynccontextmanager
async def replicas(
    make: Callable[..., ReplicaT], directory: Path, clock: SimulatedClock, config: str
) -> AsyncIterator[Callable[..., ReplicaT]]:
    """Yield a function that starts replicas, by default with that configuration.

    make: takes a directory, the text of a configuration and more flags. All replicas end with the
    context.
    """
    started: list[ReplicaT] = []

    def start(text: str = config, *argv: str) -> ReplicaT:
        started.append(make(directory / str(len(started)), text, *argv))
        return started[-1]

    yield start
    for each in started:
        each.stop.set()
    await clock.advance(5)
    for each in started:
        await asyncio.wait({each.task}, timeout=60)
        assert each.task.done()


def holder(server: ApiServer) -> str:
    """The identity in the only Lease; "": there is none, or no holder."""
    found = next(iter(server.objects.all(LEASES)), None)
    return str(found["spec"].get("holderIdentity") or "") if found else ""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])
