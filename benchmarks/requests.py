"""CPU of koord-scheduler for one request to the API server: a binding, an event, a status patch.

The server is a process of its own; only this one's CPU counts. For comparison, the bare exchange:
the same bytes there and back over asyncio's streams, with nothing else done.
"""

import asyncio
import gc
import json
import multiprocessing
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry

from benchmarks.table import Row
from koord.cluster.facts import ClusterPod
from koord.component.plugins.execution import PluginCode, RepeatedTimeLimit
from koord.controlplane.cluster_access import LeaderClient
from koord.controlplane.transport import PooledTransport
from koord.kube.client import PODS, ApiClient, KubeMetrics
from koord.kube.credentials import ApiConfig
from koord.kube.events import Event, EventLimits, EventRecorder, EventType, ObjectRef
from koord.kube.transport import METADATA, Limits
from koord.util.clock import SystemClock
from koord.util.stop import Stop
from koord_scheduler_plugins.default_binding import DefaultBinder, binding

BUDGET = 150.0  # microseconds of a request, all in
AT_ONCE = 64
ROUNDS = 7  # the best counts: others disturb, none helps
BARE = "bare exchange of streams"

_ANSWER = json.dumps({"kind": "Status", "apiVersion": "v1", "status": "Success"}).encode()
_REPLY = (
    b"HTTP/1.1 201 Created\r\nAudit-Id: 6c0f8a1e-6d0d-4a3e-9d4b-5f4e5a3f2b1c\r\n"
    b"Cache-Control: no-cache, private\r\nContent-Type: application/json\r\n"
    b"Date: Mon, 02 Jan 2006 15:04:05 GMT\r\nContent-Length: %d\r\n\r\n%s"
) % (len(_ANSWER), _ANSWER)

Request = Callable[[int], Awaitable[object]]


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield the CPU time of one request of each kind."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,))
    server.start()
    gc.collect()
    gc.freeze()
    try:
        yield from asyncio.run(_measure(ours.recv(), 200 if smoke else 500))
    finally:
        gc.unfreeze()
        server.terminate()
        server.join()


async def _measure(port: int, count: int) -> list[Row]:
    clock = SystemClock()
    url = f"http://127.0.0.1:{port}"
    transport = PooledTransport(
        ApiConfig(server=url, source="a benchmark", token="x" * 900),
        clock,
        limits=Limits(qps=0, connections=AT_ONCE),
        observe=KubeMetrics(CollectorRegistry(), "benchmark").observe,
    )
    client = LeaderClient(transport, clock, lambda: True)
    bare = await _Bare.open(port)
    limits = RepeatedTimeLimit()
    code = PluginCode("DefaultBinder", clock, step_seconds=2.0, limits=limits)
    try:
        reference = await _cost(bare.exchange, count)
        with limits:
            bound = await _cost(partial(_bind, _binder(client), code), count)
        rows = [
            ("binding", bound, BUDGET),
            ("  of it a post by the client", await _cost(partial(_post, client), count), None),
            ("status patch", await _cost(partial(_patch, client), count), BUDGET),
            ("event", await _cost_of_events(client, clock, count), BUDGET),
        ]
    finally:
        bare.close()
        await client.close()
    return [Row(name, cost, "us CPU", budget, reference, BARE) for name, cost, budget in rows]


async def _cost(request: Request, count: int) -> float:
    """Microseconds of CPU for one of many requests, of which AT_ONCE are on their way."""

    async def some(first: int) -> None:
        for number in range(first, count, AT_ONCE):
            await request(number)

    async def once() -> float:
        began = time.process_time()
        await asyncio.gather(*(some(first) for first in range(AT_ONCE)))
        return (time.process_time() - began) / count * 1e6

    await once()
    return min([await once() for _ in range(ROUNDS)])


async def _cost_of_events(client: ApiClient, clock: SystemClock, count: int) -> float:
    written = 0
    all_written = asyncio.Event()

    def note(outcome: str) -> None:
        nonlocal written
        written += 1
        if written % count == 0:
            all_written.set()

    limits = EventLimits(waiting=count, remembered=count, rate=0, writers=8)
    recorder = EventRecorder(client, "host", clock, count=note, limits=limits)
    stop = Stop(clock)
    running = asyncio.create_task(recorder.run(stop))
    costs = []
    for turn in range(ROUNDS + 1):
        all_written.clear()
        began = time.process_time()
        for number in range(count):
            about = ObjectRef("v1", "Pod", f"pod-{turn}-{number}", "default", "some-uid")
            text = f"Successfully assigned default/pod-{number} to node-1"
            recorder.emit(Event(about, EventType.NORMAL, "Scheduled", text, "koord-scheduler"))
        await all_written.wait()
        costs.append((time.process_time() - began) / count * 1e6)
    stop.set()
    await running
    return min(costs[1:])


def _pod(number: int) -> ClusterPod:
    facts: Any = SimpleNamespace(name=f"pod-{number}", namespace="default", uid=f"uid-{number}")
    return cast(ClusterPod, facts)


def _binder(client: ApiClient) -> DefaultBinder:
    handle: Any = SimpleNamespace(services=SimpleNamespace(client=client))
    return DefaultBinder(None, handle)


async def _bind(binder: DefaultBinder, code: PluginCode, number: int) -> None:
    """Bind as the framework calls it: metered, and with a deadline."""
    state: Any = None
    status = await code.run(partial(binder.bind, state, _pod(number), "node-1"), 600.0)
    assert status is None, status


async def _post(client: ApiClient, number: int) -> None:
    pod = _pod(number)
    path = PODS.object(pod.name, namespace=pod.namespace, subresource="binding")
    await client.submit(path, binding(pod, "node-1"), attempts=1)


async def _patch(client: ApiClient, number: int) -> None:
    path = PODS.object(f"pod-{number}", namespace="default", subresource="status")
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    body = {"metadata": {"uid": f"uid-{number}"}, "status": {"conditions": [condition]}}
    await client.patch(path, body, "application/strategic-merge-patch+json", accept=METADATA)


class _Bare:
    """Exchanges over streams, without any error handled."""

    _REQUEST = (
        b"POST /api/v1/namespaces/default/pods/pod-1/binding HTTP/1.1\r\nHost: 127.0.0.1:1\r\n"
        b"Content-Type: application/json\r\nContent-Length: 160\r\n\r\n" + b" " * 160
    )

    def __init__(self, streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
        self._streams = streams

    @classmethod
    async def open(cls, port: int) -> "_Bare":
        return cls([await asyncio.open_connection("127.0.0.1", port) for _ in range(AT_ONCE)])

    async def exchange(self, number: int) -> None:
        reader, writer = self._streams[number % AT_ONCE]
        writer.write(self._REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.rpartition(b"Content-Length: ")[2])
        json.loads(await reader.readexactly(length))

    def close(self) -> None:
        for _, writer in self._streams:
            writer.close()


def _serve(port: "Connection[int, int]") -> None:
    """Answer every request with success."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(_Answering, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


class _Answering(asyncio.Protocol):
    """Reads requests by their Content-Length."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end].lower() + b"\r\n"
            length = head.rpartition(b"content-length: ")[2].partition(b"\r\n")[0]
            end += 4 + int(length)
            if len(self._data) < end:
                return
            self._data = self._data[end:]
            self._transport.write(_REPLY)
