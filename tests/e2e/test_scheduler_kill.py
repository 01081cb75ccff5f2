"""kill -9 of the scheduler while 1,000 pods are assumed and their bindings are on the way."""

import asyncio
import json
import re
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from koord.api.podgroup import LIGHTWEIGHT_MIN_LABEL, LIGHTWEIGHT_NAME_LABEL
from tests.support.kube.daemon_flags import kubeconfig
from tests.support.programs import BED
from tests.support.real_apiserver.control_plane import missing

PODS = 1000
NODES = 110  # of 32 cores; every twentieth is tainted
CORES = 3  # of a pod, so 10 fit on a node
GANGS, GANG = 40, 3  # gangs, members of each
TIMEOUT = 90.0  # real seconds
LEASE = {"leaseDuration": "4s", "renewDeadline": "3s", "retryPeriod": "1s"}
CONFIG = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": True, "resourceNamespace": "default", **LEASE},
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web-{i}", "namespace": "default"},
    "spec": {
        "schedulerName": "default-scheduler",
        "containers": [{"name": "main", "resources": {"requests": {"cpu": str(CORES)}}}],
    },
    "status": {"phase": "Pending"},
}


class HoldingFront:
    """Passes requests on to a server; bindings wait, also when their client is gone."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._gate = asyncio.Event()
        self.held = 0
        self.lost = 0
        self.bound: Counter[str] = Counter()  # by path: bindings that the server accepted

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Serve; yield the address."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._serve)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as self._session:
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            try:
                host, port = runner.addresses[0][:2]
                yield f"http://{host}:{port}"
            finally:
                await runner.cleanup()

    def let_through(self) -> None:
        """Carry out every second binding that waits, lose the others, and hold no more."""
        self._gate.set()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        is_binding = request.path.endswith("/binding")
        if is_binding and not self._gate.is_set():
            self.held += 1
            number = self.held
            await self._gate.wait()
            if number % 2:
                self.lost += 1
                raise web.HTTPGatewayTimeout
        headers = {
            name: value
            for name, value in request.headers.items()
            if name in ("Accept", "Content-Type", "Authorization", "User-Agent")
        }
        url = f"{self._server}{request.raw_path}"
        async with self._session.request(
            request.method, url, data=body or None, headers=headers
        ) as answer:
            if is_binding and answer.status < 300:
                self.bound[request.path] += 1
            passed = web.StreamResponse(status=answer.status)
            passed.content_type = answer.content_type
            with suppress(ConnectionError):  # the client is gone
                await passed.prepare(request)
                async for piece in answer.content.iter_any():
                    await passed.write(piece)
            return passed


@pytest.fixture
async def bed() -> AsyncIterator[str]:
    """The address of an API server in memory, with nodes."""
    if reason := missing("go"):
        pytest.skip(f"needs {reason}")
    port = _free_port()
    binary = await asyncio.to_thread(BED.build)
    server = await asyncio.create_subprocess_exec(binary, "-addr", f"127.0.0.1:{port}")
    address = f"http://127.0.0.1:{port}"
    try:
        await _until(lambda: _answers(f"{address}/healthz"), 1)
        await _ask(f"{address}/bed/seed", {"nodes": NODES, "podsPerNode": 0})
        yield address
    finally:
        server.kill()
        await server.wait()


@asynccontextmanager
async def scheduler(directory: Path, config: Path, port: int) -> AsyncIterator[Any]:
    with (directory / "scheduler.log").open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "koord_scheduler.command", f"--config={config}",
            "--secure-port=0", f"--port={port}", stderr=output,
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_nothing_is_bound_twice_and_no_node_is_too_full(bed: str, tmp_path: Path) -> None:
    """Half of the bindings on the way take effect after the kill; the new process finds that."""
    front, port = HoldingFront(bed), _free_port()
    async with front.running() as address:
        access, config = tmp_path / "kubeconfig", tmp_path / "config.json"
        access.write_text(kubeconfig(address))
        config.write_text(json.dumps({**CONFIG, "clientConnection": {"kubeconfig": str(access)}}))
        async with scheduler(tmp_path, config, port) as first:
            await _ask(f"{bed}/bed/pods", {"count": PODS, "object": POD})
            decisions = "scheduler_scheduling_algorithm_duration_seconds_count"
            await _until(lambda: _metric(port, decisions), PODS)
            assert front.held > 1
            first.kill()
            await first.wait()
        front.let_through()
        async with scheduler(tmp_path, config, port):
            await _until(lambda: _bound_count(bed), PODS)
            pods = await _bound_pods(bed)
    assert front.lost >= 1
    assert set(front.bound.values()) == {1}
    assert len(front.bound) == PODS
    assert max(Counter(pods.values()).values()) * CORES <= 32


async def test_gangs_of_which_some_members_were_bound_are_whole_afterwards(
    bed: str, tmp_path: Path
) -> None:
    """Killed between the first and the last binding of a gang: the next process finishes it."""
    front, port = HoldingFront(bed), _free_port()
    points = ("preEnqueue", "preFilter", "reserve", "permit", "preBind", "postFilter")
    plugins = {point: {"enabled": [{"name": "Coscheduling"}]} for point in points}
    profile = {"schedulerName": "default-scheduler", "plugins": plugins}
    async with front.running() as address:
        access, config = tmp_path / "kubeconfig", tmp_path / "config.json"
        access.write_text(kubeconfig(address))
        settings = {**CONFIG, "profiles": [profile]}
        config.write_text(json.dumps({**settings, "clientConnection": {"kubeconfig": str(access)}}))
        async with scheduler(tmp_path, config, port) as first:
            for number in range(GANGS):
                labels = {LIGHTWEIGHT_NAME_LABEL: f"g{number}", LIGHTWEIGHT_MIN_LABEL: str(GANG)}
                meta = {"name": f"g{number}-{{i}}", "namespace": "default", "labels": labels}
                await _ask(f"{bed}/bed/pods", {"count": GANG, "object": {**POD, "metadata": meta}})
            await _until(lambda: _held(front), GANG + 1)
            first.kill()
            await first.wait()
        front.let_through()
        await _until(lambda: _decided(front), front.held)
        before = Counter(path.split("/")[-2].rpartition("-")[0] for path in front.bound)
        assert any(0 < count < GANG for count in before.values())
        async with scheduler(tmp_path, config, port):
            await _until(lambda: _bound_count(bed), GANGS * GANG)
            pods = await _bound_pods(bed)
    assert front.lost >= 1
    assert set(front.bound.values()) == {1}
    assert set(Counter(name.rpartition("-")[0] for name in pods).values()) == {GANG}
    assert max(Counter(pods.values()).values()) * CORES <= 32


async def _decided(front: HoldingFront) -> float:
    return front.lost + sum(front.bound.values())


async def _held(front: HoldingFront) -> float:
    return front.held


async def _metric(port: int, name: str) -> float:
    """The sum of a family's series; 0 while nobody answers."""
    try:
        async with aiohttp.request("GET", f"http://127.0.0.1:{port}/metrics") as answer:
            text = await answer.text()
    except aiohttp.ClientError:
        return 0.0
    return sum(float(value) for value in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.M))


async def _ask(url: str, body: object = None) -> Any:
    """GET, or POST with a body."""
    method = "GET" if body is None else "POST"
    async with aiohttp.request(method, url, json=body) as answer:
        assert answer.status < 300, await answer.text()
        return json.loads(await answer.text())


async def _answers(url: str) -> bool:
    try:
        async with aiohttp.request("GET", url):
            return True
    except aiohttp.ClientError:
        return False


async def _until(count: Callable[[], Awaitable[float]], wanted: float) -> None:
    """Return when the count of another process is as high."""
    async with asyncio.timeout(TIMEOUT):
        while await count() < wanted:  # noqa: ASYNC110 - another process has no event to await
            await asyncio.sleep(0.2)


async def _bound_count(bed: str) -> int:
    return len(await _bound_pods(bed))


async def _bound_pods(bed: str) -> dict[str, str]:
    found = await _ask(f"{bed}/api/v1/pods")
    return {
        pod["metadata"]["name"]: pod["spec"]["nodeName"]
        for pod in found["items"]
        if pod["spec"].get("nodeName")
    }


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
